"""A node writes over files of its journal once its logs are flushed: what a crash leaves then (D1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from simulated_folder import Node, append, batch, read_all

from semel.broker.logs.config import LogManagerConfig
from semel.runtime.simulated_storage import SimulatedStorage

JOURNAL = "/data/journal"
SMALL = LogManagerConfig(
    disk_min_free_bytes=0, journal_file_bytes=2000, journal_buffer_max_bytes=1000, journal_direct_write_bytes=500
)


def spares(node: Node) -> list[str]:
    return [name for name in node.storage.list_folder(JOURNAL) if name.endswith(".spare")]


async def write(node: Node, count: int) -> None:
    for _ in range(count):
        await append(node.get(), batch())


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_D1_a_node_that_writes_over_its_journal_keeps_all_it_acknowledged(
    seed: int, power: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        node = Node(SimulatedStorage(seed), SMALL)
        node.start()
        node.create()
        for _ in range(3):
            await write(node, 40)
            await node.logs.maintenance.flush()
        kept = len(spares(node))
        assert kept > 2
        await write(node, 3 + seed)
        assert len(spares(node)) < kept
        expected = read_all(node.get())
        node.storage.crash(power=power)
        node.start()
        assert node.logs.recovery.journal_entries == 3 + seed
        assert read_all(node.get()) == expected
        assert spares(node) == []
        await node.logs.close()

    asyncio.run(run())
    assert "tore" not in caplog.text


def test_a_clean_stop_leaves_nothing_of_the_journal() -> None:
    async def run() -> None:
        node = Node(config=SMALL)
        node.start()
        node.create()
        await write(node, 100)
        await node.logs.maintenance.flush()
        await write(node, 5)
        assert spares(node)
        await node.logs.close()
        assert node.storage.list_folder(JOURNAL) == []
        assert node.start().recovery.clean
        await node.logs.close()

    asyncio.run(run())


def test_spares_give_way_before_producers_are_refused_and_none_is_kept_while_the_disk_is_nearly_full() -> None:
    async def run() -> None:
        node = Node(config=replace(SMALL, disk_min_free_bytes=20_000))
        node.start()
        node.create()
        space = node.logs.space
        await write(node, 300)
        await node.logs.maintenance.flush()
        count = len(spares(node))
        assert count > 15
        node.storage.set_free_bytes(19_000)
        space.refresh()
        assert (space.is_refusing, space.is_scarce) == (False, False)
        assert count - 3 <= len(spares(node)) < count, "no more of them than it takes"
        node.storage.set_free_bytes(1_000)
        space.write_failed()
        assert spares(node), "their room is enough"
        node.storage.set_free_bytes(0)
        while spares(node):
            space.refresh()
            node.storage.set_free_bytes(0)
        assert space.is_refusing
        node.storage.set_free_bytes(21_000)
        space.refresh()
        await node.logs.maintenance.flush()
        assert (spares(node), space.is_scarce) == ([], True)
        node.storage.set_free_bytes(None)
        space.refresh()
        await write(node, 30)
        await node.logs.maintenance.flush()
        assert spares(node)
        await node.logs.close()

    asyncio.run(run())
