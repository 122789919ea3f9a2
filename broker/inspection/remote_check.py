"""What the remote storage of a cluster holds, compared with the rows that say what it should hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from semel.broker.diskless.rows import DisklessRows
from semel.broker.inspection.entries_check import EntriesCheck
from semel.broker.inspection.findings import Check, Findings, Severity
from semel.broker.inspection.metadata_copy import copied
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.store import sqlite_url
from semel.broker.tiers.object_store import ObjectMissingError, ObjectStore, ObjectStoreError, open_store
from semel.broker.tiers.remote_log import RemoteLog, RemoteSegment
from semel.broker.tiers.rows import RemoteRows
from semel.broker.tiers.segment_object import (
    DESCRIPTION_BYTES_MAX,
    CorruptObjectError,
    SegmentIndex,
    read_description,
)
from semel.protocol.batch_header import leading_batches
from semel.protocol.ids import TopicPartition

_TIMEOUT_MS: Final = 30_000
_PIECE_BYTES: Final = 8 << 20
_BATCH_BYTES_MAX: Final = 256 << 20
_RESTORE: Final = "restore it from a backup of the store; its records are nowhere else once they have left the disks"


def check_remote(
    remote_storage: str,
    metadata_url: str,
    metadata_file: str,
    image: MetadataImage,
    findings: Findings,
    progress: Callable[[str, int, int], None],
) -> RemoteReport:
    """Check all that a cluster has in its remote storage.

    metadata_url: of the rows; empty: they are in `metadata_file`, which is not changed
    Raises `ConfigError` for a URL that can't work, and `SemelError` where the rows can't be read.
    """
    store = open_store(remote_storage, timeout_ms=_TIMEOUT_MS, creates=False)
    with ExitStack() as stack:
        url = metadata_url or sqlite_url(stack.enter_context(copied(metadata_file)))
        rows, diskless = RemoteRows(url), DisklessRows(url)
        for part in (rows, diskless, store):
            stack.callback(part.close)
        entries = EntriesCheck(store, diskless, findings)
        return RemoteCheck(store, rows, entries, image, findings, progress).run()


@dataclass(slots=True)
class RemoteReport:
    """What was looked at."""

    segments: int = 0
    entries: int = 0
    """Of diskless topics: what is in no segment yet."""
    records: int = 0
    size_bytes: int = 0


class RemoteCheck:
    """One look at all of a cluster's segments. Every batch of each is read."""

    def __init__(
        self,
        store: ObjectStore,
        rows: RemoteRows,
        entries: EntriesCheck,
        image: MetadataImage,
        findings: Findings,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._store = store
        self._rows = rows
        self._entries = entries
        self._image = image
        self._findings = findings
        self._progress = progress
        self._report = RemoteReport()
        self._sizes: dict[str, int] = {}

    def run(self) -> RemoteReport:
        """Look. Raises `SemelError` where the rows can't be read."""
        self._rows.create()  # a copy, or what a node with this storage made before
        asyncio.run(self._run())
        return self._report

    async def _run(self) -> None:
        known = (
            self._rows.object_keys() | self._entries.object_keys()
        )  # before the list: who copies notes the key first
        await self._list(known)
        logs: dict[TopicPartition, RemoteLog] = {}
        for topic in self._image.topics.values():
            for number, state in enumerate(topic.partitions):
                tp = TopicPartition(topic.name, number)
                log = logs[tp] = self._rows.load((topic.topic_id, number))
                if topic.has_diskless(state):
                    await self._entries.check(tp, topic.topic_id, log)
        self._report.entries = self._entries.entries
        total_bytes = sum(log.size_bytes for log in logs.values())
        for tp, log in logs.items():
            self._check_rows(tp, log)
            for segment in log.segments:
                self._progress(f"reading {segment.key}", self._report.size_bytes, total_bytes)
                try:
                    await self._check_segment(segment)
                except ObjectMissingError:
                    self._add(Severity.ERROR, segment, "the object is missing")
                except ObjectStoreError as error:
                    self._add(Severity.ERROR, segment, f"it can't be read: {error.message}")
                except CorruptObjectError as error:
                    self._add(Severity.ERROR, segment, f"it is damaged: {error}")
                self._report.segments += 1
                self._report.size_bytes += segment.size_bytes

    def _check_rows(self, tp: TopicPartition, log: RemoteLog) -> None:
        needed = [one for one in log.segments if one.end_offset > log.start_offset]  # the last one may stay besides
        follows = needed[0].start_offset if needed else log.first_offset
        for segment in needed:
            if segment.start_offset != follows:
                what = f"it begins at {segment.start_offset}, and the one before ends at {follows}"
                self._add(Severity.ERROR, segment, what)
            follows = segment.end_offset
        if needed and follows != log.end_offset:
            self._findings.add(
                Severity.ERROR, Check.REMOTE, str(tp),
                f"its last segment ends at {follows}, and the remote storage should have all up to {log.end_offset}",
                on_start="refuses to read what is missing", command=_RESTORE,
            )  # fmt: skip
        if log.segments and log.first_offset > log.start_offset:
            self._findings.add(
                Severity.ERROR, Check.REMOTE, str(tp),
                f"the log begins at {log.start_offset}, and its first segment at {log.first_offset}",
                on_start="refuses to read what is missing", command=_RESTORE,
            )  # fmt: skip

    async def _check_segment(self, segment: RemoteSegment) -> None:
        begins = segment.index.position
        tail = await self._store.read(segment.key, begins, segment.index.size_bytes + segment.aborted.size_bytes)
        SegmentIndex(segment, tail[: segment.index.size_bytes], tail[segment.index.size_bytes :])
        await self._check_description(segment)
        position, follows, size_bytes = 0, segment.base_offset, _PIECE_BYTES
        while position < segment.size_bytes:
            data = await self._store.read(segment.key, position, min(size_bytes, segment.size_bytes - position))
            headers = leading_batches(data)
            if not headers:
                if size_bytes >= min(segment.size_bytes - position, _BATCH_BYTES_MAX):
                    raise CorruptObjectError(f"the batch at position {position} is not right")
                size_bytes = min(2 * size_bytes, _BATCH_BYTES_MAX)
                continue
            for header in headers:
                if header.base_offset < follows or header.next_offset > segment.end_offset:
                    raise CorruptObjectError(
                        f"a batch has the offsets {header.base_offset} to {header.last_offset}, where {follows} to "
                        f"{segment.end_offset - 1} belong"
                    )
                follows = header.next_offset
                self._report.records += header.record_count
            position += headers[-1].position + headers[-1].size_bytes
            size_bytes = _PIECE_BYTES

    async def _check_description(self, segment: RemoteSegment) -> None:
        if segment.key not in self._sizes:
            return  # the store could not list it, and the findings say so
        begins = segment.producers.position + segment.producers.size_bytes
        size_bytes = self._sizes[segment.key] - begins
        if not 0 < size_bytes <= DESCRIPTION_BYTES_MAX:
            raise CorruptObjectError(f"it has {size_bytes} bytes of a description")
        said = read_description(await self._store.read(segment.key, begins, size_bytes))
        for name in ("segment_id", "base_offset", "end_offset", "size_bytes"):
            if said.get(name) != getattr(segment, name):
                raise CorruptObjectError(f"it says {name}={said.get(name)}, and its row {getattr(segment, name)}")

    async def _list(self, known: set[str]) -> None:
        """Learn how large all objects are, and which of them nobody needs."""
        try:
            async for key, size_bytes in self._store.list(f"{self._image.cluster_id}/"):
                self._sizes[key] = size_bytes
                if key not in known:
                    self._findings.add(
                        Severity.NOTE, Check.REMOTE, key,
                        f"nothing needs this object of {size_bytes:,} bytes: the node that wrote it ended before it "
                        "could note it, or delete it",
                        command="delete it in the store",
                    )  # fmt: skip
        except ObjectStoreError as error:
            self._findings.add(Severity.WARNING, Check.REMOTE, self._store.location, error.message)

    def _add(self, severity: Severity, segment: RemoteSegment, what: str) -> None:
        self._findings.add(
            severity, Check.REMOTE, segment.key,
            f"offsets {segment.start_offset} to {segment.end_offset - 1}: {what}",
            on_start="refuses to read them", command=_RESTORE, offset=segment.start_offset,
        )  # fmt: skip
