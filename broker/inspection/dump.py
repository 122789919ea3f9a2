"""Reads the files of a data folder, or the objects of a remote storage, entry by entry, as dicts for people and
programs: `semel log dump`.

Bounded in memory however large a file is. Damage is an entry like others: what could be read comes before it, and the
next file after it. Nothing is written, and nothing locked, so a node may run meanwhile.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from semel.broker.inspection.batch_dump import Entry, Progress, batch_entries, log_entries, producer_entries
from semel.broker.inspection.dump_options import DumpOptions
from semel.broker.inspection.file_kinds import FileKind, Place, misplaced, place_of, places_in
from semel.broker.inspection.index_check import read_entries
from semel.broker.inspection.json_values import plain
from semel.broker.inspection.metadata_copy import rows
from semel.broker.inspection.object_dump import is_object, object_entries
from semel.broker.inspection.overlay import OverlayStorage
from semel.broker.inspection.producer_check import read_snapshot
from semel.broker.inspection.remote_objects import RemoteObjects
from semel.broker.log.checkpoints import read_checkpoint
from semel.broker.log.journal_format import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    find_entry_headers,
    read_entry_header,
    read_file_header,
    read_mark,
)
from semel.broker.log.offset_index import OffsetIndex
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.producer_snapshot import CorruptSnapshotError
from semel.broker.log.time_index import TimeIndex
from semel.broker.log.transaction_index import TransactionIndex
from semel.broker.tiers.object_store import ObjectMissingError
from semel.protocol.batch_header import iter_batches, read_header
from semel.protocol.corruption import CorruptBatchError, CorruptDataError
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import format_topic_id
from semel.runtime.storage import Storage, read_whole

_SMALL_BYTES_MAX: Final = 64 << 10
_GONE: Final = "the object has gone meanwhile: a running node has deleted it"


@dataclass(slots=True)
class Dump:
    """Reads what `paths` name. `damaged` counts what could not be read.

    remote: of these objects; then paths are topics, partitions and keys. They stay the caller's to close.
    """

    paths: list[str]
    options: DumpOptions = field(default_factory=DumpOptions)
    progress: Progress | None = None
    remote: RemoteObjects | None = None
    damaged: int = 0
    _storage: OverlayStorage | None = None

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of each file, a `file` entry first; of a selection, those alone that have something of it.

        Raises `UsageError` for a path that is none of ours, and `ObjectStoreError` where objects can't be read.
        """
        try:
            for path in self.paths:
                for place in self._places(path):
                    yield from self._file(place)
        finally:
            self._close()

    def _file(self, place: Place) -> Iterator[Entry]:
        file: Entry = {"kind": "file", "path": place.path, "type": place.kind.value}
        is_named = not self.options.selects
        if is_named:
            yield file
        wrong = misplaced(place.path) if self.remote is None else ""
        if wrong:
            if not is_named:
                yield file
            self.damaged += 1
            yield {"kind": "damage", "position": 0, "what": wrong}
            return
        try:
            for entry in self._read(place):
                if not is_named:
                    yield file
                    is_named = True
                self.damaged += _is_damaged(entry)
                yield entry
        except FileNotFoundError:
            yield {"kind": "note", "what": "the file has gone meanwhile: a running node has removed it"}
        except ObjectMissingError:
            if not is_named:
                yield file
            yield {"kind": "note", "what": _GONE}

    def _storage_of(self, folder: str) -> OverlayStorage:
        """Files of one folder come one after the other."""
        if self._storage is None or self._storage.root != os.path.normpath(folder):
            self._close()
            self._storage = OverlayStorage(folder, depth=1)
        return self._storage

    def _close(self) -> None:
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _places(self, path: str) -> Iterator[Place]:
        if self.remote is not None:
            yield from self.remote.places(path, self.options.partition)
            return
        if os.path.isdir(path) and place_of(path) is None:
            found = False
            for place in places_in(path, self.options.partition):
                found = True
                if self.options.reads(place.kind):
                    yield place
            if not found:
                which = f" of {self.options.partition}" if self.options.partition is not None else ""
                raise UsageError(f"{path} has no files{which} that belong to a node's logs")
            return
        if not os.path.lexists(path):
            if "://" in path:
                raise UsageError(
                    f"{path} is no file: objects of a remote storage are read with --remote URL TOPIC:PARTITION"
                )
            raise UsageError(f"{path} is not there")
        place_found = place_of(path) or self._place_by_content(path)
        if place_found is None:
            raise UsageError(
                f"{path} is no file of a node by its name: give a .log, .index, .timeindex, .txnindex, .snapshot or "
                ".journal file, a checkpoint, metadata.sqlite, an object of a remote storage, or a directory with them"
            )
        yield place_found

    def _place_by_content(self, path: str) -> Place | None:
        """Return an object that has another name since it was downloaded."""
        if misplaced(path):
            return None
        file = self._storage_of(os.path.dirname(path) or ".").open(path)
        try:
            return Place(path, FileKind.OBJECT, None, -1) if is_object(file) else None
        finally:
            file.close()

    def _read(self, place: Place) -> Iterator[Entry]:
        if self.remote is not None:
            return object_entries(self.remote.open(place), place, self.options, self.progress)
        storage = self._storage_of(os.path.dirname(place.path) or ".")
        match place.kind:
            case FileKind.LOG:
                return log_entries(storage, place, self.options, self.progress)
            case FileKind.OFFSET_INDEX:
                return self._index(storage, place, OffsetIndex.ENTRY)
            case FileKind.TIME_INDEX:
                return self._index(storage, place, TimeIndex.ENTRY)
            case FileKind.TRANSACTION_INDEX:
                return self._transactions(storage, place)
            case FileKind.SNAPSHOT:
                return self._snapshot(storage, place)
            case FileKind.CHECKPOINT:
                return self._checkpoint(storage, place)
            case FileKind.PROPERTIES:
                return self._properties(storage, place)
            case FileKind.JOURNAL:
                return self._journal(storage, place)
            case FileKind.METADATA:
                return self._metadata(place)
            case FileKind.OBJECT:
                return self._object(storage, place)

    # --- Indexes and snapshots ----------------------------------------------------------------------------------------

    def _index(self, storage: Storage, place: Place, layout: Any) -> Iterator[Entry]:
        found, fault = read_entries(storage, place.path, layout)
        for number, (first, second) in enumerate(found):
            entry: Entry = {"kind": "index-entry", "number": number}
            if place.kind is FileKind.OFFSET_INDEX:
                entry |= {"offset": place.base_offset + first, "position": second}
            else:
                entry |= {"timestamp_ms": first, "offset": place.base_offset + second}
            if self.options.has_offsets(entry["offset"], entry["offset"]):
                yield entry
        if fault is not None:
            yield {"kind": "damage", "position": len(found) * layout.size, "what": fault}

    def _transactions(self, storage: Storage, place: Place) -> Iterator[Entry]:
        index = TransactionIndex(storage, place.path, OpenFiles(1), exists=True)
        try:
            for found in index:
                if self.options.has_producer(found.producer_id) and self.options.has_offsets(
                    found.first_offset, found.last_offset
                ):
                    yield {"kind": "aborted-transaction", **plain(found)}
            rest = index.file.size() % 34
            if rest:
                yield {
                    "kind": "damage",
                    "position": index.file.size() - rest,
                    "what": f"{rest} bytes of an entry follow",
                }
        except CorruptBatchError as error:
            yield {"kind": "damage", "position": -1, "what": error.message}
        finally:
            index.release_file()

    def _snapshot(self, storage: Storage, place: Place) -> Iterator[Entry]:
        try:
            entries = read_snapshot(storage, place.path, now_ms=-1)
        except CorruptSnapshotError as error:
            yield {"kind": "damage", "position": 0, "what": str(error)}
            return
        yield from producer_entries(entries, self.options)

    def _object(self, storage: Storage, place: Place) -> Iterator[Entry]:
        file = storage.open(place.path)
        try:
            yield from object_entries(file, place, self.options, self.progress)
        finally:
            file.close()

    # --- Small files --------------------------------------------------------------------------------------------------

    def _checkpoint(self, storage: Storage, place: Place) -> Iterator[Entry]:
        try:
            for words in read_checkpoint(storage, place.path):
                yield {"kind": "checkpoint-entry", **_checkpoint_fields(place, words)}
        except SemelError as error:
            yield {"kind": "damage", "position": -1, "what": error.message}

    def _properties(self, storage: Storage, place: Place) -> Iterator[Entry]:
        try:
            text = read_whole(storage, place.path, size_bytes_max=_SMALL_BYTES_MAX).decode()
        except ValueError as error:
            yield {"kind": "damage", "position": -1, "what": str(error)}
            return
        for line in text.splitlines():
            yield {"kind": "line", "text": line}

    def _metadata(self, place: Place) -> Iterator[Entry]:
        try:
            for row in rows(place.path):
                yield {"kind": f"metadata-{row.table}", **_parsed(row.values)}
        except sqlite3.DatabaseError as error:
            yield {"kind": "damage", "position": -1, "what": f"SQLite can't read it: {error}"}

    # --- The journal --------------------------------------------------------------------------------------------------

    def _journal(self, storage: Storage, place: Place) -> Iterator[Entry]:
        file = storage.open(place.path)
        try:
            size = file.size()
            head = read_file_header(file.read_at(FILE_HEADER_BYTES, 0))
            if head is None:
                yield {
                    "kind": "damage",
                    "position": 0,
                    "what": "no whole file header: a power cut came while it was made",
                }
                return
            base, sequence = head
            yield {"kind": "journal-file", "base_position": base, "first_sequence": sequence, "size_bytes": size}
            position = FILE_HEADER_BYTES
            mark = read_mark(file)
            while position < size:
                found = read_entry_header(file.read_at(ENTRY_HEADER_BYTES, position))
                room = size - position - ENTRY_HEADER_BYTES
                if found is None or (found.sequence, found.mark) != (sequence, mark) or found.length > room:
                    if any(find_entry_headers(file, position, sequence)):
                        what = f"no whole entry {sequence} here, and later ones behind it: a torn tail, or damage"
                        yield {"kind": "damage", "position": position, "what": what}
                    else:
                        left = f"{size - position} bytes of a former use of the file, or of a write that a crash cut"
                        yield {"kind": "note", "position": position, "what": f"the entries end here; behind are {left}"}
                    break
                payload = file.read_at(found.length, position + ENTRY_HEADER_BYTES)
                yield {
                    "kind": "journal-entry",
                    "position": position,
                    "sequence": sequence,
                    "type": found.type.name,
                    "topic_id": format_topic_id(found.topic_id),
                    "partition": found.partition,
                    "base_offset": found.base_offset,
                    "durable_position": found.durable_position,
                    "payload_bytes": found.length,
                    "crc_ok": crc32c(payload) == found.payload_checksum,
                }
                if crc32c(payload) != found.payload_checksum:
                    yield {"kind": "damage", "position": position, "what": "the checksum of the payload is wrong"}
                    break
                at = position + ENTRY_HEADER_BYTES
                try:
                    for header in iter_batches(payload):
                        batch = memoryview(payload)[header.position : header.position + header.size_bytes]
                        yield from batch_entries(self.options, None, at + header.position, read_header(batch), batch)
                except CorruptBatchError as error:
                    yield {"kind": "damage", "position": at, "what": error.message}
                position += ENTRY_HEADER_BYTES + found.length
                sequence += 1
        finally:
            file.close()


def _is_damaged(entry: Entry) -> bool:
    return entry["kind"] == "damage" or "damage" in entry or entry.get("crc_ok") is False


def _parsed(values: dict[str, Any]) -> Entry:
    """Payloads are JSON, unless they are damaged."""
    try:
        return values | {"payload": json.loads(values["payload"])} if "payload" in values else values
    except ValueError:
        return values


def _checkpoint_fields(place: Place, words: list[str]) -> Entry:
    name = os.path.basename(place.path)
    if len(words) == 3:
        names = ("topic", "partition", "offset")
    elif len(words) == 2 and name.startswith("leader-epoch"):
        names = ("leader_epoch", "start_offset")  # type: ignore[assignment]
    elif len(words) == 2:
        names = ("base_offset", "checksum")  # type: ignore[assignment]
    else:
        raise CorruptDataError(f"an entry is {' '.join(words)!r}")
    fields: Entry = dict(zip(names, words, strict=True))
    return {
        key: int(value) if key != "topic" and value.lstrip("-").isdecimal() else value for key, value in fields.items()
    }
