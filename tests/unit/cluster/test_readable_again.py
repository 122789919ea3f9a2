"""Nodes start while their disks let a log not be opened, nearly full ones for instance: later one leads (R4, D1)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from moving_cluster import T0, create, run

from semel.broker.handlers.topics.changes import create_topics
from semel.broker.log.checkpoints import OffsetCheckpoint
from semel.broker.logs.data_folder import HIGH_WATERMARK_FILE
from semel.broker.logs.unreported import UNREPORTED_FILE, UnreportedRecovery
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_LEADER
from semel.runtime.storage import write_whole

ALWAYS = 1_000_000
LOG = "/data/t-0/00000000000000000000.log"


async def unreadable(made: Cluster, node_id: int, *, part: str = "t-0/0", **settings: Any) -> Node:
    """Start a node whose disk does not let the log be opened."""
    made.disks[node_id].fail_next("open", OSError(errno.EIO, "I/O error"), path_part=part, times=ALWAYS)
    return await made.start(node_id, **settings)


async def open_now(made: Cluster, node_id: int) -> None:
    """Let a node open the log, and time pass in which it could lead."""
    made.disks[node_id].fail_no_more()
    await made.until(lambda: made.nodes[node_id].partition(T0) is not None)
    await asyncio.sleep(1.0)


async def all_unreadable(
    made: Cluster, *, stopped: bool = False, power: int = 0, part: str = "t-0/0", noted: int | None = None
) -> None:
    """Make a topic with six records on two of the nodes, and start these again: neither can open its log.

    stopped: they ended cleanly, so that the journal has nothing of it any more
    power: the node that ends with a power cut
    part: what of the paths can't be opened
    noted: up to where they have noted that it is committed, which may be less than they know
    """
    await create(made, 1, 2, min_isr=2)
    for number in range(6):
        await made.produce(T0, b"value-%d" % number)
    await made.until(lambda: all(made.nodes[node_id].partition(T0).high_watermark == 6 for node_id in (1, 2)))  # type: ignore[union-attr]
    for node_id in (1, 2):
        await (made.stop(node_id) if stopped else made.kill(node_id, power=node_id == power))
    for node_id in (1, 2):
        if noted is not None:
            OffsetCheckpoint(made.disks[node_id], f"/data/{HIGH_WATERMARK_FILE}").write({T0: noted})
        await unreadable(made, node_id, part=part)
    assert (made.state(T0).leader, set(made.state(T0).last_known_elr)) == (NO_LEADER, {1, 2})
    await asyncio.sleep(0.2)  # their tasks have begun: what is cancelled before that warns in its process


async def last_in_sync_is_stopped(made: Cluster) -> None:
    """Make a topic on two of the nodes whose replica on node 2 alone has all records, and stop that one."""
    await create(made, 1, 2, min_isr=1)
    await made.stop(1)
    await made.in_sync(T0, 2)
    await made.produce(T0, b"value-0")
    await made.stop(2)


async def is_led(made: Cluster, node_id: int) -> None:
    await made.until(lambda: made.leader(T0) is made.nodes[node_id])
    assert b"".join(data for _, data in made.values(node_id, T0)).count(b"value-") == 6


def test_R4_a_replica_leads_once_it_can_be_read_and_the_others_follow(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made)
        made.disks[2].fail_no_more()
        await is_led(made, 2)
        made.disks[1].fail_no_more()
        await made.in_sync(T0, 1, 2)
        assert await made.produce(T0, b"more") == 6
        for node_id in (1, 2):
            await made.until(lambda: not made.disks[node_id].exists(f"/data/{UNREPORTED_FILE}"))  # noqa: B023

    run(tmp_path, test)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("power", [False, True])
def test_R4_it_leads_also_where_it_can_be_read_by_a_later_start(tmp_path: Path, power: bool) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made)
        for is_readable in (False, True):
            await made.kill(2, power=power)
            made.disks[2].fail_no_more()
            await (made.start(2) if is_readable else unreadable(made, 2))
            assert made.nodes[2].logs.unreported.not_read
            await asyncio.sleep(0.2)
        await is_led(made, 2)

    run(tmp_path, test, durability="disk")


def test_R4_a_node_that_can_not_note_what_it_can_not_read_does_not_start(tmp_path: Path) -> None:
    """A disk that is entirely full. Nobody would know later that the replica has all that it had."""

    async def test(made: Cluster) -> None:
        await last_in_sync_is_stopped(made)
        made.disks[2].fail_next("open", OSError(errno.ENOSPC, "full"), path_part=UNREPORTED_FILE, times=ALWAYS)
        with pytest.raises(NodeStartError, match=r"can't be noted: .*full.* start the node again"):
            await unreadable(made, 2)
        # In sync, or eligible where the others have taken the node for dead by now.
        assert {*made.state(T0).isr, *made.state(T0).elr} == {2}, "nobody was told anything"
        made.disks[2].fail_no_more()
        await made.start(2)
        await made.until(lambda: made.leader(T0) is made.nodes[2])

    run(tmp_path, test)


def test_R4_it_leads_though_the_first_start_ended_right_behind_its_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(made: Cluster) -> None:
        await last_in_sync_is_stopped(made)
        with monkeypatch.context() as patch:
            patch.setattr(UnreportedRecovery, "reported", lambda *_, **__: None)
            await unreadable(made, 2)
        assert made.state(T0).last_known_elr == (2,)
        await asyncio.sleep(0.2)
        await made.kill(2)
        made.disks[2].fail_no_more()
        await made.start(2)
        await made.until(lambda: made.leader(T0) is made.nodes[2])

    run(tmp_path, test)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("noted", [6, 1])
@pytest.mark.parametrize("killed", [False, True], ids=["at-once", "by-a-later-start"])
def test_R4_D1_it_does_not_lead_where_it_has_lost_some(tmp_path: Path, killed: bool, noted: int) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made, stopped=True, noted=noted)
        if killed:
            await made.kill(2)
        file = made.disks[2].open(LOG) if killed else None
        made.disks[2].fail_no_more()
        file = file or made.disks[2].open(LOG)
        file.truncate(file.size() // 2)
        file.close()
        if killed:
            await made.start(2)
        await open_now(made, 2)
        assert (made.state(T0).leader, set(made.state(T0).last_known_elr)) == (NO_LEADER, {1, 2})
        made.disks[1].fail_no_more()
        await is_led(made, 1)
        await made.in_sync(T0, 1, 2)
        assert made.values(1, T0) == made.values(2, T0), "what it had lost it has fetched again"

    run(tmp_path, test)


def test_R4_it_is_told_again_where_the_database_was_away(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made)
        made.stores[2].hang()
        await open_now(made, 2)
        assert made.state(T0).leader == NO_LEADER
        made.stores[2].go_on()
        await is_led(made, 2)

    run(tmp_path, test)


def test_R4_it_does_not_lead_where_memory_was_counted_and_a_power_cut_took_it(tmp_path: Path) -> None:
    """No log could be opened, so that nothing was there to recover: the start counted as one after a clean stop."""

    async def test(made: Cluster) -> None:
        await all_unreadable(made, power=2)
        await open_now(made, 2)
        assert made.nodes[2].partition(T0).log_end_offset < 6  # type: ignore[union-attr]
        assert made.state(T0).leader == NO_LEADER

    run(tmp_path, test, durability="os")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("batch", [0, 5], ids=["first", "last"])
def test_R4_D1_it_does_not_lead_where_a_batch_is_broken(tmp_path: Path, batch: int) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made, stopped=True)
        file = made.disks[1]
        size = len(file.durable_bytes(LOG) or b"")
        made.disks[2].corrupt(LOG, size // 6 * (batch + 1) - 3, b"\xff\xfe")
        await open_now(made, 2)
        assert made.state(T0).leader == NO_LEADER
        made.disks[1].fail_no_more()
        await is_led(made, 1)
        await made.until(lambda: made.values(1, T0) == made.values(2, T0))

    run(tmp_path, test)


def test_R4_it_does_not_lead_where_the_note_of_what_is_damaged_can_not_be_read(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        for number in range(6):
            await made.produce(T0, b"value-%d" % number)
        for node_id in (1, 2):
            await made.stop(node_id)
        write_whole(made.disks[2], f"/data/{UNREPORTED_FILE}", b"\0\0")
        for node_id in (1, 2):
            await unreadable(made, node_id)
        await asyncio.sleep(0.2)
        await open_now(made, 2)
        assert made.state(T0).leader == NO_LEADER

    run(tmp_path, test)


def test_R4_it_leads_also_where_its_topic_id_could_not_be_read(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made, part="t-0")
        made.disks[2].fail_no_more()
        await is_led(made, 2)

    run(tmp_path, test)


def test_R2_R4_nothing_is_committed_without_it_by_a_leader_with_a_lower_min_insync_replicas(tmp_path: Path) -> None:
    """min.insync.replicas is raised node by node. The leader that has the lower one asks before it commits alone."""

    async def test(made: Cluster) -> None:
        (result,) = await create_topics(made.any(), [NewTopic("t", assignments={0: (1, 2)})])
        assert result.error is ErrorCode.NONE, result.message
        await made.in_sync(T0, 1, 2)
        await made.produce(T0, b"first")
        await made.until(lambda: made.nodes[2].partition(T0).high_watermark == 1)  # type: ignore[union-attr]
        await made.kill(2)
        await unreadable(made, 2, min_insync_replicas=2)
        await made.produce(T0, b"second")
        assert made.state(T0).last_known_elr == (), "nobody takes node 2 for complete any more"
        await made.kill(1)
        await made.until(lambda: made.state(T0).leader == NO_LEADER)
        await open_now(made, 2)
        assert made.state(T0).leader == NO_LEADER
        await made.start(1)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        await made.until(lambda: made.nodes[2].partition(T0).log_end_offset == 2)  # type: ignore[union-attr]

    run(tmp_path, test, nodes=2, min_insync_replicas=1)


def test_a_note_that_can_not_be_written_is_tried_again(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made)
        made.disks[2].fail_no_more()
        for operation in ("open", "remove"):
            error = OSError(errno.EIO, "I/O error")
            made.disks[2].fail_next(operation, error, path_part=UNREPORTED_FILE, times=2)
        await is_led(made, 2)
        await made.until(lambda: not made.disks[2].exists(f"/data/{UNREPORTED_FILE}"))
        assert made.nodes[2].logs.unreported.is_written

    run(tmp_path, test)
