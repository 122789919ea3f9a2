"""S3: topics with many partitions are made, looked after and deleted in turns of the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from kafka_node import until
from running_node import create_topic, run_with_node

from semel.broker.handlers.topics.changes import delete_topics
from semel.broker.logs.data_folder import PartitionOffsets
from semel.broker.logs.disk_thread import DiskThread
from semel.broker.logs.manager import LogManager
from semel.broker.node import Node
from semel.protocol.ids import TopicPartition
from semel.runtime import turns

WIDE = 200
ROUNDS = WIDE // (2 * int(turns.TURN_SECONDS * 1000))
"""At the least, of a walk over so many partitions; a turn has five looks at the clock."""


@asynccontextmanager
async def clock_of_looks() -> AsyncIterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        every_look_takes_a_millisecond(patch)
        yield


def test_S3_the_partitions_of_a_wide_topic_are_gathered_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "wide", partitions=WIDE)
        topic = node.metadata.image.topics["wide"]
        wanted: list[Any] = []

        async def noted(_: LogManager, these: Any) -> None:
            wanted.extend(these)

        with monkeypatch.context() as patch:
            patch.setattr(LogManager, "create_partitions", noted)
            async with clock_of_looks():
                _, rounds = await rounds_of_the_loop(node._follower._create_logs([(topic, 0)]))
        assert [one.tp.partition for one in wanted] == list(range(WIDE))
        assert rounds >= ROUNDS

        async with clock_of_looks():
            _, rounds = await rounds_of_the_loop(node.logs.create_partitions(wanted))  # all of them are there
        assert rounds >= ROUNDS

    run_with_node(tmp_path, test)


@pytest.mark.parametrize("duty", ["take_vanished_offline", "_write_checkpoints", "_write_log_starts"])
def test_S3_upkeep_looks_at_many_partitions_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duty: str
) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "wide", partitions=WIDE)
        maintenance = node.logs.maintenance

        async def at_once(_: DiskThread, work: Any, *arguments: Any) -> Any:
            return work(*arguments)

        monkeypatch.setattr(DiskThread, "run", at_once)  # what is waited for in a thread is no turn
        if duty == "_write_checkpoints":

            async def nothing() -> None:
                pass

            monkeypatch.setattr(maintenance, "_write_log_starts", nothing)
        async with clock_of_looks():
            _, rounds = await rounds_of_the_loop(getattr(maintenance, duty)())
        assert rounds >= ROUNDS
        assert all(node.partition(TopicPartition("wide", number)) is not None for number in range(WIDE))

    run_with_node(tmp_path, test)


def test_S3_the_starts_of_logs_are_not_written_for_each_deleted_partition_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many partitions each time takes a turn, and a deletion has as many times."""

    async def test(node: Node) -> None:
        await create_topic(node, "wide", partitions=WIDE)
        await create_topic(node, "moved")
        starts = node.logs.folder.log_starts
        walks = 0
        known = PartitionOffsets.write

        def noted(self: PartitionOffsets, *arguments: Any) -> None:
            nonlocal walks
            walks += self is starts
            known(self, *arguments)

        monkeypatch.setattr(PartitionOffsets, "write", noted)
        await until(lambda: not node.logs.maintenance._log_starts_moved)
        walks = 0
        await delete_topics(node, ["wide"])
        assert not node.logs.maintenance._log_starts_moved
        assert walks == 0

        moved = TopicPartition("moved", 0)
        starts.note(moved, 3)
        await delete_topics(node, ["moved"])
        await until(lambda: not starts.get(moved))  # the next topic of that name begins at 0
        assert walks

    run_with_node(tmp_path, test)
