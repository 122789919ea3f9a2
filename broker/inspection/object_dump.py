"""Objects of a remote storage (`tiers/segment_object.py`), as a dump shows them: what each says of itself, its batches,
and what lies behind these.

Damage is an entry like others. Without its description, which says where its parts are, an object's batches are shown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from semel.broker.inspection.batch_dump import Entry, Progress, batches_between, producer_entries
from semel.broker.inspection.dump_options import DumpOptions
from semel.broker.inspection.file_kinds import FileKind, Place
from semel.broker.inspection.json_values import plain
from semel.broker.log.log_types import AbortedTransaction
from semel.broker.log.producer_snapshot import CorruptSnapshotError, decode_snapshot
from semel.broker.tiers.remote_log import Piece
from semel.broker.tiers.segment_object import (
    ABORTED_ENTRY,
    DESCRIPTION_BYTES_MAX,
    DESCRIPTION_VERSION,
    INDEX_ENTRY,
    MAGIC,
    CorruptObjectError,
    description_bytes,
    read_description,
)
from semel.protocol.crc32c import crc32c
from semel.protocol.ids import TopicPartition
from semel.runtime.storage import ReadableFile

_TAIL_BYTES: Final = 64 << 10
_PIECE_BYTES_MAX: Final = 256 << 20
_PIECES: Final = ("index", "aborted", "producers")
_NAMED: Final = {"aborted": "list of aborted transactions", "producers": "snapshot of producers"}


@dataclass(frozen=True, slots=True)
class _Layout:
    """What an object says of itself: `fields` are for people, the rest is where its parts are."""

    fields: dict[str, Any]
    tp: TopicPartition
    base_offset: int
    end_offset: int
    size_bytes: int
    pieces: dict[str, Piece]


def is_object(file: ReadableFile) -> bool:
    """Say whether a file ends as an object does."""
    size = file.size()
    return size >= len(MAGIC) and file.read_at(len(MAGIC), size - len(MAGIC)) == MAGIC


def object_entries(
    file: ReadableFile, place: Place, options: DumpOptions, progress: Progress | None
) -> Iterator[Entry]:
    """Yield what is in an object, as far as it is asked for. One whose name has other offsets alone is not read."""
    if place.end_offset >= 0 and not options.has_offsets(place.base_offset, place.end_offset - 1):
        return
    size = file.size()
    try:
        layout = _layout(file, size)
    except CorruptObjectError as error:
        yield {"kind": "damage", "position": max(0, size - len(MAGIC)), "what": str(error)}
        yield from _undescribed(file, size, place, options, progress)
        return
    place = replace(place, tp=place.tp or layout.tp)
    if not options.selects:
        yield {"kind": "object", **layout.fields}
    if place.end_offset >= 0 and (place.base_offset, place.end_offset) != (layout.base_offset, layout.end_offset):
        yield {
            "kind": "damage", "position": -1,
            "what": f"by its name it has the offsets from {place.base_offset} to below {place.end_offset}, and it says "
            f"that it has those from {layout.base_offset} to below {layout.end_offset}",
        }  # fmt: skip
    begin = _begin_at(file, layout, options)
    yield from batches_between(file, begin, layout.size_bytes, layout.base_offset, place, options, progress)
    if options.reads(FileKind.OFFSET_INDEX):
        yield from _index(file, layout.pieces["index"], options)
    if options.reads(FileKind.TRANSACTION_INDEX):
        yield from _aborted(file, layout.pieces["aborted"], options)
    if options.reads(FileKind.SNAPSHOT):
        yield from _producers(file, layout.pieces["producers"], options)


def _undescribed(
    file: ReadableFile, size: int, place: Place, options: DumpOptions, progress: Progress | None
) -> Iterator[Entry]:
    """Yield the batches: they end where the object's name says."""
    end_offset = place.end_offset if place.end_offset >= 0 else None
    first_offset = max(0, place.base_offset)
    end = yield from batches_between(file, 0, size, first_offset, place, options, progress, end_offset=end_offset)
    if end < size and (options.last_offset is None or end_offset is None or options.last_offset >= end_offset):
        yield {
            "kind": "note", "position": end,
            "what": f"{size - end} bytes follow the batches: only the description tells what they are",
        }  # fmt: skip


def _layout(file: ReadableFile, size: int) -> _Layout:
    """Return what an object says of itself. Raises `CorruptObjectError`, also for what can't be."""
    tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    wanted = description_bytes(tail)
    if not 0 < wanted <= min(size, DESCRIPTION_BYTES_MAX):
        raise CorruptObjectError(f"its description would have {wanted} bytes of the {size} that there are")
    described_at = size - wanted
    said = read_description(tail if wanted <= len(tail) else file.read_at(wanted, described_at))
    try:
        numbers = {name: int(said[name]) for name in ("partition", "base_offset", "end_offset", "size_bytes")}
        pieces = {name: Piece(*map(int, said[name])) for name in _PIECES}
        tp = TopicPartition(str(said["topic"]), numbers["partition"])
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptObjectError(f"its description lacks what is needed to read it: {error!r}") from error
    follows = numbers["size_bytes"]
    for name, piece in pieces.items():
        if piece.position != follows or piece.size_bytes < 0:
            raise CorruptObjectError(f"by its description its {_name(name)} lies at {piece.position}, not at {follows}")
        follows += piece.size_bytes
    if follows != described_at:
        raise CorruptObjectError(
            f"by its description the parts before it have {follows} bytes, and there are {described_at}"
        )
    fields = {name: value for name, value in said.items() if name not in _PIECES}
    fields |= {f"{name}_bytes": piece.size_bytes for name, piece in pieces.items()}
    if said.get("version") != DESCRIPTION_VERSION:
        fields["note"] = f"of another version than this program's {DESCRIPTION_VERSION}"
    return _Layout(fields, tp, numbers["base_offset"], numbers["end_offset"], numbers["size_bytes"], pieces)


def _begin_at(file: ReadableFile, layout: _Layout, options: DumpOptions) -> int:
    """Return from which position to read for the first offset. A damaged index is named where it is shown."""
    begin = 0
    if options.first_offset is not None and options.first_offset > layout.base_offset:
        data, fault = _piece(file, "index", layout.pieces["index"])
        if not fault:
            for offset, position, _ in _unpacked(INDEX_ENTRY, data):
                if offset > options.first_offset:
                    break
                begin = position
    return begin


def _index(file: ReadableFile, piece: Piece, options: DumpOptions) -> Iterator[Entry]:
    data, fault = _piece(file, "index", piece)
    yield from fault
    for number, (offset, position, timestamp_ms) in enumerate(_unpacked(INDEX_ENTRY, data)):
        if options.has_offsets(offset, offset):
            yield {
                "kind": "index-entry", "number": number, "offset": offset, "position": position,
                "timestamp_ms_before": timestamp_ms,
            }  # fmt: skip


def _aborted(file: ReadableFile, piece: Piece, options: DumpOptions) -> Iterator[Entry]:
    data, fault = _piece(file, "aborted", piece)
    yield from fault
    for found in map(AbortedTransaction._make, _unpacked(ABORTED_ENTRY, data)):
        if options.has_producer(found.producer_id) and options.has_offsets(found.first_offset, found.last_offset):
            yield {"kind": "aborted-transaction", **plain(found)}


def _producers(file: ReadableFile, piece: Piece, options: DumpOptions) -> Iterator[Entry]:
    data, fault = _piece(file, "producers", piece)
    yield from fault
    if not data:
        return  # there was no snapshot when it was written
    try:
        found = decode_snapshot(data, now_ms=-1)
    except CorruptSnapshotError as error:
        yield {"kind": "damage", "position": piece.position, "what": f"its {_name('producers')}: {error}"}
        return
    yield from producer_entries(found, options)


def _piece(file: ReadableFile, name: str, piece: Piece) -> tuple[bytes, list[Entry]]:
    """Return the bytes of a part, and what is wrong with it; then none of them are to be believed."""
    if piece.size_bytes > _PIECE_BYTES_MAX:
        what = f"its {_name(name)} would have {piece.size_bytes} bytes, and is not read"
        return b"", [{"kind": "damage", "position": piece.position, "what": what}]
    data = file.read_at(piece.size_bytes, piece.position)
    if crc32c(data) != piece.checksum:
        what = f"the checksum of its {_name(name)} is wrong: what the {piece.size_bytes} bytes say is not shown"
        return b"", [{"kind": "damage", "position": piece.position, "what": what}]
    return data, []


def _unpacked(entry: struct.Struct, data: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield the whole entries: what was written has no others."""
    return entry.iter_unpack(data[: len(data) // entry.size * entry.size])


def _name(piece: str) -> str:
    return _NAMED.get(piece, piece)
