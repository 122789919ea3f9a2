"""What a broken invariant costs: one partition, which goes offline with the rule and the numbers, and no other."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from compiled_classes import set_method
from simulated_folder import CONFIG, TP, Node, append, batch, read_all

from semel.broker.log.cleaner import Compaction
from semel.broker.log.config import CleanupPolicy
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.segment import Segment
from semel.broker.logs.partition import Partition
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.invariants import BrokenInvariantError

OTHER = TopicPartition("orders", 1)


def told(partition: Partition) -> list[SemelError | None]:
    """Wait for what will never be committed."""
    answers: list[SemelError | None] = []
    partition.when_committed(1 << 40, answers.append)
    return answers


async def is_offline_alone(node: Node, broken: Partition, answers: list[SemelError | None], *words: str) -> None:
    error = broken.offline_error
    assert error is not None
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    for word in ("orders-0 is offline", "broken invariant: ", *words):
        assert word in error.message
    assert [answer and answer.message for answer in answers] == [error.message], "callers that wait get the error"
    for act in (lambda: broken.append(batch()), lambda: broken.read(0, max_bytes=100)):
        with pytest.raises(SemelError, match="broken invariant"):
            act()
    assert node.failures == [], "the disk is not at fault, and the node stays"
    await append(node.get(OTHER))
    await node.logs.maintenance.flush()
    assert node.logs.statistics().offline_partitions == 1


def start() -> tuple[Node, Partition]:
    node = Node()
    node.start()
    partition = node.create()
    node.create(OTHER)
    return node, partition


def test_an_append_takes_its_partition_offline_and_a_restart_brings_it_back() -> None:
    async def run() -> None:
        node, partition = start()
        await append(partition, batch(3))
        expected = read_all(partition)
        answers = told(partition)
        partition.log.producer_state.end_offset -= 1
        with pytest.raises(SemelError, match="end at the same offset"):
            partition.append(batch())
        await is_offline_alone(node, partition, answers, "log_end_offset=4", "producers_end_offset=3")
        with pytest.raises(SemelError, match="broken invariant"):
            await node.logs.close()
        node.start()
        again = node.get()
        assert not node.logs.recovery.clean, "what went wrong is not trusted"
        assert read_all(again).startswith(expected)
        await append(again)
        await node.logs.close()

    asyncio.run(run())


def test_R1_what_is_committed_behind_the_end_of_the_log_takes_one_partition_offline_and_others_are_committed() -> None:
    async def run() -> None:
        node, partition = start()
        other = node.get(OTHER)
        answers = told(partition)
        partition.append(batch(3))
        result = other.append(batch(2))
        partition.log.log_end_offset -= 1
        await other.wait_committed(result.last_offset)
        assert (partition.high_watermark, other.high_watermark) == (0, 2)
        rule = "the high watermark is at the end of the log or before"
        await is_offline_alone(node, partition, answers, rule, "high_watermark=3", "log_end_offset=2")
        with pytest.raises(SemelError, match="broken invariant"):
            partition.log.flush()

    asyncio.run(run())


def test_R1_the_log_finds_a_high_watermark_that_the_partition_let_through() -> None:
    async def run() -> None:
        node, partition = start()
        answers = told(partition)
        ends = iter([1 << 40])

        class Log:
            """A log whose end is another one each time it is asked."""

            def __getattr__(self, name: str) -> object:
                return next(ends, real.log_end_offset) if name == "log_end_offset" else getattr(real, name)

        real, partition.log = partition.log, Log()  # type: ignore[assignment]
        partition.advance_high_watermark(7)
        assert partition.high_watermark == 0
        words = "nothing is committed that is not in the log", "high_watermark=7", "log_end_offset=0"
        await is_offline_alone(node, partition, answers, *words)

    asyncio.run(run())


def test_R3_a_truncation_that_takes_what_is_committed_takes_the_partition_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        node, partition = start()
        await append(partition, batch())
        await append(partition, batch())
        answers = told(partition)
        partition.append(batch())
        real = PartitionLog.truncate_to
        set_method(monkeypatch, PartitionLog, "truncate_to", lambda self, offset, now_ms: real(self, 1, now_ms=now_ms))
        with pytest.raises(SemelError, match="broken invariant"):
            partition.truncate_to(2)
        rule = "the high watermark is at the end of the log or before"
        await is_offline_alone(node, partition, answers, rule, "high_watermark=2", "log_end_offset=1")

    asyncio.run(run())


def test_a_truncation_that_finds_a_broken_rule_takes_the_partition_offline() -> None:
    async def run() -> None:
        node, partition = start()
        await append(partition, batch())
        partition.append(batch())
        answers = told(partition)
        partition.log.local.segments.active.end_offset += 7
        real = partition.log.local.truncate_to

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(partition.log.local), "truncate_to", lambda self, *what: real(*what) - 1)
            with pytest.raises(SemelError, match="end at the same offset"):
                partition.truncate_to(1)
        await is_offline_alone(node, partition, answers, "log_end_offset=0", "segment_end_offset=1")

    asyncio.run(run())


def test_D1_a_rule_that_the_replay_of_the_journal_finds_broken_takes_only_the_partition_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        node, partition = start()
        await append(partition, batch(3))
        expected = read_all(partition)
        node.storage.crash(power=True, torn=False)
        with monkeypatch.context() as patched:
            set_method(patched, Segment, "append_run", lambda *what: None)
            node.start()
            [offline] = node.logs.offline
            assert re.search(r"log_end_offset=3.*segment_end_offset=0", offline.reason)
        node.storage.crash(power=True)
        node.start()
        assert read_all(node.get()) == expected
        await node.logs.close()

    asyncio.run(run())


def test_maintenance_takes_only_the_partition_offline() -> None:
    async def run() -> None:
        node, partition = start()
        await append(partition, batch())
        answers = told(partition)
        partition.log.log_end_offset = 0
        await node.logs.maintenance.check_retention()
        words = "nothing is committed that is not in the log", "high_watermark=1"
        await is_offline_alone(node, partition, answers, *words)

    asyncio.run(run())


def test_a_compaction_that_finds_a_broken_rule_leaves_the_log_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It writes files of its own, so what is wrong is in these: the log stays online, and is not compacted any more."""
    config = replace(
        CONFIG, cleanup_policy=frozenset({CleanupPolicy.COMPACT}), segment_bytes=500, min_cleanable_dirty_ratio=0.1
    )

    async def run() -> None:
        node = Node()
        node.start(config)
        partition = node.create(log_config=config)
        for _ in range(30):
            await append(partition)
        await node.logs.maintenance.flush()
        expected = read_all(partition)

        def breaks(self: Compaction) -> None:
            raise BrokenInvariantError(TP, "a rule", number=3)

        monkeypatch.setattr(Compaction, "clean_next", breaks)
        assert await node.logs.maintenance.compact_logs() == 0
        monkeypatch.undo()
        assert await node.logs.maintenance.compact_logs() == 0, "until the next start"
        assert "orders-0: broken invariant: a rule (number=3)" in caplog.text
        assert read_all(partition) == expected
        await append(partition)
        await node.logs.close()

    asyncio.run(run())
