"""All nodes start while their disks let a log not be opened, a full one for instance: later one leads (R4, D1)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from cluster import Cluster
from moving_cluster import T0, create, run

from semel.broker.logs.unreported import UNREPORTED_FILE, UnreportedRecovery
from semel.broker.node import Node
from semel.protocol.ids import NO_LEADER

ALWAYS = 1_000_000
LOG = "/data/t-0/00000000000000000000.log"


async def unreadable(made: Cluster, node_id: int) -> Node:
    """Start a node whose disk does not let the log be opened."""
    made.disks[node_id].fail_next("open", OSError(errno.EIO, "I/O error"), path_part="t-0/0", times=ALWAYS)
    return await made.start(node_id)


async def all_unreadable(made: Cluster, *, stopped: bool = False) -> None:
    """Make a topic with six records on two of the nodes, and start these again: neither can open its log.

    stopped: they ended cleanly, so that the journal has nothing of it any more
    """
    await create(made, 1, 2, min_isr=2)
    for number in range(6):
        await made.produce(T0, b"value-%d" % number)
    await made.until(lambda: all(made.nodes[node_id].partition(T0).high_watermark == 6 for node_id in (1, 2)))  # type: ignore[union-attr]
    for node_id in (1, 2):
        await (made.stop(node_id) if stopped else made.kill(node_id))
    for node_id in (1, 2):
        await unreadable(made, node_id)
    assert (made.state(T0).leader, set(made.state(T0).last_known_elr)) == (NO_LEADER, {1, 2})
    await asyncio.sleep(0.2)  # their tasks have begun: what is cancelled before that warns in its process


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


@pytest.mark.parametrize("killed", [False, True], ids=["", "by-a-later-start"])
def test_R4_D1_it_does_not_lead_where_it_has_lost_some(tmp_path: Path, killed: bool) -> None:
    async def test(made: Cluster) -> None:
        await all_unreadable(made, stopped=True)
        if killed:
            await made.kill(2)
        file = made.disks[2].open(LOG) if killed else None
        made.disks[2].fail_no_more()
        file = file or made.disks[2].open(LOG)
        file.truncate(file.size() // 2)
        file.close()
        if killed:
            await made.start(2)
        await made.until(lambda: made.nodes[2].partition(T0) is not None)
        await asyncio.sleep(1.0)
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
        made.disks[2].fail_no_more()
        await made.until(lambda: made.nodes[2].partition(T0) is not None)
        await asyncio.sleep(1.0)
        assert made.state(T0).leader == NO_LEADER
        made.stores[2].go_on()
        await is_led(made, 2)

    run(tmp_path, test)


def test_a_note_that_can_not_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    was_read, fails = UnreportedRecovery.was_read, [True]

    def failing(self: UnreportedRecovery, keys: frozenset[object]) -> None:
        if fails:
            fails.clear()
            raise OSError(errno.EIO, "I/O error")
        was_read(self, keys)  # type: ignore[arg-type]

    monkeypatch.setattr(UnreportedRecovery, "was_read", failing)

    async def test(made: Cluster) -> None:
        await all_unreadable(made)
        made.disks[2].fail_no_more()
        await is_led(made, 2)
        await made.until(lambda: not made.nodes[2].logs.unreported.not_read)
        assert not fails

    run(tmp_path, test)
