"""Batches, their records, and producers, as a dump shows them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final

from semel.broker.inspection.dump_options import DumpOptions
from semel.broker.inspection.file_kinds import Place
from semel.broker.inspection.index_check import read_entries
from semel.broker.inspection.internal_topics import decode_internal
from semel.broker.inspection.json_values import bytes_field, plain
from semel.broker.log.batch_scan import scan_batches
from semel.broker.log.offset_index import OffsetIndex
from semel.broker.log.producer_state import ProducerEntry
from semel.broker.log.segment import INDEX_SUFFIX, LOG_SUFFIX
from semel.protocol.batch_header import BATCH_OVERHEAD, COMPRESSION_MASK, BatchHeader, check_crc32c, read_header
from semel.protocol.compression import Compression
from semel.protocol.control_records import decode_control
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record, decode_records
from semel.runtime.storage import ReadableFile, Storage, StorageFile

Entry = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Told of the file, how far it was read, and its size."""

_PROGRESS_BYTES: Final = 8 << 20
_FIND_BYTES: Final = 1 << 20
_FOUND_BYTES_MAX: Final = 64 << 20
_MAGIC: Final = b"\x02"
_MAGIC_AT: Final = 16
"""Where a batch says which version of the format it has."""
_CODECS_MAX: Final = 4


def log_entries(storage: Storage, place: Place, options: DumpOptions, progress: Progress | None) -> Iterator[Entry]:
    """Yield the batches of a segment, and their records where they are asked for. Goes past damage, if it can."""
    file = storage.open(place.path)
    try:
        begin = _begin_at(storage, place, options, file)
        yield from batches_between(file, begin, file.size(), max(0, place.base_offset), place, options, progress)
    finally:
        file.close()


def batches_between(
    file: ReadableFile,
    position: int,
    size: int,
    next_offset: int,
    place: Place,
    options: DumpOptions,
    progress: Progress | None,
    *,
    end_offset: int | None = None,
) -> Generator[Entry, None, int]:
    """Yield the batches of a file from `position` to below `size`, as `log_entries` does, and return where they end.

    next_offset: where the first one begins
    end_offset:  where the last one ends; None: the last one ends at `size`
    """
    end = told = position
    while end < size and (end_offset is None or next_offset < end_offset):
        try:
            for position, header, batch in scan_batches(file, end, size):
                end, next_offset = position + header.size_bytes, header.next_offset
                if options.last_offset is not None and header.base_offset > options.last_offset:
                    return end
                if progress is not None and end - told >= _PROGRESS_BYTES:
                    told = end
                    progress(place.path, end, size)
                yield from batch_entries(options, place.tp, position, header, batch)
                if end_offset is not None and next_offset >= end_offset:
                    break
        except CorruptBatchError as error:
            found = find_batch(file, end + 1, size, next_offset)
            behind = "no whole one follows" if found is None else f"the next whole one begins at position {found}"
            yield {
                "kind": "damage", "position": end, "offset": next_offset,
                "what": f"no whole batch here, {size - end} bytes before the end: {error.message}; {behind}",
            }  # fmt: skip
            end = size if found is None else found
    return end


def find_batch(file: ReadableFile, position: int, end: int, offset: int) -> int | None:
    """Return where the first whole batch with its checksum begins, at or behind `position`, of `offset` or a later one.

    None: there is none. One of more than 64 MiB is not found: its size cannot be believed before it was read.
    """
    while end - position >= BATCH_OVERHEAD:
        chunk = file.read_at(_FIND_BYTES, position)
        at = chunk.find(_MAGIC, _MAGIC_AT)
        while at >= 0 and at - _MAGIC_AT + BATCH_OVERHEAD <= len(chunk):
            begin = at - _MAGIC_AT
            if _is_batch(file, chunk, begin, position, end, offset):
                return position + begin
            at = chunk.find(_MAGIC, at + 1)
        position += max(1, len(chunk) - BATCH_OVERHEAD + 1)
    return None


def _is_batch(file: ReadableFile, chunk: bytes, begin: int, position: int, end: int, offset: int) -> bool:
    try:
        header = read_header(chunk, begin)
    except CorruptBatchError:
        return False
    size = header.size_bytes
    if header.base_offset < offset or size > min(end - position - begin, _FOUND_BYTES_MAX):
        return False
    return _has_checksum(memoryview(file.read_at(size, position + begin)))


def _begin_at(storage: Storage, place: Place, options: DumpOptions, file: StorageFile) -> int:
    """Return from which position to read for the first offset. What the index says is not just believed."""
    first = options.first_offset
    if first is None or first <= place.base_offset or place.base_offset < 0:
        return 0
    begin = 0
    index = place.path[: -len(LOG_SUFFIX)] + INDEX_SUFFIX
    for relative, position in read_entries(storage, index, OffsetIndex.ENTRY)[0]:
        if place.base_offset + relative > first:
            break
        begin = position
    try:
        header = read_header(file.read_at(BATCH_OVERHEAD, begin))
    except CorruptBatchError:
        return 0
    return begin if header.base_offset <= first else 0


def batch_entries(
    options: DumpOptions, tp: TopicPartition | None, position: int, header: BatchHeader, batch: memoryview
) -> Iterator[Entry]:
    """Yield a batch, if it is asked for, and its records, if they are."""
    if (
        not options.has_offsets(header.base_offset, header.last_offset)
        or not options.has_producer(header.producer_id)
        or (options.transactional and not header.is_transactional)
    ):
        return
    crc_ok = _has_checksum(batch)
    entry = _batch_fields(position, header, crc_ok)
    damage: list[Entry] = []
    records: list[Record] = []
    if crc_ok and header.record_count and (header.is_control or options.records):
        try:
            records = decode_records(batch)
        except SemelError as error:
            damage.append(_damage(f"the records can't be read: {error}", header, position))
    if header.is_control and records:
        try:
            marker = decode_control(records[0])
            entry["control"] = marker.type.name
            entry["coordinator_epoch"] = marker.coordinator_epoch
        except CorruptBatchError as error:
            damage.append(_damage(error.message, header, position))
    yield entry
    if options.records:
        for record in records:
            if options.has_offsets(record.offset, record.offset):
                yield _record_fields(options, tp, record, is_control=header.is_control)
    yield from damage


def producer_entries(producers: Iterable[ProducerEntry], options: DumpOptions) -> Iterator[Entry]:
    """Yield the producers of a snapshot that are asked for."""
    for found in producers:
        if options.has_producer(found.producer_id):
            yield {
                "kind": "producer",
                "producer_id": found.producer_id,
                "producer_epoch": found.epoch,
                "coordinator_epoch": found.coordinator_epoch,
                "last_timestamp_ms": found.last_timestamp_ms,
                "transaction_first_offset": found.transaction_first_offset,
                "active_ms": found.active_ms,
                "batches": plain(found.batches),
            }


def _record_fields(options: DumpOptions, tp: TopicPartition | None, record: Record, *, is_control: bool) -> Entry:
    entry: Entry = {"kind": "record", "offset": record.offset, "timestamp_ms": record.timestamp_ms}
    entry |= bytes_field("key", record.key) | bytes_field("value", record.value)
    entry["headers"] = [{"name": _name(name), **bytes_field("value", value)} for name, value in record.headers]
    topic = options.decoded_topic(tp)
    if topic and not is_control:
        try:
            decoded = decode_internal(topic, record.key, record.value)
            if decoded is not None:
                entry["decoded"] = decoded
        except (SemelError, ValueError) as error:
            entry["damage"] = f"not a record of {topic}: {error}"
    return entry


def _batch_fields(position: int, header: BatchHeader, crc_ok: bool) -> Entry:
    codec = header.attributes & COMPRESSION_MASK
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "position": position,
        "size_bytes": header.size_bytes,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "leader_epoch": header.leader_epoch,
        "transactional": header.is_transactional,
        "control": "unreadable" if header.is_control else None,
        "compression": Compression(codec).name.lower() if codec <= _CODECS_MAX else f"unknown-{codec}",
        "timestamp_type": header.timestamp_type.name,
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "delete_horizon": header.has_delete_horizon,
        "crc": f"{header.crc:#010x}",
        "crc_ok": crc_ok,
    }


def _has_checksum(batch: memoryview) -> bool:
    try:
        check_crc32c(batch, read_header(batch))
    except CorruptBatchError:
        return False
    return True


def _damage(what: str, header: BatchHeader, position: int) -> Entry:
    return {"kind": "damage", "position": position, "offset": header.base_offset, "what": what}


def _name(name: str) -> str:
    """A header's name that is not UTF-8 was read with `surrogateescape`, and is to be printed."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
