"""Diskless topics on three nodes: each leader has read all that was committed, and nobody else commits (KIP-1163)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cluster import Cluster, cluster
from coordinated_offsets import T0, commit_offset, offset_of, somewhere
from diskless_topic import DISKLESS, FAST, entries_of, rows_of
from memory_objects import MemoryObjects
from running_node import batch
from tiered_topic import all_copied, fetch_once, partition_of, read_all, tier_of

from semel.broker.handlers.reassignments import reassign
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.log.log_types import EpochEndOffset
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.node import Node
from semel.protocol.api.groups import OffsetFetchRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.topics import NewTopic
from semel.protocol.api.transactions import EndTxnRequest
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest

LARGE = 20_000
"""More than goes into a row."""

T = TypeVar("T")


def run(
    folder: Path,
    test: Callable[[Cluster, MemoryObjects], Awaitable[None]],
    *,
    partitions: int = 1,
    leader: int = 0,
    topic: dict[str, str] | None = None,
    **settings: Any,
) -> None:
    """Run a test against a cluster that has the diskless topic `t`, led by a node where `leader` says so."""

    async def main() -> None:
        objects = MemoryObjects()
        async with asyncio.timeout(180), cluster(folder, 3, objects=objects, **{**FAST, **settings}) as made:
            configs = {name.replace("_", "."): value for name, value in {**DISKLESS, **(topic or {})}.items()}
            placed = {0: (leader,)} if leader else {}
            new = NewTopic("t", -1 if leader else partitions, configs=configs, assignments=placed)
            (result,) = await create_topics(made.any(), [new])
            assert result.error is ErrorCode.NONE, result.message
            await made.until(lambda: all(node.metadata.topic("t") is not None for node in made.nodes.values()))
            await served(made)
            await test(made, objects)

    asyncio.run(main())


async def served(made: Cluster, tp: TopicPartition = T0, *, but: int = 0) -> Node:
    """Wait until a node leads and serves, and return it."""
    await made.until(lambda: (node := serves(made, tp)) is not None and node.config.node_id != but)
    node = serves(made, tp)
    assert node is not None
    return node


def serves(made: Cluster, tp: TopicPartition) -> Node | None:
    node = made.leader(tp)
    here = None if node is None else node.partition(tp)
    return node if here is not None and here.refused is None else None


async def fill(made: Cluster, first: int, count: int, tp: TopicPartition = T0) -> list[tuple[int, bytes]]:
    """Append small records and large ones; return their offsets and values."""
    found = []
    for number in range(first, first + count):
        value = b"%05d" % number + b"." * (LARGE if number % 7 == 0 else 95)
        found.append((await made.produce(tp, value), value))
    return found


async def kill_without_disk(made: Cluster, *node_ids: int) -> None:
    for node_id in node_ids:
        await made.kill(node_id, power=True)
        del made.disks[node_id]


async def read(made: Cluster, tp: TopicPartition = T0, *, committed: bool = False) -> list[tuple[int, bytes | None]]:
    """Read all from who leads, trying again as a client does where a node says so."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await read_all(await served(made, tp), 0, tp, committed=committed)
            except (RetriableError, AssertionError):
                await asyncio.sleep(0.05)


# --- Leaders ------------------------------------------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("are_copied", [False, True])
def test_D1_R3_the_next_leader_has_all_that_was_acknowledged(tmp_path: Path, are_copied: bool) -> None:
    """And where each leader epoch ended, so that no consumer believes that its records were cut (KIP-320)."""

    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values: list[tuple[int, bytes]] = []
        ended: list[EpochEndOffset] = []
        for round_number in range(4):
            values += await fill(made, round_number * 10, 10)
            killed, epoch = made.state(T0).leader, made.state(T0).leader_epoch
            ended.append(EpochEndOffset(epoch, len(values)))
            if are_copied:
                await all_copied(await served(made), T0)
            await kill_without_disk(made, killed)
            node = await served(made, but=killed)
            assert made.state(T0).leader_epoch > epoch
            assert made.state(T0).replicas == made.state(T0).isr == (node.config.node_id,)
            assert await read(made) == values
            for one in ended:
                assert partition_of(node, T0).end_offset_for_epoch(one.leader_epoch) == one
            await made.start(killed)
        assert [offset for offset, _ in values] == list(range(40))

    run(tmp_path, test, topic={"segment_bytes": "25000"} if are_copied else {})


def test_D1_a_planned_stop_hands_over_before_the_node_ends(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values = await fill(made, 0, 10)
        stopped = made.state(T0).leader
        await made.stop(stopped)
        assert made.state(T0).leader not in (stopped, -1), "it is led elsewhere when the node has ended"
        assert await read(made) == values
        values += await fill(made, 10, 5)
        assert await read(made) == values

    run(tmp_path, test)


def test_D1_while_every_node_is_away_nothing_is_lost(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values = await fill(made, 0, 20)
        await kill_without_disk(made, 1, 2, 3)
        for node_id in (1, 2, 3):
            await made.start(node_id)
        assert await read(made) == values
        values += await fill(made, 20, 5)
        assert await read(made) == values

    run(tmp_path, test)


def test_leaders_are_spread_over_all_nodes_also_over_one_that_is_back_with_an_empty_disk(tmp_path: Path) -> None:
    def loads(made: Cluster) -> Counter[int]:
        return Counter(made.state(TopicPartition("t", number)).leader for number in range(9))

    async def test(made: Cluster, objects: MemoryObjects) -> None:
        await made.until(lambda: loads(made) == {1: 3, 2: 3, 3: 3})
        tps = [TopicPartition("t", number) for number in range(9)]
        values = {tp: await fill(made, 0, 2, tp) for tp in tps}
        await kill_without_disk(made, 3)
        await made.until(lambda: set(loads(made)) == {1, 2})
        assert sorted(loads(made).values()) == [4, 5], "who leads least takes over"
        for tp in tps:
            values[tp] += await fill(made, 2, 1, tp)
        await made.start(3)
        await made.until(lambda: loads(made) == {1: 3, 2: 3, 3: 3})
        for tp in tps:
            assert await read(made, tp) == values[tp]
            values[tp] += await fill(made, 3, 1, tp)
            assert await read(made, tp) == values[tp]

    run(tmp_path, test, partitions=9, leader_imbalance_check_interval_seconds=1)


def test_R3_an_operator_moves_a_partition_to_one_node_at_once(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values = await fill(made, 0, 10)
        epoch = made.state(T0).leader_epoch
        assert await reassign(made.any(), {T0: (2,)}) == {T0: None}
        await made.until(lambda: (node := serves(made, T0)) is not None and node.config.node_id == 2)
        assert made.state(T0).replicas == (2,)
        assert not made.state(T0).is_moving
        assert made.state(T0).leader_epoch > epoch
        assert await read(made) == values
        values += await fill(made, 10, 3)
        assert await reassign(made.any(), {T0: (1,)}) == {T0: None}
        await made.until(lambda: (node := serves(made, T0)) is not None and node.config.node_id == 1)
        assert await read(made) == values
        await made.until(lambda: made.nodes[2].partition(T0) is None)
        refused = await reassign(made.any(), {T0: (1, 2)})
        assert refused[T0] is not None
        assert refused[T0].code is ErrorCode.INVALID_REPLICATION_FACTOR
        assert made.state(T0).replicas == (1,)

    run(tmp_path, test, leader=1)


# --- A leader of before -------------------------------------------------------------------------------------------


def cut_rows(node: Node) -> None:
    """Let a node not reach the rows any more."""

    def away() -> Any:
        raise MetadataUnavailableError("the way to the database is cut")

    assert node.tier is not None
    node.tier.storage.rows._transaction = away  # type: ignore[method-assign]
    rows_of(node)._transaction = away  # type: ignore[method-assign]


@pytest.mark.parametrize("reaches_rows", [True, False])
def test_R3_a_leader_of_before_commits_nothing_and_sends_no_reader_back(tmp_path: Path, reaches_rows: bool) -> None:
    """It hears nothing of the metadata, and nobody hears of it, so that another one is elected."""

    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values = await fill(made, 0, 5)
        former = made.nodes[1]
        partition = partition_of(former, T0)
        await former.cut_off()
        made.stores[1].is_cut = True
        if not reaches_rows:
            cut_rows(former)
        node = await served(made, but=1)
        made.nodes.pop(1)
        values += await fill(made, 5, 5)
        late = partition.append(bytearray(batch(b"late")))
        waiting = asyncio.ensure_future(partition.wait_committed(late.last_offset))
        for _ in range(5):
            answer = await fetch_once(former, 9, T0)
            assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "a consumer that read from the next one goes there"
            await asyncio.sleep(0.02)
        if reaches_rows:
            await made.until(lambda: partition.refused is not None)
        assert partition.high_watermark == 5
        assert not waiting.done()
        waiting.cancel()
        values += await fill(made, 10, 2)
        assert await read(made) == values
        assert [one.end_offset for one in await entries_of(node, T0)][-1] == 12
        made.nodes[1] = former
        made.stores[1].is_cut = False

    run(tmp_path, test, leader=1)


def test_R3_an_upload_that_ends_after_another_node_leads_counts_for_nothing(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values = await fill(made, 1, 3)
        former = made.nodes[1]
        partition = partition_of(former, T0)
        objects.hold()
        before = objects.requests["put"]
        late = partition.append(bytearray(batch(b"late" + b"." * LARGE)))
        waiting = asyncio.ensure_future(partition.wait_committed(late.last_offset))
        await made.until(lambda: objects.requests["put"] > before)
        assert await reassign(made.nodes[2], {T0: (2,)}) == {T0: None}
        await made.until(lambda: (node := serves(made, T0)) is not None and node.config.node_id == 2)
        values.append((await made.produce(T0, b"next"), b"next"))
        objects.let_go()
        with pytest.raises(SemelError):
            await waiting
        values += await fill(made, 4, 4)
        assert await read(made) == values
        needed = {one.object_key for one in await entries_of(made.nodes[2], T0)} - {""}
        await made.until(lambda: set(objects.objects) == needed)

    run(tmp_path, test, leader=1, log_segment_delete_delay_ms=0)


def test_D6_what_one_leader_has_copied_the_next_one_reads_from_there(tmp_path: Path) -> None:
    async def test(made: Cluster, objects: MemoryObjects) -> None:
        values: list[tuple[int, bytes]] = []
        for number in range(40):
            value = b"%05d" % number + b"." * 95
            values.append((await made.produce(T0, value), value))
        node = await served(made)
        await made.until(lambda: tier_of(node, T0).end_offset > 30)
        async with asyncio.timeout(30):
            while len(await entries_of(node, T0)) > 10:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        killed = node.config.node_id
        await kill_without_disk(made, killed)
        node = await served(made, but=killed)
        assert partition_of(node, T0).log.local_start_offset > 30
        assert partition_of(node, T0).log_start_offset == 0
        assert await read(made) == values

    run(tmp_path, test, topic={"segment_bytes": "600"})


# --- Coordinators -------------------------------------------------------------------------------------------------


def test_O1_T3_offsets_and_a_transaction_survive_their_coordinators_and_all_disks(tmp_path: Path) -> None:
    name = "transfer"

    async def test(made: Cluster, objects: MemoryObjects) -> None:
        for number in range(6):
            await commit_offset(made, f"g{number}", number + 100)
        given = await somewhere(
            made, lambda node: node.transactions.init_producer_id(InitProducerIdRequest(name, 600_000))
        )
        producer = given.producer
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            found = made.any().metadata.image.topic(topic)
            assert found is not None
            assert found.is_diskless

        async def send(value: bytes, sequence: int) -> None:
            data = batch(
                value, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
                base_sequence=sequence, transactional=True,
            )  # fmt: skip
            async with asyncio.timeout(60):
                while True:
                    node = await served(made)
                    request = ProduceRequest([ProducePartition("t", 0, bytes(data))], name, ACKS_ALL, 5_000)
                    (answer,) = (await node.produce.produce(request, version=12)).partitions
                    if answer.error is ErrorCode.NONE:
                        return
                    await asyncio.sleep(0.05)

        await send(b"first", 0)
        number = made.any().transactions.partition_for(name)
        coordinator = made.state(TopicPartition(TRANSACTIONS_TOPIC, number)).leader
        await kill_without_disk(made, coordinator)
        await send(b"second", 1)
        for group in range(6):
            assert await offset_of(made, f"g{group}") == group + 100
        assert await read(made, committed=True) == []
        await made.start(coordinator)
        await kill_without_disk(made, *list(made.nodes))
        for node_id in (1, 2, 3):
            await made.start(node_id)
        for group in range(6):
            assert await offset_of(made, f"g{group}") == group + 100
        end = EndTxnRequest(name, producer, True)
        ended = await somewhere(made, lambda node: node.transactions.end_txn(end))
        await made.until(lambda: (node := serves(made, T0)) is not None and is_decided(node))
        assert [value for _, value in await read(made, committed=True)] == [b"first", b"second"]
        await kill_without_disk(made, *list(made.nodes))
        for node_id in (1, 2, 3):
            await made.start(node_id)
        again = await somewhere(made, lambda node: node.transactions.end_txn(end))
        assert again.producer == ended.producer, "T7: the same answer"
        assert [value for _, value in await read(made, committed=True)] == [b"first", b"second"]

    run(tmp_path, test, log_diskless_enable=True)


def is_decided(node: Node) -> bool:
    partition = partition_of(node, T0)
    return partition.last_stable_offset == partition.high_watermark == partition.log_end_offset > 2


def test_R9_a_coordinator_of_before_answers_nothing_from_what_it_knows(tmp_path: Path) -> None:
    """It was cut off from the others, one of which coordinates the group by now."""

    async def test(made: Cluster, objects: MemoryObjects) -> None:
        await commit_offset(made, "g", 5)
        (number,) = [number for number in range(2) if made.any().groups.offsets_partition("g").partition == number]
        tp = TopicPartition(OFFSETS_TOPIC, number)
        former_id = made.state(tp).leader
        former = made.nodes[former_id]
        await former.cut_off()
        made.stores[former_id].is_cut = True
        await made.until(lambda: made.state(tp).leader != former_id)
        del made.nodes[former_id]
        await commit_offset(made, "g", 6)
        with pytest.raises(SemelError) as refused:
            await former.groups.fetch_offsets(OffsetFetchRequest("g", (T0,), require_stable=True))
        assert refused.value.code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
        assert await offset_of(made, "g") == 6
        made.nodes[former_id] = former
        made.stores[former_id].is_cut = False

    run(tmp_path, test, log_diskless_enable=True)
