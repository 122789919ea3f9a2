"""A node that can't write a replica leaves it to others, and nobody waits for it (R2, R4, R5)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from cluster import Cluster
from moving_cluster import T0, create, run

from semel.broker.controller.membership import full_nodes
from semel.broker.handlers.topics.changes import create_topics
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.runtime.invariants import BrokenInvariantError
from semel.runtime.simulated_storage import SimulatedStorage

HOUR_MS = 3_600_000
RESERVE = 1 << 20
T1 = TopicPartition("t", 1)


def fill(made: Cluster, node_id: int) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    made.disks[node_id].fail_next("append", error, path_part="/t-0/", times=1_000_000)


def nearly_fill(disk: SimulatedStorage) -> None:
    """Leave less than the reserve, so that producers are refused."""
    disk.capacity_bytes -= disk.free_bytes("/") - RESERVE // 2


def test_R2_R5_producers_do_not_wait_for_a_follower_whose_disk_is_full(tmp_path: Path) -> None:
    """They waited for replica.lag.time.max.ms, 30 s, until it counted as lagging."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        await made.produce(T0, b"before")
        full, other = (node for node in (1, 2, 3) if node != made.state(T0).leader)
        await made.until(lambda: made.nodes[full].partition(T0).high_watermark == 1)  # type: ignore[union-attr]
        fill(made, full)
        await made.produce(T0, b"during")
        assert set(made.state(T0).isr) == {1, 2, 3} - {full}
        await made.produce(T0, b"without it")
        made.disks[full].fail_no_more()
        await made.in_sync(T0, 1, 2, 3)
        assert [data for _, data in made.values(full, T0)] == [data for _, data in made.values(other, T0)]

    run(tmp_path, test, replica_lag_time_max_ms=HOUR_MS)


def test_R2_R5_producers_do_not_wait_for_a_follower_whose_journal_finds_the_disk_full(tmp_path: Path) -> None:
    """Its logs took what they could not make durable any more, so it was not seen to fail, and was waited for."""

    async def test(made: Cluster) -> None:
        topic = NewTopic("t", configs={"min.insync.replicas": "2"}, assignments={0: (1, 2, 3), 1: (1, 2, 3)})
        (created,) = await create_topics(made.any(), [topic])
        assert created.error is ErrorCode.NONE, created.message
        await made.until(lambda: all(node.partition(T1) is not None for node in made.nodes.values()))
        await made.produce(T0, b"before")
        full = 3
        await made.until(lambda: made.nodes[full].partition(T0).high_watermark == 1)  # type: ignore[union-attr]
        error = OSError(errno.ENOSPC, "No space left on device")
        made.disks[full].fail_next("append", error, path_part="/journal/", times=1_000_000)
        await made.produce(T0, b"during")
        await made.until(lambda: full not in made.state(T0).isr)
        await made.produce(T0, b"without it")
        await made.produce(T1, b"nothing of this one was under way")
        made.disks[full].fail_no_more()
        await made.in_sync(T0, 1, 2, 3)

    run(tmp_path, test, replica_lag_time_max_ms=HOUR_MS)


@pytest.mark.drawn(2, "full disks of replicas")
def test_R5_a_full_node_joins_only_where_too_few_are_in_sync(tmp_path: Path) -> None:
    """It left and joined again and again while some bytes became free now and then."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        disk, room = made.disks[3], made.disks[3].capacity_bytes
        nearly_fill(disk)
        await made.until(lambda: made.nodes[1].metadata.image.brokers[3].is_full)
        fill(made, 3)
        await made.produce(T0, b"during")
        await made.until(lambda: 3 not in made.state(T0).isr)
        disk.fail_no_more()
        await made.until(lambda: made.nodes[3].partition(T0).log_end_offset == 1)  # type: ignore[union-attr]
        await asyncio.sleep(1)  # some rounds of proposals
        assert 3 not in made.state(T0).isr
        await made.kill(2)
        await made.in_sync(T0, 1, 3)
        await made.start(2)
        await made.in_sync(T0, 1, 2, 3)
        disk.capacity_bytes = room

    run(tmp_path, test, disk_min_free_bytes=RESERVE, replica_lag_time_max_ms=HOUR_MS)


def test_R2_a_follower_whose_disk_is_full_stays_where_too_few_would_be_left(tmp_path: Path) -> None:
    """Without it nothing is committed either, and fewer replicas would count as complete."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        await made.produce(T0, b"before")
        (full,) = {1, 2} - {made.state(T0).leader}
        fill(made, full)
        epoch = made.state(T0).partition_epoch
        waiting = asyncio.ensure_future(made.produce(T0, b"during"))
        replicas = made.nodes[full]._replicas
        assert replicas is not None
        await made.until(lambda: replicas._why_unwritable([]))
        await replicas._unwritable.leave(replicas._why_unwritable([]))
        assert (made.state(T0).partition_epoch, waiting.done()) == (epoch, False)
        made.disks[full].fail_no_more()
        await waiting

    run(tmp_path, test, replica_lag_time_max_ms=HOUR_MS)


@pytest.mark.drawn(2, "full disks of replicas")
def test_R4_others_lead_while_a_disk_refuses_producers(tmp_path: Path) -> None:
    """It refused producers for as long as it was full, and led on."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        disk, room = made.disks[1], made.disks[1].capacity_bytes
        nearly_fill(disk)
        await made.until(lambda: made.state(T0).leader in (2, 3))
        await made.until(lambda: made.nodes[2].metadata.image.brokers[1].is_full)
        await made.produce(T0, b"during")
        assert set(made.state(T0).isr) == {1, 2, 3}, "it follows, and may use the reserve"
        await asyncio.sleep(2.5)  # some rounds of giving leaders back
        assert made.state(T0).leader in (2, 3)
        disk.capacity_bytes = room
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        await made.produce(T0, b"after")
        await made.until(lambda: not made.nodes[2].metadata.image.brokers[1].is_full)

    run(tmp_path, test, disk_min_free_bytes=RESERVE, leader_imbalance_check_interval_seconds=1)


@pytest.mark.drawn(2, "full disks of replicas")
def test_where_all_disks_are_full_the_leader_stays_and_serves_again_when_there_is_room(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        rooms = {node: disk.capacity_bytes for node, disk in made.disks.items()}
        for disk in made.disks.values():
            nearly_fill(disk)
        await made.until(lambda: len(full_nodes(made.any().metadata.image)) == 3)
        assert made.leader(T0) is not None
        for node, disk in made.disks.items():
            disk.capacity_bytes = rooms[node]
        await made.produce(T0, b"after")
        await made.until(lambda: not full_nodes(made.any().metadata.image))

    run(tmp_path, test, disk_min_free_bytes=RESERVE)


def test_R4_a_leader_whose_directory_is_taken_away_leaves_to_another_one(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        await made.produce(T0, b"before")
        folder = made.nodes[1].logs.folder
        made.disks[1].remove_tree(folder.log_folder(T0))
        await made.until(lambda: made.state(T0).leader in (2, 3))
        assert set(made.state(T0).isr) == {2, 3}
        await made.produce(T0, b"after")
        for node in (2, 3):
            await made.until(lambda node=node: made.nodes[node].partition(T0).log_end_offset == 2)  # type: ignore[misc,union-attr]

    run(tmp_path, test)


@pytest.mark.drawn(2, "full disks of replicas")
def test_R4_an_eligible_replica_that_returns_leads_where_the_leaders_directory_is_gone(tmp_path: Path) -> None:
    """The one that stayed in sync without its records led on, and the complete one could neither join nor lead."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        await made.produce(T0, b"before")
        await made.until(lambda: made.nodes[2].partition(T0).high_watermark == 1)  # type: ignore[union-attr]
        made.disks[2].remove_tree(made.nodes[2].logs.folder.log_folder(T0))
        await made.until(lambda: 2 not in made.state(T0).isr)
        await made.kill(1)
        await made.until(lambda: made.state(T0).leader == -1)
        await made.start(1)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        assert made.nodes[1].partition(T0).log_end_offset == 1  # type: ignore[union-attr]

    run(tmp_path, test)


def test_R4_a_leader_whose_log_contradicts_itself_leaves_to_another_one(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        await made.produce(T0, b"before")
        partition = made.nodes[1].partition(T0)
        assert partition is not None
        partition.go_offline(partition.log.stop(BrokenInvariantError(T0, "a rule that is broken", offset=0)))
        await made.until(lambda: made.state(T0).leader in (2, 3))
        await made.produce(T0, b"after")
        await made.kill(1)  # a stop would tell of the log

    run(tmp_path, test)
