"""Readers are sent to a follower in their rack, and see there what the leader would show them (KIP-392, L1, L2, L3)."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from moving_cluster import T0, create, run
from running_node import batch

from semel.broker.config.node_config import RACK_AWARE_SELECTOR
from semel.broker.log.config import AppendOrigin
from semel.broker.logs.partition import Partition
from semel.broker.node import Node
from semel.broker.replication.replicas import Replicas
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, ProducerIdAndEpoch
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchRequest

BY_NAME = 12
COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
SELECTS = {"replica_selector_class": RACK_AWARE_SELECTOR}


async def fetch(
    node: Node,
    offset: int = 0,
    *,
    rack: str = "",
    isolation: IsolationLevel = UNCOMMITTED,
    version: int = BY_NAME,
    wait_ms: int = 0,
    epoch: int = -1,
    last_epoch: int = -1,
) -> FetchPartitionResponse:
    item = FetchPartition("t", ZERO_TOPIC_ID, 0, offset, 1 << 20, epoch, last_epoch)
    request = FetchRequest([item], max_wait_ms=wait_ms, max_bytes=1 << 20, isolation=isolation, rack_id=rack)
    (answer,) = (await node.fetch.fetch(request, version)).partitions
    return answer


async def with_racks(made: Cluster, *, min_isr: int = 2, **second: Any) -> tuple[Node, Node, Node]:
    """Start nodes 1 to 3 in racks a to c, make the topic there, and return them: the leader is node 1.

    second: settings of node 2
    """
    for node_id, rack in ((1, "a"), (2, "b"), (3, "c")):
        await made.start(node_id, broker_rack=rack, **(second if node_id == 2 else {}))
    await made.until(lambda: all(len(node.metadata.image.brokers) == 3 for node in made.nodes.values()))
    await create(made, 1, 2, 3, min_isr=min_isr)
    assert made.state(T0).leader == 1
    return made.nodes[1], made.nodes[2], made.nodes[3]


def replicas_of(node: Node) -> Replicas:
    replicas = node._replicas
    assert replicas is not None
    return replicas


def here(node: Node) -> Partition:
    partition = node.partition(T0)
    assert partition is not None
    return partition


async def caught_up(made: Cluster) -> None:
    """Wait until all know that everything is committed."""
    end = here(made.nodes[1]).log_end_offset
    await made.until(lambda: all(here(node).high_watermark == end for node in made.nodes.values()))


def run_racks(folder: Path, test: Any, **settings: Any) -> None:
    run(folder, test, nodes=0, **{**SELECTS, **settings})


def test_a_reader_is_sent_to_the_follower_in_its_rack(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        leader, second, _ = await with_racks(made)
        await made.produce(T0, b"value")
        await caught_up(made)
        sent = await fetch(leader, rack="b", wait_ms=60_000)  # answered at once
        assert (sent.error, sent.preferred_read_replica, sent.records) == (ErrorCode.NONE, 2, None)
        assert sent.high_watermark == 1
        read = await fetch(second, rack="b")
        assert (read.error, read.preferred_read_replica, read.high_watermark) == (ErrorCode.NONE, -1, 1)
        assert read.records is not None
        assert b"value" in bytes(read.records)
        for rack in ("a", "nowhere", ""):
            stays = await fetch(leader, rack=rack)
            assert stays.preferred_read_replica == -1
            assert stays.records is not None
        old = await fetch(leader, rack="b", version=10)
        assert old.preferred_read_replica == -1, "the answer has no room for it"

    run_racks(tmp_path, test)


def test_without_the_selector_readers_stay_with_the_leader(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        leader, *_ = await with_racks(made)
        await made.produce(T0, b"value")
        await caught_up(made)
        stays = await fetch(leader, rack="b")
        assert stays.preferred_read_replica == -1
        assert stays.records is not None

    run_racks(tmp_path, test, replica_selector_class="")


def test_nobody_is_sent_to_a_follower_that_lacks_the_offset_or_is_away(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        leader, second, _ = await with_racks(made)
        await made.produce(T0, b"value")
        await caught_up(made)
        assert (await fetch(leader, 5, rack="b")).error is ErrorCode.OFFSET_OUT_OF_RANGE
        state = here(leader).leader
        assert state is not None
        known = state.follower(2)
        assert known is not None
        known.end_offset, known.log_start_offset = 0, 0
        assert (await fetch(leader, 1, rack="b")).preferred_read_replica == -1, "it has not fetched that yet"
        known.end_offset, known.log_start_offset = 1, 1
        assert (await fetch(leader, 0, rack="b")).preferred_read_replica == -1, "it has deleted that"
        await made.until(lambda: known.log_start_offset == 0)
        assert (await fetch(leader, 1, rack="b")).preferred_read_replica == 2
        await made.stop(2)
        assert (await fetch(leader, 1, rack="b")).preferred_read_replica == -1
        assert second is not None

    run_racks(tmp_path, test)


def test_L1_L2_L3_a_follower_shows_what_the_leader_shows(tmp_path: Path) -> None:
    """Transactions open, committed and aborted; each reader of each kind gets the same from any replica."""
    first, second = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)

    def of(producer: ProducerIdAndEpoch, sequence: int) -> bytearray:
        return bytearray(
            batch(
                b"of-%d" % producer.producer_id,
                producer_id=producer.producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )

    def shown(answer: FetchPartitionResponse) -> tuple[Any, ...]:
        records = None if answer.records is None else bytes(answer.records)
        told = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
        return answer.error, records, answer.aborted, told

    async def test(made: Cluster) -> None:
        nodes = await with_racks(made)
        led = here(nodes[0])
        steps = [
            lambda: led.append(of(first, 0), verified=True),
            lambda: led.append(of(second, 0), verified=True),
            lambda: led.append_marker(first, 0, False),
            lambda: led.append(of(first, 1), verified=True),
            lambda: led.append_marker(second, 0, True),
            lambda: led.append_marker(first, 0, False),
        ]
        for step in steps:
            step()
            await caught_up(made)
            for isolation in (COMMITTED, UNCOMMITTED):
                for offset in range(led.log_end_offset + 1):
                    wanted = shown(await fetch(nodes[0], offset, isolation=isolation))
                    for node in nodes[1:]:
                        assert shown(await fetch(node, offset, isolation=isolation)) == wanted
        assert (await fetch(nodes[1], 0, isolation=COMMITTED)).aborted == [(1, 0)]
        assert (await fetch(nodes[1], 3, isolation=COMMITTED)).aborted == [(1, 3)]

    run_racks(tmp_path, test)


def test_R1_a_follower_shows_nothing_that_is_not_committed(tmp_path: Path) -> None:
    """It has the record as soon as the leader does; readers get it once the leader has said that it is committed."""

    async def test(made: Cluster) -> None:
        leader, second, third = await with_racks(made, min_isr=3)
        await made.produce(T0, b"first")
        await caught_up(made)
        replicas_of(third).stop_following()  # so nothing more is committed
        here(leader).append(bytearray(batch(b"second")))
        await made.until(lambda: here(second).log_end_offset == 2)
        read = await fetch(second)
        assert read.high_watermark == 1
        assert read.records is not None
        assert b"second" not in bytes(read.records)
        assert (await fetch(second, 1)).records is None
        waits = asyncio.ensure_future(fetch(second, 1, wait_ms=60_000))
        replicas_of(third)._follows = True
        replicas_of(third).assign()
        woken = await waits
        assert woken.records is not None
        assert b"second" in bytes(woken.records)

    run_racks(tmp_path, test)


def test_a_follower_sends_away_whom_it_can_not_serve(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        leader, second, _ = await with_racks(made)
        await made.produce(T0, b"value")
        await caught_up(made)
        assert (await fetch(second, 7)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await fetch(second, version=10)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch = here(leader).leader_epoch
        assert (await fetch(second, epoch=epoch)).error is ErrorCode.NONE
        assert (await fetch(second, epoch=epoch + 1)).error is ErrorCode.UNKNOWN_LEADER_EPOCH
        replicas_of(second).stop_following()
        here(second).follow(epoch + 1, 3)
        assert (await fetch(second)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has not heard in this epoch"

    run_racks(tmp_path, test, replica_lag_time_max_ms=3_600_000)


def test_a_follower_that_does_not_hear_from_its_leader_sends_readers_away(tmp_path: Path) -> None:
    """They would wait there in vain."""

    async def test(made: Cluster) -> None:
        _, second, _ = await with_racks(made, replica_lag_time_max_ms=2_000)
        await made.produce(T0, b"value")
        await caught_up(made)
        replicas_of(second).stop_following()
        async with asyncio.timeout(25):
            while (await fetch(second)).error is ErrorCode.NONE:  # noqa: ASYNC110 (time has to pass)
                await asyncio.sleep(0.02)
        assert (await fetch(second)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_racks(tmp_path, test)


def test_a_follower_that_is_not_in_sync_sends_readers_away(tmp_path: Path) -> None:
    """It may be far behind, and hear from its leader all the same: it is throttled, or has just come back."""

    async def test(made: Cluster) -> None:
        _, second, third = await with_racks(made)
        await made.produce(T0, b"value")
        await caught_up(made)
        assert (await fetch(second)).error is ErrorCode.NONE
        image = second.metadata.image
        state = image.topics["t"].partitions[0]
        behind = dataclasses.replace(state, isr=(1, 3))
        topic = dataclasses.replace(image.topics["t"], partitions=(behind,))
        second.metadata.image = dataclasses.replace(image, topics={**image.topics, "t": topic})
        assert (await fetch(second)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetch(third)).error is ErrorCode.NONE

    run_racks(tmp_path, test)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "error"),
    [(1, 0, ErrorCode.NONE), (1, 9, ErrorCode.OFFSET_OUT_OF_RANGE), (2, 9, ErrorCode.NONE)],
    ids=["committed", "of-an-epoch-that-it-does-not-know", "not-committed"],
)
def test_a_follower_judges_only_what_is_committed(
    tmp_path: Path, offset: int, last_epoch: int, error: ErrorCode
) -> None:
    """Behind its high watermark its own log may be the one that is wrong: it says of no reader that it parts there."""

    async def test(made: Cluster) -> None:
        _, second, _ = await with_racks(made)
        await made.produce(T0, b"value")
        await caught_up(made)
        replicas_of(second).stop_following()
        follower = here(second)
        follower.append(bytearray(batch(b"more", base_offset=1, leader_epoch=0)), origin=AppendOrigin.REPLICATION)
        answer = await fetch(second, offset, last_epoch=last_epoch)
        assert (answer.error, answer.diverging_epoch) == (error, -1)

    run_racks(tmp_path, test, replica_lag_time_max_ms=3_600_000)
