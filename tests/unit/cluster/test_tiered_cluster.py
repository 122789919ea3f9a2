"""Topics with remote storage on three nodes: whoever leads has all of the log, and nobody copies twice (KIP-405)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

from cluster import Cluster, cluster
from memory_objects import MemoryObjects
from moving_cluster import moved
from tiered_topic import NOTHING_LOCAL, QUICK, all_copied, left_the_disk, partition_of, read_all, serving, tier_of

from semel.broker.handlers.delete_records import begin_deletion, confirm_deletion
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.node import Node
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)


def run(
    folder: Path, test: Callable[[Cluster, MemoryObjects], Awaitable[None]], *, replicas: tuple[int, ...] = (1, 2, 3)
) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with asyncio.timeout(180), cluster(folder, 3, objects=objects, **QUICK) as made:
            configs = {name.replace("_", "."): value for name, value in NOTHING_LOCAL.items()}
            topic = NewTopic("t", configs={**configs, "min.insync.replicas": "1"}, assignments={0: replicas})
            (result,) = await create_topics(made.any(), [topic])
            assert result.error is ErrorCode.NONE, result.message
            await made.until(lambda: all(node.metadata.topic("t") is not None for node in made.nodes.values()))
            await made.in_sync(T0, *replicas)
            await made.until(lambda: made.leader(T0) is not None)
            await test(made, objects)

    asyncio.run(main())


async def fill(made: Cluster, first: int, count: int) -> list[tuple[int, bytes]]:
    found = []
    for number in range(first, first + count):
        value = b"%05d" % number + b"." * 95
        found.append((await made.produce(T0, value), value))
    return found


def leading(made: Cluster) -> Node:
    node = made.leader(T0)
    assert node is not None
    return node


async def served(made: Cluster, *, but: int = 0) -> Node:
    """Wait until a node leads and serves, and return it."""
    await made.until(lambda: made.leader(T0) is not None and made.state(T0).leader != but)
    node = leading(made)
    await serving(node, T0)
    return node


def nothing_old_is_local(made: Cluster, offset: int) -> bool:
    return all(partition_of(node, T0).log.local_start_offset > offset for node in made.nodes.values())


def segments_are_apart(node: Node) -> bool:
    segments = tier_of(node, T0).remote.segments
    return all(one.end_offset == following.start_offset for one, following in pairwise(segments))


def test_R1_D6_each_replica_lets_go_of_what_is_copied_and_whoever_leads_has_all_of_it(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values: list[tuple[int, bytes]] = []
        for round_number in range(3):
            values += await fill(made, round_number * 20, 20)
            node = await served(made)
            await left_the_disk(node, T0)
            await made.until(partial(nothing_old_is_local, made, values[-1][0] - 10))
            assert await read_all(node, 0, T0) == values
            assert segments_are_apart(node)
            if round_number < 2:
                gone = node.config.node_id
                await made.kill(gone)
                node = await served(made, but=gone)
                assert partition_of(node, T0).log_start_offset == 0
                assert await read_all(node, 0, T0) == values
                await made.start(gone)
                await made.in_sync(T0, 1, 2, 3)

    run(tmp_path, test)


def test_R5_a_new_replica_begins_where_the_leaders_disk_does_and_leads_the_whole_log(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values = await fill(made, 0, 30)
        node = await served(made)
        await left_the_disk(node, T0)
        first = node.config.node_id
        (other,) = {1, 2}.difference((first,))
        await moved(made, T0, first, 3)
        begun = partition_of(made.nodes[3], T0).log
        assert begun.local_start_offset > 20
        values += await fill(made, 30, 5)
        await made.kill(first)
        node = await served(made, but=first)
        assert node.config.node_id == 3
        assert partition_of(node, T0).log_start_offset == 0
        assert await read_all(node, 0, T0) == values
        assert other in made.nodes

    run(tmp_path, test, replicas=(1, 2))


def test_R2_a_leader_that_is_none_any_more_copies_nothing_that_another_has_copied(tmp_path: Path) -> None:
    """Its upload hangs while another is elected, who copies the same segments. Then it ends."""

    async def test(made: Cluster, objects: MemoryObjects) -> None:
        late = leading(made)
        late_id = late.config.node_id
        held: list[str] = []

        def hold_first(kind: str, key: str) -> str:
            if kind == "put" and not held:
                held.append(key)
                objects.hold()
            return ""

        objects.fault = hold_first
        values = await fill(made, 0, 20)
        await made.until(lambda: held)
        await late.cut_off()
        made.stores[late_id].is_cut = True
        await made.until(lambda: made.state(T0).leader != late_id)
        del made.nodes[late_id]
        objects.let_go()
        node = await served(made, but=late_id)
        await all_copied(node, T0)
        values += await fill(made, 20, 20)
        await left_the_disk(node, T0)
        assert segments_are_apart(node)
        assert await read_all(node, 0, T0) == values
        await made.until(lambda: set(objects.objects) == {one.key for one in tier_of(node, T0).remote.segments})
        made.nodes[late_id] = late
        made.stores[late_id].is_cut = False

    run(tmp_path, test)


def test_D1_deleted_records_stay_deleted_under_the_next_leader(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values = await fill(made, 0, 30)
        node = await served(made)
        await left_the_disk(node, T0)
        found = await confirm_deletion(node, await begin_deletion(node, {T0: 13}))
        assert (found[T0].log_start_offset, found[T0].error) == (13, ErrorCode.NONE)
        gone = node.config.node_id
        await made.kill(gone)
        node = await served(made, but=gone)
        assert partition_of(node, T0).log_start_offset == 13
        assert await read_all(node, 13, T0) == values[13:]

    run(tmp_path, test)
