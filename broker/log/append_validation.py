"""What a client's batch must be before it may enter a log, and the one case in which the broker opens it: another
codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from semel.broker.log.config import INT64_MAX, CompressionSetting, LogConfig, TimestampType
from semel.protocol.errors import ErrorCode, FatalError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.record_batch import BatchHeader, Compression, decode_records, rewrite_batch
from semel.protocol.record_batch import TimestampType as BatchTimestampType

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


def is_plain(header: BatchHeader, config: LogConfig) -> bool:
    """Say, at the price that every append can pay, that `check_client_batch` would find nothing wrong."""
    if not config.takes_batches_as_they_come or header.attributes & _FOR_THE_BROKER:
        return False
    if header.producer_id < 0:
        return not header.attributes & _TRANSACTIONAL
    return header.producer_epoch >= 0 and header.base_sequence >= 0


def check_client_batch(
    tp: TopicPartition, header: BatchHeader, buffer: bytearray | memoryview, config: LogConfig, now_ms: int
) -> None:
    """Check what only clients can get wrong.

    Raises `SemelError`: INVALID_RECORD (control batches, P6; a producer without epoch or sequence; no key in a
    compacted topic), INVALID_TIMESTAMP.
    """
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
        _check_timestamp(tp, header.max_timestamp_ms, config, now_ms)
        looks_back = config.message_timestamp_before_max_ms < INT64_MAX
    else:
        looks_back = False
    if looks_back or config.is_compacted:
        without_key: list[int] = []
        for record in decode_records(buffer, check_crc=False):
            if looks_back:
                _check_timestamp(tp, record.timestamp_ms, config, now_ms)
            if config.is_compacted and record.key is None and len(without_key) < REFUSED_RECORDS_MAX:
                without_key.append(record.offset - header.base_offset)
        if without_key:
            raise RefusedRecordsError(
                f"{tp}: the record at position {without_key[0]} of a batch has no key, which a topic with "
                "cleanup.policy=compact needs",
                records=[(position, "a topic with cleanup.policy=compact needs a key") for position in without_key],
            )


def _check_timestamp(tp: TopicPartition, timestamp_ms: int, config: LogConfig, now_ms: int) -> None:
    if timestamp_ms < 0:
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


def recompress(header: BatchHeader, buffer: bytearray | memoryview, config: LogConfig) -> bytearray | None:
    """Return the batch in the topic's own compression, or None where it has it.

    Raises `SemelError` (CORRUPT_MESSAGE) if the records cannot be read, MESSAGE_TOO_LARGE if they grow too large.
    """
    codec = _CODECS[config.compression_type]
    if header.compression is codec:
        return None
    rewritten = rewrite_batch(header, decode_records(buffer, check_crc=False), compression=codec)
    if len(rewritten) > config.max_message_bytes:
        raise error_for(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"compressed again as the topic's compression.type={config.compression_type.value} asks, the batch has "
            f"{len(rewritten)} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    return rewritten
