"""Topics become diskless under faults of every kind, by seed. `SEMEL_SWITCHING_SEEDS=100` runs more of them."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from faulty_cluster import FaultyCluster, Written
from switching_topic import (
    COMPACTED,
    T0,
    check,
    check_keys,
    compact,
    is_diskless,
    make_diskless,
    run,
    without_disks,
    write,
    write_keys,
)

from semel.broker.diskless import switching as switching_module
from semel.broker.handlers.configs import alter_configs

SEEDS = int(os.environ.get("SEMEL_SWITCHING_SEEDS", "4"))
FIRST = int(os.environ.get("SEMEL_SWITCHING_FIRST", "0"))


@pytest.mark.drawn(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_E1_D1_R3_what_was_acknowledged_is_there_once_whatever_fails_amid_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_compacted: bool
) -> None:
    chance = random.Random(f"switching {seed}")
    more, look = (write_keys, check_keys) if is_compacted else (write, check)
    monkeypatch.setattr(switching_module, "_PIECE_BYTES", chance.choice((300, 4 << 20)))
    monkeypatch.setattr(switching_module, "_LITTLE_BYTES", chance.choice((0, 256 << 10)))
    settings = {
        "diskless_inline_max_bytes": chance.choice((0, 300, 16 << 10)),
        "log_segment_delete_delay_ms": chance.choice((0, 1_000)),
    }

    async def test(world: FaultyCluster) -> None:
        made, written = world.made, [Written(number) for number in range(2)]
        tps = [one.tp for one in written]

        async def produce() -> None:
            await asyncio.gather(*(more(world, one, chance.randrange(1, 9)) for one in written))

        def store_fails() -> None:
            ends_s, share = asyncio.get_running_loop().time() + 2 * chance.random(), chance.choice((0.3, 1.0))

            def fault(kind: str, key: str) -> str:
                is_over = asyncio.get_running_loop().time() > ends_s
                return "" if is_over or chance.random() > share else chance.choice(("fail", "lose"))

            world.objects.fault = fault

        async def harm() -> None:
            kind = chance.choice(
                ("kill", "stop", "store", "database", "compact" if is_compacted else "delete", "nothing")
            )
            if kind in ("kill", "stop") and not world.down:
                await asyncio.sleep(0.01)  # what has just started has begun its duties
                node_id = (
                    made.state(chance.choice(tps)).leader if chance.random() < 0.7 else chance.choice([*made.nodes])
                )
                if node_id in made.nodes:
                    await (made.stop(node_id) if kind == "stop" else made.kill(node_id, power=chance.random() < 0.5))
                    world.down.append(node_id)
                    if is_diskless(made, *tps) and chance.random() < 0.5:
                        del made.disks[node_id]
            elif kind == "store":
                store_fails()
            elif kind == "database":
                world.cut_a_database()
            elif kind == "compact":
                await compact(chance.choice([*made.nodes.values()]))
            elif kind == "delete":
                await world.delete_some(chance.choice(written))

        await produce()
        asked = False
        for number in range(8):
            if not asked and (number == 4 or chance.random() < 0.5):
                await alter_configs(await world.leader_of(T0), make_diskless())
                asked = True
            await harm()
            await produce()
            await asyncio.sleep(0.3 * chance.random())
            await world.heal()
            if not is_diskless(made, *tps):
                await made.until(lambda: all(len(made.state(tp).isr) == 3 or is_diskless(made, tp) for tp in tps))
            await look(world, *written)
        await world.heal()
        await made.until(lambda: is_diskless(made, *tps))
        await produce()
        await without_disks(world)
        await produce()
        await look(world, *written)

    topic = (
        COMPACTED
        if is_compacted
        else {"segment.bytes": chance.choice(("25000", "50000", "1048576")), "local.retention.bytes": "1500"}
    )
    run(tmp_path, test, seed=seed, partitions=2, topic=topic, **settings)
