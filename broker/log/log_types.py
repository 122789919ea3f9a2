"""What a partition's log answers: plain data, shared by the log, the partition and the handlers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from semel.protocol.errors import ErrorCode, RetriableError
from semel.runtime.storage import FileRange


class AppendResult(NamedTuple):
    """Where an append went.

    `duplicate`: the batch was there already (P1); offsets and timestamps are the original's and `appended` is empty.
    `log_append_time_ms` is -1 where the producer's timestamps stand. `appended`: the bytes as written, for the journal.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool
    max_timestamp_ms: int
    appended: Sequence[memoryview]


class PartlyAppendedError(RetriableError):
    """A disk took the first of several segments: `result` says what is in the log, and the message why not the rest."""

    def __init__(self, message: str, result: AppendResult) -> None:
        super().__init__(message, ErrorCode.KAFKA_STORAGE_ERROR)
        self.result = result


class AbortedTransaction(NamedTuple):
    """One entry of the transaction index: records of `producer_id` from `first_offset` on are not to be read (L3)."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The abort marker's offset."""
    last_stable_offset: int


class LogRange(NamedTuple):
    """What a read found: whole batches of one segment, or None where there is nothing yet.

    Their file stays readable as long as it is held, even if its segment is deleted meanwhile. `first_offset` is the
    base offset of the first batch (at or below the offset asked for), `next_offset` the offset to read from next.
    `aborted_transactions` is for read_committed alone, and complete for the range (L3): the partition puts it in.
    """

    records: FileRange | None
    first_offset: int
    next_offset: int
    aborted_transactions: Sequence[AbortedTransaction] = ()

    @property
    def size(self) -> int:
        """Bytes of batches."""
        return 0 if self.records is None else self.records.size

    def read(self) -> bytes:
        """Return the batches as bytes."""
        found = self.records
        return b"" if found is None else found.file.read_at(found.size, found.position)


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


Opened: TypeAlias = Mapping[int, TimestampOffset | None]
"""What large batches, by their first offset, had to say to a look-up by time: a record, or none."""
NOTHING_OPENED: Final[Opened] = MappingProxyType({})


class EpochEndOffset(NamedTuple):
    """Where a leader epoch ended (KIP-101): the largest epoch at or below the one asked for, and its end offset."""

    leader_epoch: int
    end_offset: int
