"""Whether `<base>.txnindex` names the transactions that the log itself shows to be aborted (L3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from semel.broker.inspection.index_check import FAULTS_MAX
from semel.broker.log.log_types import AbortedTransaction
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.producer_state import CompletedTransaction
from semel.broker.log.transaction_index import TransactionIndex
from semel.protocol.corruption import CorruptBatchError
from semel.runtime.storage import Storage

ENTRY_BYTES: Final = 34


class AbortCheck:
    """Tell it of each abort marker in order, then `end`, then ask `faults`: what is wrong, and the marker's offset."""

    def __init__(self, storage: Storage, path: str, *, is_exact: bool) -> None:
        """`is_exact`: the replay knows all that was ever written, so that entries must be equal in all fields."""
        self.path = path
        self.faults: list[tuple[str, int]] = []
        self._is_exact = is_exact
        self._index = TransactionIndex(storage, path, OpenFiles(1), exists=storage.exists(path))
        self._entries: Iterator[AbortedTransaction] = iter(self._index if self._index.exists else ())
        self._entry = self._following()

    def take(self, producer_id: int, offset: int, completed: CompletedTransaction | None) -> None:
        """An abort marker; `completed` is the transaction that it ends, if any was open here."""
        self._pass_over(offset)
        entry = self._entry
        if entry is not None and entry.last_offset == offset:
            self._entry = self._following()
            if entry.producer_id != producer_id:
                self._fault(f"it names producer {entry.producer_id} for the marker of {producer_id}", offset)
            elif completed is not None and self._is_exact and entry != _expected(completed):
                self._fault(f"it says {tuple(entry)}, and the log {tuple(_expected(completed))}", offset)
        elif completed is not None:
            self._fault(
                f"the transaction of producer {producer_id} from offset {completed.first_offset} on, aborted at offset "
                f"{offset}, is not in it: readers would see its records",
                offset,
            )

    def end(self) -> None:
        """The segment ends here."""
        self._pass_over(None)
        if self._index.exists:
            rest = self._index.file.size() % ENTRY_BYTES
            if rest:
                self._fault(f"it ends within an entry: {rest} bytes follow the last whole one", -1)
        self._index.release_file()

    def _pass_over(self, offset: int | None) -> None:
        """Entries before the marker at `offset` belong to none."""
        while self._entry is not None and (offset is None or self._entry.last_offset < offset):
            producer_id, last_offset = self._entry.producer_id, self._entry.last_offset
            self._fault(
                f"it names an abort of producer {producer_id} at offset {last_offset}: none is there", last_offset
            )
            self._entry = self._following()

    def _following(self) -> AbortedTransaction | None:
        try:
            return next(self._entries, None)
        except CorruptBatchError as error:
            self._entries = iter(())
            self._fault(error.message, -1)
            return None

    def _fault(self, what: str, offset: int) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append((what, offset))


def _expected(completed: CompletedTransaction) -> AbortedTransaction:
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )
