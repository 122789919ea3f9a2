"""Records that failed: how often, when each is tried again, and when to give up.

Of a partition, records after one that is to be tried again wait. Those before it may have failed for good and not be
done yet: they become dead letters in the next transaction that commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.runtime.backoff import Backoff


class RecordError(FatalError):
    """What is wrong with one record. reason: the same, without where the record is and what to do about it."""

    reason: str


class RecordFailedError(FatalError):
    """A record failed as often as `run` may try, in the handler or a deserializer; there is no topic for dead letters.

    record: as it is in the log. What is before it is committed; the next run begins with it.
    """

    def __init__(self, record: Record, attempts: int, reason: str) -> None:
        place = f"{record.topic}-{record.partition}@{record.offset}"
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(
            f"record {place} failed {times}: {reason}; fix the program and run again, or give run() a "
            "dead_letter_topic for such records. What is before the record is committed",
            ErrorCode.INVALID_RECORD,
        )
        self.record = record
        self.attempts = attempts
        self._reason = reason

    def __reduce__(self) -> Any:
        return type(self), (self.record, self.attempts, self._reason)


@dataclass(slots=True)
class Failure:
    """A record that failed.

    due:      when it is tried again, in seconds of the client's monotonic clock.
    is_final: it is not tried again.
    """

    attempts: int
    due: float
    reason: str
    is_final: bool


class Failures:
    """The failures of a run, by the offsets of the records."""

    def __init__(self, retries: int, backoff: Backoff) -> None:
        self._retries = retries
        self._backoff = backoff
        self._failures: dict[TopicPartition, dict[int, Failure]] = {}

    def of(self, tp: TopicPartition, offset: int) -> Failure | None:
        """Return the failure of the record at `offset`; None where it has not failed."""
        return self._failures.get(tp, {}).get(offset)

    def note(self, tp: TopicPartition, offset: int, error: BaseException, now: float) -> Failure:
        """Count a failure, and return it."""
        known = self.of(tp, offset)
        attempts = 1 if known is None else known.attempts + 1
        is_final = attempts > self._retries
        due = now if is_final else now + self._backoff.jittered_s(attempts)
        failure = Failure(attempts, due, _reason(error), is_final)
        self._failures.setdefault(tp, {})[offset] = failure
        return failure

    def give_up(self, tp: TopicPartition, offset: int, error: BaseException, now: float) -> None:
        """Count a failure that would be the same at every attempt."""
        failure = self.note(tp, offset, error, now)
        failure.is_final, failure.due = True, now

    def forget(self, tp: TopicPartition, offset: int) -> None:
        """The records up to `offset` are done."""
        left = {at: failure for at, failure in self._failures.get(tp, {}).items() if at > offset}
        if left:
            self._failures[tp] = left
        else:
            self._failures.pop(tp, None)

    def due_at(self, tp: TopicPartition) -> float | None:
        """Return when the first of a partition's records that failed is tried again; None where none has."""
        failures = self._failures.get(tp)
        return None if failures is None else failures[min(failures)].due


def _reason(error: BaseException) -> str:
    """Return what an error says in text that can be written anywhere, also where it can't say it."""
    kind = type(error).__name__
    try:
        said = error.reason if isinstance(error, RecordError) else f"{kind}: {error}"
        return said.encode(errors="backslashreplace").decode()
    except Exception as failed:
        return f"{kind}, whose message can't be read ({type(failed).__name__})"
