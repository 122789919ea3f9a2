"""The options of the source: those of Spark's Kafka source, with the same names, meanings and defaults.

One default differs: `kafka.isolation.level` is read_committed, as everywhere in Semel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT32_MAX
from semel.spark.clients import Address
from semel.spark.options import (
    BOOTSTRAP,
    KAFKA_BOOTSTRAP,
    OptionReader,
    millis,
    one_of,
    partition_numbers,
    partition_values,
    redacted,
    without_secrets,
)

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_KNOWN: Final = (
    BOOTSTRAP,
    KAFKA_BOOTSTRAP,
    *_SELECTIONS,
    *_STARTS,
    *_ENDS,
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafka.group.id",
    "kafka.client.id",
    "kafka.client.rack",
    "kafka.isolation.level",
    "kafka.security.protocol",
    "kafka.request.timeout.ms",
    "kafka.default.api.timeout.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.check.crcs",
)
_REFUSED: Final = {
    "auto.offset.reset": "where reading starts is said by startingOffsets, and a restarted query continues from its "
    "checkpoint",
    "key.deserializer": "keys come as binary; cast them, or parse them with Spark's functions",
    "value.deserializer": "values come as binary; cast them, or parse them with Spark's functions",
    "enable.auto.commit": "the checkpoint keeps the offsets; to see the lag of a query, give the sink a kafka.group.id",
    "interceptor.classes": "they are Java classes, and this source has no Java client",
}


class BoundKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends. `by_partition` holds offsets or timestamps, `option` names where it was given."""

    kind: BoundKind
    option: str
    timestamp_ms: int = 0
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, list[int]] = field(default_factory=dict)

    def takes(self, tp: TopicPartition) -> bool:
        """Whether a partition is among what is read, where there is such a partition."""
        if self.pattern:
            return re.fullmatch(self.pattern, tp.topic) is not None
        return tp.topic in self.topics or tp.partition in self.assigned.get(tp.topic, ())


@dataclass(frozen=True)
class SourceOptions:
    """Everything the source was told, checked. None where an option was not given and has no default."""

    address: Address
    selection: Selection
    start: Bound
    end: Bound
    isolation: IsolationLevel
    group: str
    include_headers: bool
    fail_on_data_loss: bool
    latest_where_no_timestamp: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    max_fetch_bytes: int
    max_fetch_wait_ms: int
    check_crc: bool
    rack: str

    @staticmethod
    def wants_headers(options: Mapping[str, str]) -> bool:
        """Whether the schema has the column of headers."""
        return OptionReader("source", options, _KNOWN, {}).flag("includeHeaders", False)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
        """Return the options. Raises `UsageError` that names the option and the next step."""
        try:
            return cls._parse(options, is_stream)
        except UsageError as error:
            raise UsageError(f"{without_secrets(error.message)} (options: {redacted(options)})") from None

    @classmethod
    def _parse(cls, options: Mapping[str, str], is_stream: bool) -> SourceOptions:
        reader = OptionReader("source", options, _KNOWN, _REFUSED)
        reader.finish()
        if is_stream:
            for name in _ENDS:
                if reader.has(name):
                    raise UsageError(
                        f"option {name} is for batch queries: a stream has no end; use .trigger(availableNow=True) to "
                        "read what is there and stop"
                    )
        start = _start(reader, is_stream)
        group = reader.text("kafka.group.id")
        if start.kind is BoundKind.COMMITTED and not group:
            raise UsageError("startingOffsets 'committed' needs option kafka.group.id: whose offsets to start from")
        minimum = reader.integer("minOffsetsPerTrigger", None)
        maximum = reader.integer("maxOffsetsPerTrigger", None)
        if minimum is not None and maximum is not None and minimum > maximum:
            raise UsageError(f"minOffsetsPerTrigger ({minimum}) is more than maxOffsetsPerTrigger ({maximum})")
        return cls(
            address=_address(reader, group),
            selection=_selection(reader),
            start=start,
            end=_end(reader),
            isolation=IsolationLevel[
                reader.choice("kafka.isolation.level", ("read_committed", "read_uncommitted"), "read_committed").upper()
            ],
            group=group,
            include_headers=reader.flag("includeHeaders", False),
            fail_on_data_loss=reader.flag("failOnDataLoss", True),
            latest_where_no_timestamp=reader.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
            == "latest",
            min_partitions=reader.integer("minPartitions", None, maximum=INT32_MAX),
            max_records_per_partition=reader.integer("maxRecordsPerPartition", None),
            max_offsets_per_trigger=maximum,
            min_offsets_per_trigger=minimum,
            max_trigger_delay_ms=reader.duration_ms("maxTriggerDelay", 15 * 60_000),
            poll_timeout_ms=reader.integer("kafkaConsumer.pollTimeoutMs", 120_000, maximum=INT32_MAX) or 0,
            offset_retries=reader.integer("fetchOffset.numRetries", 3, minimum=0, maximum=1000) or 0,
            offset_retry_interval_ms=reader.integer("fetchOffset.retryIntervalMs", 10, minimum=0, maximum=60_000) or 0,
            max_fetch_bytes=reader.integer("kafka.max.partition.fetch.bytes", 2 << 20, 1, 256 << 20) or 0,
            max_fetch_wait_ms=reader.integer("kafka.fetch.max.wait.ms", 500, 0, 60_000) or 0,
            check_crc=reader.flag("kafka.check.crcs", True),
            rack=reader.text("kafka.client.rack"),
        )


def _address(reader: OptionReader, group: str) -> Address:
    return Address(
        reader.bootstrap(),
        client_id=reader.text("kafka.client.id") or group or reader.text("groupIdPrefix") or "semel-spark-source",
        request_timeout_ms=reader.integer("kafka.request.timeout.ms", 30_000, maximum=INT32_MAX) or 0,
        api_timeout_ms=reader.integer("kafka.default.api.timeout.ms", 60_000, maximum=INT32_MAX) or 0,
    )


def _selection(reader: OptionReader) -> Selection:
    given = [name for name in _SELECTIONS if reader.has(name)]
    if len(given) != 1:
        what = f"both {' and '.join(given)} are" if given else "none is"
        raise UsageError(f"exactly one of the options {one_of(_SELECTIONS)} says what to read, and {what} given")
    if given == ["subscribe"]:
        topics = tuple(sorted({topic.strip() for topic in reader.text("subscribe").split(",") if topic.strip()}))
        if not topics:
            raise UsageError("option subscribe is empty; give topics with commas between, such as 'orders,payments'")
        return Selection(topics=topics)
    if given == ["subscribePattern"]:
        pattern = reader.text("subscribePattern")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"option subscribePattern is {pattern!r}, no regular expression: {error}") from None
        if not pattern:
            raise UsageError("option subscribePattern is empty; give a regular expression, such as 'orders.*'")
        return Selection(pattern=pattern)
    return Selection(assigned=partition_numbers("assign", reader.text("assign")))


def _start(reader: OptionReader, is_stream: bool) -> Bound:
    start = _bound(reader, _STARTS, BoundKind.LATEST if is_stream else BoundKind.EARLIEST)
    if not is_stream and start.kind is BoundKind.LATEST:
        raise UsageError("startingOffsets can't be 'latest' in a batch query, which would read nothing")
    for tp, offset in start.by_partition.items() if start.kind is BoundKind.OFFSETS else ():
        if offset < EARLIEST_OFFSET:
            raise UsageError(f"startingOffsets has {offset} for {tp}; the least is -2, the earliest")
        if not is_stream and offset == LATEST_OFFSET:
            raise UsageError(f"startingOffsets has -1 (latest) for {tp}, which would read nothing in a batch query")
    return start


def _end(reader: OptionReader) -> Bound:
    end = _bound(reader, _ENDS, BoundKind.LATEST)
    if end.kind in (BoundKind.EARLIEST, BoundKind.COMMITTED):
        raise UsageError(f"endingOffsets can't be {end.kind.value!r}; give 'latest' or offsets as JSON")
    for tp, offset in end.by_partition.items() if end.kind is BoundKind.OFFSETS else ():
        if offset < LATEST_OFFSET:
            raise UsageError(f"endingOffsets has {offset} for {tp}; give an offset, or -1 for the latest")
    return end


def _bound(reader: OptionReader, names: tuple[str, str, str], default: BoundKind) -> Bound:
    """Return what the first of the three options that is given says: one time, times or offsets by partition."""
    one, many, offsets = names
    timestamp_ms = reader.parsed(one, millis)
    if timestamp_ms is not None:
        return Bound(BoundKind.TIMESTAMP, one, timestamp_ms)
    timestamps = reader.parsed(many, partition_values)
    if timestamps is not None:
        for tp, timestamp_ms in timestamps.items():
            if timestamp_ms < 0:
                raise UsageError(f"option {many} has {timestamp_ms} for {tp}; give milliseconds since 1970")
        return Bound(BoundKind.TIMESTAMPS, many, by_partition=timestamps)
    text = reader.text(offsets)
    for kind in (BoundKind.EARLIEST, BoundKind.LATEST, BoundKind.COMMITTED):
        if text.lower() == kind.value:
            return Bound(kind, offsets)
    if reader.has(offsets) and not text.startswith("{"):
        words = "earliest, latest or committed" if names is _STARTS else "latest"
        raise UsageError(f'option {offsets} is {text!r}; it can be {words}, or JSON: {{"topic": {{"0": 23, "1": -2}}}}')
    given = reader.parsed(offsets, partition_values)
    return Bound(default, offsets) if given is None else Bound(BoundKind.OFFSETS, offsets, by_partition=given)
