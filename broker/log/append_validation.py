# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""What a client's batch must be before it may enter a log (S4): a header, and records that every reader can read.

The checks of the batch itself need nothing of the log and nothing of the loop, so a large one is checked in a thread
(broker/handlers/produce/batch_checks.py), and what was found goes with it to the append. What depends on the time and
on the topic's settings is judged at the append, from what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.broker.log.config import CompressionSetting, LogConfig, LogDefaults, TimestampType
from semel.protocol.batch_header import (
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    BatchHeader,
    read_header,
    set_max_timestamp,
    validate_batches,
    with_records,
)
from semel.protocol.batch_header import TimestampType as BatchTimestampType
from semel.protocol.compression import (
    Buffer,
    Compression,
    TooLargeError,
    compress,
    decompress,
)
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, FatalError, SemelError, error_for
from semel.protocol.ids import NO_TIMESTAMP, TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.record_check import (
    RecordsSummary,
    keyless_records,
    oldest_time,
    read_plain_batch,
    summarize_records,
)

_CODECS: Final[Mapping[CompressionSetting, Compression]] = {
    CompressionSetting.UNCOMPRESSED: Compression.NONE,
    CompressionSetting.GZIP: Compression.GZIP,
    CompressionSetting.SNAPPY: Compression.SNAPPY,
    CompressionSetting.LZ4: Compression.LZ4,
    CompressionSetting.ZSTD: Compression.ZSTD,
}


_FOR_THE_BROKER: Final = 0x68
"""Attributes of a batch: append time, control, delete horizon."""
_TRANSACTIONAL: Final = 0x10


REFUSED_RECORDS_MAX: Final = 1000
"""Records that a refusal names; a client takes all others of the batch for innocent."""


class RefusedRecordsError(FatalError):
    """A batch is refused for some of its records: the place of each in it, and what is wrong with it (KIP-467)."""

    def __init__(
        self, message: str, code: ErrorCode = ErrorCode.INVALID_RECORD, records: Sequence[tuple[int, str]] = ()
    ) -> None:
        super().__init__(message, code)
        self.records = records


@dataclass(frozen=True, slots=True)
class UncompressedLimits:
    """How large a compressed batch may become (S3): `bytes_max` in any case, `ratio_max` times its size where it
    becomes larger than any batch that would be taken uncompressed, and than `FREE_BYTES`."""

    bytes_max: int = LogDefaults.message_uncompressed_max_bytes
    ratio_max: int = LogDefaults.message_compression_ratio_max

    def bytes_for(self, size_bytes: int, config: LogConfig) -> int:
        return min(self.bytes_max, max(FREE_BYTES, config.max_message_bytes, self.ratio_max * size_bytes))

    def refusal(self, tp: TopicPartition, size_bytes: int, config: LogConfig) -> SemelError:
        limit = self.bytes_for(size_bytes, config)
        setting = "message.uncompressed.max.bytes" if limit == self.bytes_max else "message.compression.ratio.max"
        return error_for(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{tp}: a compressed batch of {size_bytes} bytes becomes larger than {limit} bytes, which is all that "
            f"{setting} of the node allows; send smaller batches, or raise it",
        )


RECORDS_MAX: Final = 1_000_000
"""Records of one batch. What readers make of each is many times the few bytes that it may have."""
FREE_BYTES: Final = 16 << 20
"""What a batch may become however small it came: records that are all alike compress a thousand times and more."""


class CheckedBatch(NamedTuple):
    """A client's batch whose records were found to be records, in the topic's own compression.

    `keyless`: the places of records without a key, where the topic wants keys. `oldest_ms`: the smallest timestamp of
    a record that has one, where the topic bounds their age; else -1.
    """

    buffer: bytearray | memoryview
    header: BatchHeader
    max_timestamp_ms: int
    keyless: Sequence[int]
    oldest_ms: int


_DEFAULT_LIMITS: Final = UncompressedLimits()
_CODEC_MASK: Final = COMPRESSION_MASK


def read_plain(buffer: bytearray | memoryview, config: LogConfig) -> BatchHeader | None:
    """Return the header of a batch with which all is well, at the price that every append can pay; else None.

    `check_batch` and `check_client_batch` would find nothing wrong, and change nothing. Raises `CorruptBatchError`.
    """
    if not config.takes_batches_as_they_come:
        return None
    header = read_plain_batch(buffer, config.max_message_bytes)
    return header if header is not None and is_plain(header, config) else None


def check_batch(
    tp: TopicPartition,
    buffer: bytearray | memoryview,
    config: LogConfig,
    limits: UncompressedLimits = _DEFAULT_LIMITS,
) -> CheckedBatch:
    """Check the one batch in `buffer`, decompressed where it is not plain, and its maximum timestamp, which is patched.

    Touches nothing but `buffer`, so that it may run in any thread. Raises `SemelError`: CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP.
    """
    header = open_batch(tp, buffer, config)
    if not header.attributes & _CODEC_MASK:
        return check_records(tp, header, buffer, config, buffer, BATCH_OVERHEAD, header.size_bytes)
    try:
        data = decompress(
            header.compression,
            memoryview(buffer)[BATCH_OVERHEAD : header.size_bytes],
            max_size_bytes=limits.bytes_for(header.size_bytes, config),
            one_stream=True,
        )
    except TooLargeError:
        raise limits.refusal(tp, header.size_bytes, config) from None
    except CorruptBatchError as error:
        raise not_compressed(tp, error) from None
    return check_records(tp, header, buffer, config, data, 0, len(data))


def open_batch(tp: TopicPartition, buffer: bytearray | memoryview, config: LogConfig) -> BatchHeader:
    """Return the header of the one batch in `buffer`: its size, checksum, codec and counts are right."""
    headers = validate_batches(buffer, max_batch_bytes=config.max_message_bytes)
    if len(headers) != 1:
        raise error_for(ErrorCode.INVALID_RECORD, f"{tp}: an append has exactly one batch, and this one {len(headers)}")
    return headers[0]


def not_compressed(tp: TopicPartition, error: CorruptBatchError) -> SemelError:
    """Return the refusal of a batch whose codec can't read it: no error to be retried, for it would be the same."""
    return error_for(ErrorCode.INVALID_RECORD, f"{tp}: {error.message}")


def check_records(
    tp: TopicPartition,
    header: BatchHeader,
    buffer: bytearray | memoryview,
    config: LogConfig,
    data: Buffer,
    start: int,
    limit: int,
) -> CheckedBatch:
    """Check the records, which are `data[start:limit]`, and bring them into the topic's own compression."""
    found = summarize_records(header, data, start, limit)
    if found.fault:
        raise _refused_records(tp, header, found)
    if header.record_count > RECORDS_MAX:
        raise error_for(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{tp}: a batch has {header.record_count} records, and {RECORDS_MAX} are allowed; send smaller batches",
        )
    max_timestamp_ms = found.max_timestamp_ms
    if config.takes_batches_as_they_come:
        if max_timestamp_ms != header.max_timestamp_ms:
            set_max_timestamp(buffer, 0, max_timestamp_ms)
        return CheckedBatch(buffer, header, max_timestamp_ms, (), NO_TIMESTAMP)
    keyless: Sequence[int] = ()
    if config.is_compacted and found.keyless:
        keyless = keyless_records(header, data, start, limit, REFUSED_RECORDS_MAX)
    oldest_ms = NO_TIMESTAMP
    if config.message_timestamp_before_max_ms < INT64_MAX:
        oldest_ms = found.min_timestamp_ms
        if oldest_ms == NO_TIMESTAMP and max_timestamp_ms != NO_TIMESTAMP:
            oldest_ms = oldest_time(header, data, start, limit)
    if config.message_timestamp_type is TimestampType.CREATE_TIME and max_timestamp_ms != header.max_timestamp_ms:
        set_max_timestamp(buffer, 0, max_timestamp_ms)
    if config.recompresses:
        rewritten = _recompress(header, buffer, config, memoryview(data)[start:limit])
        if rewritten is not None:
            buffer, header = rewritten, read_header(rewritten)
    return CheckedBatch(buffer, header, max_timestamp_ms, keyless, oldest_ms)


def _refused_records(tp: TopicPartition, header: BatchHeader, found: RecordsSummary) -> RefusedRecordsError:
    code = ErrorCode.INVALID_TIMESTAMP if found.has_bad_timestamp else ErrorCode.INVALID_RECORD
    return RefusedRecordsError(
        f"{tp}: record {found.place} of a batch of {header.record_count} {found.complaint}",
        code,
        [(found.place, f"it {found.complaint}")] if found.place < header.record_count else (),
    )


def is_plain(header: BatchHeader, config: LogConfig) -> bool:
    """Say, at the price that every append can pay, that `check_client_batch` would find nothing wrong."""
    if not config.takes_batches_as_they_come or header.attributes & _FOR_THE_BROKER:
        return False
    if header.producer_id < 0:
        return not header.attributes & _TRANSACTIONAL
    return header.producer_epoch >= 0 and header.base_sequence >= 0


def check_client_batch(tp: TopicPartition, checked: CheckedBatch, config: LogConfig, now_ms: int) -> None:
    """Check what only clients can get wrong, of a batch whose records were checked.

    Raises `SemelError`: INVALID_RECORD (control batches, P6; a producer without epoch or sequence; no key in a
    compacted topic), INVALID_TIMESTAMP.
    """
    header = checked.header
    if header.is_control or header.has_delete_horizon:
        raise error_for(ErrorCode.INVALID_RECORD, f"{tp}: only the broker writes control batches and delete horizons")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise error_for(
                ErrorCode.INVALID_RECORD,
                f"{tp}: a batch of producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}: neither may be negative",
            )
    elif header.is_transactional:
        raise error_for(ErrorCode.INVALID_RECORD, f"{tp}: a transactional batch has no producer id")
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        if header.timestamp_type is not BatchTimestampType.CREATE_TIME:
            raise error_for(
                ErrorCode.INVALID_TIMESTAMP, f"{tp}: a batch says LogAppendTime, which the broker alone may set"
            )
        _check_timestamp(tp, checked.max_timestamp_ms, config, now_ms)
        _check_timestamp(tp, checked.oldest_ms, config, now_ms)
    if checked.keyless and config.is_compacted:
        raise RefusedRecordsError(
            f"{tp}: the record at position {checked.keyless[0]} of a batch has no key, which a topic with "
            "cleanup.policy=compact needs",
            records=[(place, "a topic with cleanup.policy=compact needs a key") for place in checked.keyless],
        )


def _check_timestamp(tp: TopicPartition, timestamp_ms: int, config: LogConfig, now_ms: int) -> None:
    if timestamp_ms == NO_TIMESTAMP:
        return
    if timestamp_ms - now_ms > config.message_timestamp_after_max_ms:
        raise error_for(
            ErrorCode.INVALID_TIMESTAMP,
            f"{tp}: the timestamp {timestamp_ms} is more than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} after the broker's clock ({now_ms})",
        )
    if now_ms - timestamp_ms > config.message_timestamp_before_max_ms:
        raise error_for(
            ErrorCode.INVALID_TIMESTAMP,
            f"{tp}: the timestamp {timestamp_ms} is more than message.timestamp.before.max.ms="
            f"{config.message_timestamp_before_max_ms} before the broker's clock ({now_ms})",
        )


def _recompress(
    header: BatchHeader, buffer: bytearray | memoryview, config: LogConfig, records: memoryview
) -> bytearray | None:
    """Return the batch in the topic's own compression, or None where it has it.

    Raises `SemelError` (MESSAGE_TOO_LARGE) if the records grow too large.
    """
    codec = _CODECS[config.compression_type]
    if header.compression is codec:
        return None
    compressed = compress(codec, records)
    size_bytes = BATCH_OVERHEAD + len(compressed)
    if size_bytes > config.max_message_bytes:
        raise error_for(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"compressed again as the topic's compression.type={config.compression_type.value} asks, the batch has "
            f"{size_bytes} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    return with_records(header, buffer, codec, compressed)
