"""The entries of diskless topics: what was committed and is in no segment yet, in the database and the store."""

from __future__ import annotations

from typing import Final

from semel.broker.diskless.reading import first_expected
from semel.broker.diskless.rows import DisklessRows, Entry, Log
from semel.broker.inspection.findings import Check, Findings, Severity
from semel.broker.tiers.object_store import ObjectMissingError, ObjectStore, ObjectStoreError
from semel.broker.tiers.remote_log import RemoteLog
from semel.protocol.crc32c import crc32c
from semel.protocol.ids import TopicId, TopicPartition

_RESTORE: Final = "restore it from a backup; its records are nowhere else"


class EntriesCheck:
    """One look at all entries, each of which is read."""

    def __init__(self, store: ObjectStore, rows: DisklessRows, findings: Findings) -> None:
        self._store = store
        self._rows = rows
        self._findings = findings
        self.entries = 0
        self.size_bytes = 0

    def object_keys(self) -> set[str]:
        """Return the keys of all objects that are known. Raises `SemelError`."""
        return self._rows.object_keys()

    async def check(self, tp: TopicPartition, topic_id: TopicId, remote: RemoteLog) -> None:
        """Check what a partition has behind its segments. Raises `SemelError` where the rows can't be read."""
        log = self._rows.load((topic_id, tp.partition))
        self._check_order(tp, log, remote)
        for entry in log.entries:
            if wrong := await self._wrong(entry):
                self._add(tp, entry.base_offset, entry.end_offset, wrong)
            self.entries += 1
            self.size_bytes += entry.size_bytes

    def _check_order(self, tp: TopicPartition, log: Log, remote: RemoteLog) -> None:
        follows = first_expected(remote, log.entries)
        for base_offset, end_offset in [
            *((one.base_offset, one.end_offset) for one in log.entries),
            (log.end_offset, log.end_offset),
        ]:
            if base_offset > follows:
                self._add(tp, follows, base_offset, "the database has no entry for them, and the store no segment")
            follows = max(follows, end_offset)

    async def _wrong(self, entry: Entry) -> str:
        data, where = entry.data, "the row"
        if entry.object_key:
            where = f"{entry.object_key} at {entry.position}"
            try:
                data = await self._store.read(entry.object_key, entry.position, entry.size_bytes)
            except ObjectMissingError:
                return f"the object {entry.object_key} is missing"
            except ObjectStoreError as error:
                return f"they can't be read: {error.message}"
        return "" if crc32c(data) == entry.checksum else f"{where} is damaged"

    def _add(self, tp: TopicPartition, begins: int, ends: int, what: str) -> None:
        self._findings.add(
            Severity.ERROR, Check.REMOTE, str(tp), f"offsets {begins} to {ends - 1}: {what}",
            on_start="is not served", command=_RESTORE, offset=begins,
        )  # fmt: skip
