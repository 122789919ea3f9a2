"""The partitions that should be on this node and are not open: why, since when, and when that is tried again.

One damaged partition never stops the node, and none that had records is ever made again, empty (D1, D3): it stays out,
with a reason, until its directory is as it was, or somebody accepts the loss in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from semel.broker.log.disk_errors import is_misplaced, told_misplaced
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition

RETRY_SECONDS_FIRST: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0


class OfflineKind(Enum):
    """Why a partition is not open."""

    NOT_MADE = "not made"
    """Its files could not be made; nothing was ever in it. Retried."""
    UNREADABLE = "unreadable"
    """The disk refused to open it. Retried."""
    DAMAGED = "damaged"
    """What is in its directory can't be made sense of."""
    VANISHED = "vanished"
    """Its directory had been made, and is gone."""

    @property
    def is_retried(self) -> bool:
        """Whether it may come back on its own, once the disk does."""
        return self in (OfflineKind.NOT_MADE, OfflineKind.UNREADABLE)


@dataclass(slots=True)
class OfflineLog:
    """One of them. `topic_id` is None where its directory does not say whose it is."""

    tp: TopicPartition
    topic_id: TopicId | None
    kind: OfflineKind
    reason: str
    since_ms: int
    leader_epoch: int = 0
    is_clean: bool = True
    """Whether its files, if any, are as a clean stop left them."""
    retry_at: float = math.inf
    """When it is tried again, by the monotonic clock."""
    pause_s: float = field(default=RETRY_SECONDS_FIRST)


class OfflineLogs:
    """All of them, by partition."""

    __slots__ = ("_held", "_logs")

    def __init__(self, held: set[TopicPartition]) -> None:
        """`held` is kept to the partitions that are here, for the checkpoints."""
        self._logs: dict[TopicPartition, OfflineLog] = {}
        self._held = held

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[OfflineLog]:
        return iter(list(self._logs.values()))

    def get(self, tp: TopicPartition) -> OfflineLog | None:
        return self._logs.get(tp)

    def add(self, log: OfflineLog, now: float) -> None:
        """Take one up. One that is tried again and fails again waits longer each time."""
        before = self._logs.get(log.tp)
        if before is not None and before.kind is log.kind:
            log.since_ms = before.since_ms
            log.pause_s = min(before.pause_s * 2, RETRY_SECONDS_MAX)
        if log.kind.is_retried:
            log.retry_at = now + log.pause_s
        self._logs[log.tp] = log
        self._held.add(log.tp)

    def remove(self, tp: TopicPartition) -> None:
        self._logs.pop(tp, None)
        self._held.discard(tp)

    def clear(self) -> None:
        self._logs.clear()
        self._held.clear()

    def due(self, now: float) -> list[OfflineLog]:
        """Return those whose time to be tried again has come."""
        return [log for log in self._logs.values() if log.retry_at <= now]


def kind_of(error: Exception) -> OfflineKind:
    """Say what an error of opening a log means: the disk's are tried again, damage stays.

    A directory, pipe or device in place of a file stays too: somebody put it there, and may need more than one step to
    undo that.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and not is_misplaced(cause):
        return OfflineKind.UNREADABLE
    return OfflineKind.DAMAGED


def message_of(error: Exception) -> str:
    """Return the text of an error, with its kind where it should not have happened."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and is_misplaced(cause) and cause.filename:
        return told_misplaced(cause)
    if isinstance(error, SemelError):
        return error.message
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
