"""Three nodes whose database lost its last changes, and operators who accept that (R3, R4, R10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, cluster
from restored_database import copy_of, restore

from semel.broker.controller import metadata_loss
from semel.broker.controller.metadata_loss import EPOCHS_STEP
from semel.broker.handlers.leadership import elect_leaders
from semel.broker.handlers.topics.changes import create_partitions, create_topics
from semel.broker.metadata.chain import MetadataWentBackError
from semel.broker.start_errors import NodeStartError
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_LEADER, TopicPartition

T0 = TopicPartition("t", 0)
IDS = (1, 2, 3)


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(180), cluster(folder, **settings) as three:
            await test(three)

    asyncio.run(main())


async def goes_back(three: Cluster, copy: Any) -> None:
    """Let the database lose what it has got since the copy. All nodes that run stop."""
    restore(three.url, copy)
    for node_id in tuple(three.nodes):
        node = three.nodes[node_id]
        assert isinstance(await asyncio.wait_for(node.failed, 60), MetadataWentBackError)
        with suppress(SemelError):
            await three.stop(node_id)
        three.nodes.pop(node_id, None)


async def accept(three: Cluster, *node_ids: int) -> None:
    for node_id in node_ids:
        await three.start(node_id, accept_metadata_loss=True)


async def lost_election(three: Cluster) -> tuple[int, Any, set[bytes]]:
    """Make a topic whose leader is replaced by an election that is lost then. Returns who led, and what was written."""
    await three.create("t", min_insync_replicas="2")
    await three.in_sync(T0, *IDS)
    written = {b"early-%d" % number for number in range(3)}
    for value in sorted(written):
        await three.produce(T0, value)
    copy = copy_of(three.url)
    deposed = three.state(T0).leader
    await three.kill(deposed)
    for number in range(5):
        await three.produce(T0, b"late-%d" % number)
        written.add(b"late-%d" % number)
    return deposed, copy, written


async def assert_whole(three: Cluster, written: set[bytes]) -> None:
    """The replicas are equal, and have everything once."""
    await three.in_sync(T0, *IDS)
    ends = {node.partition(T0).log_end_offset for node in three.nodes.values()}  # type: ignore[union-attr]
    assert len(ends) == 1
    logs = [b"".join(data for _, data in three.values(node_id, T0)) for node_id in three.nodes]
    assert logs[0] == logs[1] == logs[2]
    assert [value for value in sorted(written) if logs[0].count(value) != 1] == []


@pytest.mark.parametrize("first", ["deposed", "others"])
def test_R3_R4_the_replica_that_has_most_leads_once_a_loss_is_accepted(tmp_path: Path, first: str) -> None:
    """What is left of the metadata has the leader that was deposed, and says that it has everything."""

    async def test(three: Cluster) -> None:
        deposed, copy, written = await lost_election(three)
        others = [each for each in IDS if each != deposed]
        await goes_back(three, copy)
        for node_id in others:
            with pytest.raises(NodeStartError, match="went back"):
                await three.start(node_id)
        order = [deposed, *others] if first == "deposed" else [*others, deposed]
        await accept(three, *order)
        await three.until(lambda: three.leader(T0) is not None)
        assert three.state(T0).leader in others
        assert three.state(T0).leader_epoch > EPOCHS_STEP
        for number in range(3):
            await three.produce(T0, b"after-%d" % number)
            written.add(b"after-%d" % number)
        await assert_whole(three, written)

    run(tmp_path, test)


def test_R3_what_one_replica_alone_has_of_a_lost_epoch_is_not_mixed_with_what_others_write(tmp_path: Path) -> None:
    """Without it others are elected by an operator's word, and write at the same offsets."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="1")
        await three.in_sync(T0, *IDS)
        await three.produce(T0, b"early")
        first, alone, third = three.state(T0).replicas
        copy = copy_of(three.url)
        await three.stop(first)
        await three.start(first)
        await three.in_sync(T0, *IDS)
        await three.kill(first)
        await three.kill(third)
        await three.until(lambda: three.state(T0).leader == alone and three.leader(T0) is not None)
        lost_epoch = three.state(T0).leader_epoch
        assert lost_epoch > 0
        await three.produce(T0, b"alone")
        await goes_back(three, copy)
        await accept(three, first, third)
        await asyncio.sleep(1.0)
        assert three.state(T0).leader == NO_LEADER, "with one replica in sync, each may have what the others lack"
        assert await elect_leaders(three.any(), [T0], unclean=True) == {T0: None}
        await three.produce(T0, b"other")
        assert three.state(T0).leader_epoch > lost_epoch + EPOCHS_STEP
        await accept(three, alone)
        await three.until(lambda: three.leader(T0) is not None)
        await three.until(lambda: set(three.state(T0).isr) >= {first, third})
        values = {node_id: b"".join(data for _, data in three.values(node_id, T0)) for node_id in IDS}
        assert b"alone" not in values[first]
        assert (b"alone" in values[alone], b"other" in values[alone]) == (True, False), "as its own log had it"

    run(tmp_path, test)


def test_R4_a_loss_without_elections_costs_nothing(tmp_path: Path) -> None:
    """Replicas that are empty, one alone, and the coordinators' topics are led again, too."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.create("empty")
        await create_topics(three.any(), [NewTopic("one", 1, 1)])
        await three.produce(T0, b"early")
        one = TopicPartition("one", 0)
        await three.produce(one, b"early")
        copy = copy_of(three.url)
        await three.create("lost")
        await goes_back(three, copy)
        await accept(three, *IDS)
        for tp in (T0, one, TopicPartition("empty", 0)):
            await three.until(lambda: three.leader(tp) is not None)  # noqa: B023
            assert three.state(tp).leader_epoch >= EPOCHS_STEP
            await three.produce(tp, b"after")
        assert "lost" not in three.any().metadata.image.topics
        await assert_whole(three, {b"early", b"after"})
        epochs = {three.state(tp).leader_epoch // EPOCHS_STEP for tp in (T0, one)}
        assert len(epochs) == 1, "the nodes that came after the first had nothing to change any more"

    run(tmp_path, test)


def test_R4_two_replicas_are_enough_where_two_have_each_committed_record(tmp_path: Path) -> None:
    """A node that is gone for good, besides. It knows nothing of the loss as it returns, and follows."""

    async def test(three: Cluster) -> None:
        deposed, copy, written = await lost_election(three)
        await goes_back(three, copy)
        others = [each for each in IDS if each != deposed]
        await accept(three, others[0])
        await asyncio.sleep(1.0)
        assert three.state(T0).leader == NO_LEADER
        await accept(three, others[1])
        await three.until(lambda: three.leader(T0) is not None)
        await three.produce(T0, b"after")
        await three.start(deposed)
        await assert_whole(three, {*written, b"after"})

    run(tmp_path, test)


def test_R3_a_second_loss_does_not_give_the_epochs_of_the_first_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes back what those who accepted the first had changed, and nodes remember that."""
    monkeypatch.setattr(metadata_loss, "_STEPS_MAX", 1)  # so that nothing is left to chance

    async def test(three: Cluster) -> None:
        deposed, copy, written = await lost_election(three)
        first, second = sorted(set(IDS) - {deposed})
        epochs = []
        for number in range(2):
            await goes_back(three, copy)
            await accept(three, first)
            epochs.append(three.state(T0).leader_epoch)
            await accept(three, second, deposed)
            await three.until(lambda: three.leader(T0) is not None)
            value = b"after-%d" % number
            await three.produce(T0, value)
            written.add(value)
            await assert_whole(three, written)
        assert epochs[1] >= epochs[0] + EPOCHS_STEP

    run(tmp_path, test)


def test_R3_a_partition_that_is_added_again_after_a_loss_is_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that accepts the loss later has the former one's log, with the same topic id."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.produce(T0, b"early")
        copy = copy_of(three.url)
        added = TopicPartition("t", 1)
        await create_partitions(three.any(), "t", 2)
        await three.in_sync(added, *IDS)
        await three.produce(added, b"lost")
        await goes_back(three, copy)
        await accept(three, 1, 2)
        await three.until(lambda: three.leader(T0) is not None)
        await create_partitions(three.any(), "t", 2)
        for value in (b"new-0", b"new-1"):
            await three.produce(added, value)
        await accept(three, 3)
        await three.until(lambda: "t-1 is committed up to 1 here and cannot be cut at 0" in caplog.text)
        assert b"lost" in b"".join(data for _, data in three.values(3, added))
        await three.stop(3)
        three.disks[3].rename("/data/t-1", "/kept")  # as the node says
        await three.start(3)
        await three.in_sync(added, *IDS)
        logs = [b"".join(data for _, data in three.values(node_id, added)) for node_id in IDS]
        assert logs[0] == logs[1] == logs[2]
        assert (b"lost" in logs[0], b"new-0" in logs[0]) == (False, True)

    run(tmp_path, test)
