"""S4: readers get past what an older node took and no reader can read, and the node calls it what it is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_node import LiveNode
from lying_batches import LIES, NOW_MS, record, sealed
from typer.testing import CliRunner

import semel
from semel import aio
from semel.broker.inspection.findings import Check, Severity
from semel.broker.inspection.verify import verify
from semel.broker.log import segments
from semel.broker.log.append_validation import RECORDS_MAX, check_batch
from semel.broker.log.config import AppendOrigin, LogConfig
from semel.cli.main import app
from semel.protocol.batch_builder import encode_batch
from semel.protocol.compression import Compression
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer.fetched import UnreadableBatchError

TP = TopicPartition("t", 0)
POISON = (
    "record length of 2^31-1",
    "random bytes",
    "offset delta twice",
    "time of 2^63-1",
    "garbage in the place of the codec",
)
"""Each has one batch at the offsets that follow; the third has two records."""
VALUES = [b"v%d" % place for place in range(len(POISON) + 1)]


def good(value: bytes, time_ms: int = NOW_MS) -> bytearray:
    return bytearray(encode_batch([(time_ms, b"k", value, ())]))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveNode]:
    """A node with a topic as an older one may have left it: good batches, and between them each kind of bad ones."""
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("t")

        def fill() -> None:
            partition = node.node.partition(TP)
            assert partition is not None
            for place, value in enumerate(VALUES):
                partition.append(good(value))
                if place < len(POISON):
                    # A coordinator's batches are not opened, as no client's were.
                    partition.append(LIES[POISON[place]].build(Compression.GZIP), origin=AppendOrigin.COORDINATOR)

        node.run(fill)
        yield node


def test_S4_a_consumer_names_the_batch_and_a_seek_goes_past_it(live: LiveNode) -> None:
    found: list[bytes | None] = []
    passed: list[UnreadableBatchError] = []
    with semel.Consumer(live.bootstrap) as consumer:
        consumer.assign([TP])
        while len(found) < len(VALUES):
            try:
                batch = consumer.poll(20)
            except semel.UnreadableBatchError as error:
                with pytest.raises(semel.UnreadableBatchError):
                    consumer.poll(20)
                passed.append(error)
                consumer.seek(error.tp, error.last_offset + 1)
            else:
                assert batch is not None
                found += [each.value for each in batch]
    assert found == VALUES
    assert all(f"{TP} can't be read at offset {one.first_offset}" in str(one) for one in passed)
    assert [(one.first_offset, one.last_offset) for one in passed] == [(1, 1), (3, 3), (5, 6), (8, 8), (10, 10)]


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if "passed over a batch" in line.getMessage()]


def test_S4_a_consumer_that_skips_reads_on_and_tells_and_counts(
    live: LiveNode, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "semel.sdk"),
        semel.Consumer(live.bootstrap, group="g", topics=["t"], on_unreadable_batch="skip") as consumer,
    ):
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            batch = consumer.poll(20)
            assert batch is not None
            found += [each.value for each in batch]
        consumer.commit()
        assert found == VALUES
        assert consumer.skipped_batches == len(POISON)
        assert consumer.committed([TP])[TP] == semel.OffsetAndMetadata(12)
    assert len(_told(caplog)) == len(POISON)
    assert "partition=t-0 offsets=5 to 6" in _told(caplog)[2]


def test_S4_the_asyncio_consumer_skips_too(live: LiveNode, caplog: pytest.LogCaptureFixture) -> None:
    async def read() -> list[bytes | None]:
        found: list[bytes | None] = []
        async with aio.Consumer(live.bootstrap, on_unreadable_batch="skip") as consumer:
            consumer.assign([TP])
            while len(found) < len(VALUES):
                batch = await consumer.poll(20)
                assert batch is not None
                found += [each.value for each in batch]
            assert consumer.skipped_batches == len(POISON)
        return found

    assert asyncio.run(read()) == VALUES
    assert len(_told(caplog)) == len(POISON)


def test_S4_the_command_line_skips_where_it_is_told_to(live: LiveNode) -> None:
    asked = ["consume", "t", "--bootstrap", live.bootstrap, "--from-beginning", "--max", str(len(VALUES))]
    stopped = CliRunner().invoke(app, asked)
    assert stopped.exit_code == 1
    assert "--skip-unreadable" in stopped.stderr
    went_on = CliRunner().invoke(app, [*asked, "--skip-unreadable"])
    assert went_on.exit_code == 0
    assert went_on.stdout.encode().split() == VALUES


def test_S4_an_unknown_choice_is_refused() -> None:
    with pytest.raises(semel.UsageError, match="on_unreadable_batch"):
        semel.Consumer("localhost:1", on_unreadable_batch="ignore")


def test_S4_a_look_up_by_time_finds_the_batch_itself_and_the_node_is_not_alarmed(
    live: LiveNode, caplog: pytest.LogCaptureFixture
) -> None:
    with semel.Consumer(live.bootstrap) as consumer:
        assert consumer.offsets_for_times({TP: NOW_MS - 5}) == {TP: 0}
        assert consumer.offsets_for_times({TP: NOW_MS + 1}) == {TP: 8}
        assert consumer.offsets_for_times({TP: 2**62}) == {TP: 8}
    assert [line for line in caplog.records if line.levelno >= logging.ERROR] == []


def test_S3_a_look_up_by_time_opens_large_batches_in_a_thread(live: LiveNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that is found is the same as in a small one."""
    opened: list[int] = []
    original = segments.LargeBatch.open

    def note(self: segments.LargeBatch) -> object:
        opened.append(threading.get_ident())
        return original(self)

    monkeypatch.setattr(segments.LargeBatch, "open", note)
    large = sealed(
        record(bytes(4 << 20)) + record(delta=1, time=10) + record(delta=2, time=20),
        3,
        codec=Compression.ZSTD,
        base_time=NOW_MS + 1000,
        max_time=NOW_MS + 1020,
    )

    def fill() -> int:
        partition = live.node.partition(TP)
        assert partition is not None
        partition.append(large)
        return threading.get_ident()

    loop_thread = live.run(fill)
    with semel.Consumer(live.bootstrap) as consumer, semel.Admin(live.bootstrap) as admin:
        admin.delete_records({TP: 12})
        assert consumer.offsets_for_times({TP: NOW_MS + 1005}) == {TP: 13}
        assert consumer.offsets_for_times({TP: NOW_MS + 1011}) == {TP: 14}
        assert consumer.offsets_for_times({TP: NOW_MS + 1021}) == {TP: None}
    assert len(opened) == 2
    assert loop_thread not in opened


def test_S4_verify_calls_them_what_they_are(live: LiveNode, tmp_path: Path) -> None:
    """Nothing is damaged: what was sent is there. Which offsets, and how readers get past them."""
    live.stop()
    shallow, deep = (verify(str(tmp_path / "data"), deep=deep) for deep in (False, True))
    assert shallow.is_whole
    assert shallow.findings.found == []
    assert deep.is_whole
    assert {(one.check, one.severity) for one in deep.findings.found} == {(Check.BATCHES, Severity.NOTE)}
    assert [one.offset for one in deep.findings.found] == [1, 3, 5, 8, 10]
    assert "offsets 5 to 6 is as it was sent, and no reader can read its records" in deep.findings.found[2].what
    assert "continue at offset 7" in deep.findings.found[2].command
    assert "backup" not in "".join(one.command for one in deep.findings.found)


def test_S4_more_records_than_any_reader_should_make_are_too_large() -> None:
    batch = sealed(b"".join(record(b"", delta=place) for place in range(RECORDS_MAX + 1)), RECORDS_MAX + 1)
    with pytest.raises(semel.SemelError, match="1000000 are allowed") as caught:
        check_batch(TP, batch, LogConfig(max_message_bytes=1 << 30))
    assert caught.value.code is semel.ErrorCode.MESSAGE_TOO_LARGE
