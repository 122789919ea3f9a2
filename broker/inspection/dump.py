"""Reads the files of a data folder entry by entry, as dicts for people and programs: `semel log dump`.

Bounded in memory however large a file is. Damage is an entry like others: what could be read comes before it, and the
next file after it. Nothing is written, and nothing locked, so a node may run meanwhile.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from semel.broker.inspection.index_check import read_entries
from semel.broker.inspection.internal_topics import decode_internal
from semel.broker.inspection.metadata_copy import rows
from semel.broker.inspection.overlay import OverlayStorage
from semel.broker.inspection.places import FileKind, Place, place_of, places_in
from semel.broker.inspection.plain import bytes_field, plain
from semel.broker.inspection.producer_check import read_snapshot
from semel.broker.log.batch_scan import scan_batches
from semel.broker.log.checkpoints import read_checkpoint
from semel.broker.log.journal_format import (
    ENTRY_BYTES_MAX,
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    ForwardReader,
    read_entry_header,
    read_file_header,
)
from semel.broker.log.offset_index import OffsetIndex
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.producer_snapshot import CorruptSnapshotError
from semel.broker.log.segment import INDEX_SUFFIX
from semel.broker.log.time_index import TimeIndex
from semel.broker.log.transaction_index import TransactionIndex
from semel.protocol.batch_header import COMPRESSION_MASK, check_crc32c
from semel.protocol.corruption import CorruptDataError
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition, format_topic_id
from semel.protocol.record_batch import (
    BatchHeader,
    Compression,
    CorruptBatchError,
    Record,
    decode_control,
    decode_records,
    iter_batches,
    read_header,
)
from semel.runtime.storage import Storage, StorageFile, read_whole

Entry = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Told of the file, how far it was read, and its size."""

_PROGRESS_BYTES: Final = 8 << 20
_SMALL_BYTES_MAX: Final = 64 << 10
_CODECS_MAX: Final = 4


class Decoder(StrEnum):
    """What the records' keys and values are."""

    AUTO = "auto"
    """As the topic's name in the folder's says."""
    NONE = "none"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


_WITH_TRANSACTIONS: Final = {FileKind.LOG, FileKind.TRANSACTION_INDEX, FileKind.JOURNAL}
_WITH_PRODUCERS: Final = _WITH_TRANSACTIONS | {FileKind.SNAPSHOT}
_WITH_OFFSETS: Final = _WITH_TRANSACTIONS | {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX}
_DECODED_TOPICS: Final = {Decoder.NONE: "", Decoder.OFFSETS: OFFSETS_TOPIC, Decoder.TRANSACTIONS: TRANSACTIONS_TOPIC}


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to show. Offsets are inclusive; None: no limit.

    producer_id:   batches, snapshot entries and aborted transactions of this one alone
    transactional: batches of transactions alone, markers among them
    partition:     of a data folder, this partition's files alone
    """

    records: bool = False
    first_offset: int | None = None
    last_offset: int | None = None
    producer_id: int | None = None
    transactional: bool = False
    partition: TopicPartition | None = None
    decoder: Decoder = Decoder.AUTO

    @property
    def selects(self) -> bool:
        """Whether not all is asked for."""
        return (
            self.first_offset is not None
            or self.last_offset is not None
            or self.producer_id is not None
            or self.transactional
        )

    def reads(self, kind: FileKind) -> bool:
        """Say whether a file of this kind, found in a folder, can have anything that is asked for."""
        wanted = set(FileKind)
        if self.first_offset is not None or self.last_offset is not None:
            wanted &= _WITH_OFFSETS
        if self.producer_id is not None:
            wanted &= _WITH_PRODUCERS
        if self.transactional:
            wanted &= _WITH_TRANSACTIONS
        return kind in wanted

    def has_offsets(self, first: int, last: int) -> bool:
        return (self.first_offset is None or last >= self.first_offset) and (
            self.last_offset is None or first <= self.last_offset
        )

    def has_producer(self, producer_id: int) -> bool:
        return self.producer_id is None or self.producer_id == producer_id


@dataclass(slots=True)
class Dump:
    """Reads what `paths` name. `damaged` counts what could not be read."""

    paths: list[str]
    options: DumpOptions = field(default_factory=DumpOptions)
    progress: Progress | None = None
    damaged: int = 0
    _storage: OverlayStorage | None = None

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of each file, a `file` entry first; of a selection, those alone that have something of it.

        Raises `UsageError` for a path that is none of ours.
        """
        for path in self.paths:
            for place in self._places(path):
                file: Entry = {"kind": "file", "path": place.path, "type": place.kind.value}
                is_named = not self.options.selects
                if is_named:
                    yield file
                try:
                    for entry in self._read(self._storage_of(os.path.dirname(place.path) or "."), place):
                        if not is_named:
                            yield file
                            is_named = True
                        self.damaged += entry["kind"] == "damage"
                        yield entry
                except FileNotFoundError:
                    yield {"kind": "note", "what": "the file has gone meanwhile: a running node has removed it"}

    def _storage_of(self, folder: str) -> OverlayStorage:
        """Files of one folder come one after the other."""
        if self._storage is None or self._storage.root != os.path.normpath(folder):
            self.close()
            self._storage = OverlayStorage(folder, depth=1)
        return self._storage

    def close(self) -> None:
        """Let go of what is open."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _places(self, path: str) -> Iterator[Place]:
        if os.path.isdir(path):
            found = False
            for place in places_in(path, self.options.partition):
                found = True
                if self.options.reads(place.kind):
                    yield place
            if not found:
                which = f" of {self.options.partition}" if self.options.partition is not None else ""
                raise UsageError(f"{path} has no files{which} that belong to a node's logs")
            return
        if not os.path.exists(path):
            raise UsageError(f"{path} is not there")
        place_found = place_of(path)
        if place_found is None:
            raise UsageError(
                f"{path} is no file of a node by its name: give a .log, .index, .timeindex, .txnindex, .snapshot or "
                ".journal file, a checkpoint, metadata.sqlite, or a folder with them"
            )
        yield place_found

    def _read(self, storage: Storage, place: Place) -> Iterator[Entry]:
        match place.kind:
            case FileKind.LOG:
                return self._log(storage, place)
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

    # --- Batches and records ------------------------------------------------------------------------------------------

    def _log(self, storage: Storage, place: Place) -> Iterator[Entry]:
        file = storage.open(place.path)
        try:
            size = file.size()
            begin = end = told = self._begin_at(storage, place, file)
            try:
                for position, header, batch in scan_batches(file, begin, size):
                    end = position + header.size_bytes
                    if self.options.last_offset is not None and header.base_offset > self.options.last_offset:
                        break
                    if end - told >= _PROGRESS_BYTES:
                        told = end
                        self._tell(place.path, end, size)
                    yield from self._batch(place.tp, position, header, batch)
            except CorruptBatchError as error:
                yield {
                    "kind": "damage", "position": end,
                    "what": f"no whole batch here, and {size - end} bytes are left: {error.message}",
                }  # fmt: skip
            self._tell(place.path, size, size)
        finally:
            file.close()

    def _begin_at(self, storage: Storage, place: Place, file: StorageFile) -> int:
        """Return from which position to read for the first offset. What the index says is not just believed."""
        first = self.options.first_offset
        if first is None or first <= place.base_offset or place.base_offset < 0:
            return 0
        begin = 0
        path = place.path[: -len(".log")] + INDEX_SUFFIX
        for relative, position in read_entries(storage, path, OffsetIndex.ENTRY)[0]:
            if place.base_offset + relative > first:
                break
            begin = position
        try:
            header = read_header(file.read_at(_SMALL_BYTES_MAX, begin))
        except CorruptBatchError:
            return 0
        return begin if header.base_offset <= first else 0

    def _batch(
        self, tp: TopicPartition | None, position: int, header: BatchHeader, batch: memoryview
    ) -> Iterator[Entry]:
        options = self.options
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
        if not crc_ok:
            self.damaged += 1
        if options.records:
            for record in records:
                if options.has_offsets(record.offset, record.offset):
                    yield self._record(tp, record, is_control=header.is_control)
        yield from damage

    def _record(self, tp: TopicPartition | None, record: Record, *, is_control: bool) -> Entry:
        entry: Entry = {"kind": "record", "offset": record.offset, "timestamp_ms": record.timestamp_ms}
        entry |= bytes_field("key", record.key) | bytes_field("value", record.value)
        entry["headers"] = [{"name": _name(name), **bytes_field("value", value)} for name, value in record.headers]
        topic = _DECODED_TOPICS.get(self.options.decoder, "" if tp is None else tp.topic)
        if topic and not is_control:
            try:
                decoded = decode_internal(topic, record.key, record.value)
                if decoded is not None:
                    entry["decoded"] = decoded
            except (SemelError, ValueError) as error:
                self.damaged += 1
                entry["damage"] = f"not a record of {topic}: {error}"
        return entry

    def _tell(self, path: str, done: int, size: int) -> None:
        if self.progress is not None:
            self.progress(path, done, size)

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
        for found in entries:
            if self.options.has_producer(found.producer_id):
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
            position, reader = FILE_HEADER_BYTES, ForwardReader(file)
            while position < size:
                found = read_entry_header(reader.read(ENTRY_HEADER_BYTES, position))
                room = size - position - ENTRY_HEADER_BYTES
                if found is None or found.sequence != sequence or found.length > min(room, ENTRY_BYTES_MAX):
                    what = (
                        f"no whole entry {sequence} here, and {size - position} bytes are left: a torn tail, or damage"
                    )
                    yield {"kind": "damage", "position": position, "what": what}
                    break
                payload = reader.read(found.length, position + ENTRY_HEADER_BYTES)
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
                        yield from self._batch(None, at + header.position, read_header(batch), batch)
                except CorruptBatchError as error:
                    yield {"kind": "damage", "position": at, "what": error.message}
                position += ENTRY_HEADER_BYTES + found.length
                sequence += 1
        finally:
            file.close()


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


def _parsed(values: dict[str, Any]) -> Entry:
    """Payloads are JSON, unless they are damaged."""
    try:
        return values | {"payload": json.loads(values["payload"])} if "payload" in values else values
    except ValueError:
        return values


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
