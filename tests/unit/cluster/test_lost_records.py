"""A replica whose disk has lost records that had been synced gets them from its leader again (R1, D1)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from cluster import Cluster
from moving_cluster import T0, create, run

from semel.broker.handlers.leadership import elect_leaders
from semel.broker.handlers.reassignments import reassign
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.unreported import UNREPORTED_FILE, UnreportedRecovery
from semel.protocol.ids import NO_LEADER
from semel.runtime.clock import SystemClock

LOG = "/data/t-0/00000000000000000000.log"


async def with_records(made: Cluster) -> tuple[int, int]:
    """Make a topic with six records, and return who leads it, and who follows."""
    await create(made, 1, 2, min_isr=1)
    for number in range(6):
        await made.produce(T0, b"value-%d" % number)
    leader = made.state(T0).leader
    (follower,) = {1, 2} - {leader}
    await made.until(lambda: made.nodes[follower].partition(T0).high_watermark == 6)  # type: ignore[union-attr]
    return leader, follower


def damage(made: Cluster, node_id: int, how: str) -> None:
    file = made.disks[node_id].open(LOG)
    size = file.size()
    if how == "its tail is gone":
        file.truncate(size // 2)
    elif how == "all is gone":
        file.truncate(0)
    else:
        file.write_at(b"????", size - 5)  # the last one: the others are not read by a start after a clean stop
    file.close()


def log_of(made: Cluster, node_id: int) -> bytes:
    return b"".join(data for _, data in made.values(node_id, T0))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-before-it-follows"])
@pytest.mark.parametrize("how", ["its tail is gone", "all is gone", "its last batch is broken"])
def test_R1_D1_a_follower_gets_again_what_its_disk_had_lost(tmp_path: Path, how: str, killed: bool) -> None:
    """It followed by epochs and ends alone: it was in sync again with a hole, and could be elected with it."""

    async def test(made: Cluster) -> None:
        leader, follower = await with_records(made)
        await made.stop(follower)
        damage(made, follower, how)
        if killed:
            await made.kill(leader)
            await made.until(lambda: made.nodes[3].metadata.image.brokers[leader].is_fenced)
            await made.start(follower)
            assert follower not in (*made.state(T0).isr, *made.state(T0).elr)
            await asyncio.sleep(0.2)  # its tasks have begun: what is cancelled before that warns in its process
            await made.kill(follower)
            await made.start(leader)
        await made.start(follower)
        await made.in_sync(T0, 1, 2)
        await made.until(lambda: log_of(made, leader) == log_of(made, follower))
        assert log_of(made, follower).count(b"value-") == 6
        await made.until(lambda: not made.disks[follower].exists(f"/data/{UNREPORTED_FILE}"))
        # The doctor says no more that records are lost, and the next start does not either.
        await made.until(lambda: not made.nodes[follower].logs.last_unclean.damage)
        await made.produce(T0, b"more")
        await made.kill(leader)
        await made.until(lambda: made.leader(T0) is made.nodes[follower])
        assert log_of(made, follower).count(b"value-") == 6, "who is elected has all"
        await made.stop(follower)
        await made.start(follower)
        assert made.nodes[follower].logs.unreported.is_clean
        note = made.nodes[follower].logs.last_unclean
        assert (note.damaged_ms, note.damage, note.damaged) == (-1, "", {})

    run(tmp_path, test)


def test_D1_what_the_only_replica_has_lost_is_told_until_somebody_sees_to_it(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, min_isr=1)
        await made.produce(T0, b"value")
        await made.stop(1)
        damage(made, 1, "all is gone")
        await made.start(1)
        await made.until(lambda: made.leader(T0) is made.nodes[1])
        assert made.nodes[1].logs.last_unclean.damage.startswith("t-0: ")
        await asyncio.sleep(1.5)  # the node has looked meanwhile
        assert made.nodes[1].logs.last_unclean.damage.startswith("t-0: ")
        await made.stop(1)
        await made.start(1)
        assert made.nodes[1].logs.last_unclean.damage.startswith("t-0: ")

    run(tmp_path, test)


@pytest.mark.parametrize("how", ["its tail is gone", "all is gone", "its last batch is broken"])
def test_R4_D1_a_follower_whose_disk_lost_committed_records_in_a_crash_is_not_elected(tmp_path: Path, how: str) -> None:
    """They had been flushed, and the journal has them no more. It was taken for a follower that was just cut."""

    async def test(made: Cluster) -> None:
        leader, follower = await with_records(made)
        await made.produce(T0, b"behind")  # the batch that is damaged is not in the journal's newest file
        await made.until(lambda: made.nodes[follower].partition(T0).high_watermark == 7)  # type: ignore[union-attr]
        await made.nodes[follower].logs.maintenance.flush()
        await made.kill(follower)
        for file in made.disks[follower].list_folder("/data/journal"):
            made.disks[follower].remove(f"/data/journal/{file}")
        damage(made, follower, how)
        await made.kill(leader)
        await made.until(lambda: made.nodes[3].metadata.image.brokers[leader].is_fenced)
        await made.start(follower)
        await asyncio.sleep(0.5)
        assert made.state(T0).leader == NO_LEADER
        assert follower not in (*made.state(T0).isr, *made.state(T0).elr)
        await made.start(leader)
        await made.in_sync(T0, 1, 2)
        await made.until(lambda: log_of(made, leader) == log_of(made, follower))
        assert log_of(made, follower).count(b"value-") == 6
        await made.until(lambda: not made.disks[follower].exists(f"/data/{UNREPORTED_FILE}"))

    run(tmp_path, test)


@pytest.mark.parametrize("part", ["t-0/partition.metadata", "t-0/0"])
def test_R1_D1_a_follower_that_could_not_be_read_gets_again_what_a_start_before_found_lost(
    tmp_path: Path, part: str
) -> None:
    """That start told nobody. The next one can't open the log, and in one case not even read its topic id."""

    async def test(made: Cluster) -> None:
        leader, follower = await with_records(made)
        await made.stop(follower)
        damage(made, follower, "its tail is gone")
        alone = LogManager(made.disks[follower], "/data", SystemClock(), LogManagerConfig(), node_id=follower)
        alone.open(is_only_replica=lambda tp, topic_id: False)
        await alone.close()
        made.disks[follower].fail_next("open", OSError(errno.EIO, "I/O error"), path_part=part, times=1_000_000)
        await made.start(follower)
        assert made.nodes[follower].partition(T0) is None
        made.disks[follower].fail_no_more()
        await made.in_sync(T0, 1, 2)
        assert log_of(made, leader) == log_of(made, follower)
        assert log_of(made, follower).count(b"value-") == 6

    run(tmp_path, test)


def test_D3_who_is_elected_by_an_operator_keeps_what_is_behind_its_lost_records(tmp_path: Path) -> None:
    """The other one is gone. What is lost is lost, and its offsets are given to no other record."""

    async def test(made: Cluster) -> None:
        leader, follower = await with_records(made)
        await made.stop(follower)
        damage(made, follower, "its tail is gone")
        await made.kill(leader)
        await made.until(lambda: made.nodes[3].metadata.image.brokers[leader].is_fenced)
        node = await made.start(follower)
        assert made.state(T0).leader == NO_LEADER
        assert await elect_leaders(node, [T0], unclean=True) == {T0: None}
        assert await made.produce(T0, b"more") == 6
        await made.until(lambda: not made.disks[follower].exists(f"/data/{UNREPORTED_FILE}"))
        assert log_of(made, follower).count(b"value-") == 3
        await made.start(leader)
        await made.in_sync(T0, 1, 2)

    run(tmp_path, test)


def test_R1_a_follower_is_cut_once_and_never_where_it_has_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is slow to note that it was cut, and the metadata changes meanwhile."""
    monkeypatch.setattr(UnreportedRecovery, "repaired", lambda _self, _key: None)

    async def test(made: Cluster) -> None:
        leader, follower = await with_records(made)
        await made.stop(follower)
        damage(made, follower, "its tail is gone")
        node = await made.start(follower)
        await made.in_sync(T0, 1, 2)
        await made.produce(T0, b"more")
        await made.until(lambda: log_of(made, leader) == log_of(made, follower))
        await configured(made)
        assert node.partition(T0).log_end_offset == 7  # type: ignore[union-attr]
        assert "can't be cut there now" not in caplog.text
        await made.produce(T0, b"even more")
        await made.until(lambda: log_of(made, leader) == log_of(made, follower))
        assert made.disks[follower].exists(f"/data/{UNREPORTED_FILE}"), "the next start tells of it again"

    async def configured(made: Cluster) -> None:
        """Have each node look at its part again."""
        assert await reassign(made.any(), {T0: tuple(reversed(made.state(T0).replicas))}) == {T0: None}
        sequence = made.any().metadata.image.sequence
        await made.until(lambda: all(node.metadata.image.sequence >= sequence for node in made.nodes.values()))
        await asyncio.sleep(0.5)

    run(tmp_path, test)
