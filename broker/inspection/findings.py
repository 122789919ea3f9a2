"""What is wrong with a data folder, how bad that is, what a start would do about it, and what somebody should do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

FINDINGS_OF_A_KIND_MAX: Final = 20
"""So many findings of one kind in one file are told one by one; the others are counted."""


class Severity(Enum):
    """How bad a finding is. From WARNING on the folder does not count as whole."""

    NOTE = "note"
    """Worth knowing: nothing is wrong. What a crash left unfinished, and a start brings to its end, is no more."""
    WARNING = "warning"
    """Something is not as a stop or a crash leaves it, and no record is lost: a start fixes it, or it can stay."""
    ERROR = "error"
    """Records are lost or can't be read, a rule is broken, or a node refuses to start."""


class Check(Enum):
    """What was looked at, for programs that read the findings."""

    START = "start"
    METADATA = "metadata"
    FOLDERS = "folders"
    CHECKPOINTS = "checkpoints"
    JOURNAL = "journal"
    BATCHES = "batches"
    OFFSETS = "offsets"
    OFFSET_INDEX = "offset-index"
    TIME_INDEX = "time-index"
    TRANSACTION_INDEX = "transaction-index"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    LEADER_EPOCHS = "leader-epochs"
    TRANSACTIONS = "transactions"
    COORDINATOR = "coordinator"
    GROUP_OFFSETS = "group-offsets"
    LEFTOVERS = "leftovers"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing. `path` is relative to the data folder; `offset` and `position` are -1 where they mean nothing.

    on_start: what a start of the node would do about it.
    command:  what to do or type next; empty where nothing need be done.
    """

    severity: Severity
    check: Check
    path: str
    what: str
    on_start: str = ""
    command: str = ""
    offset: int = -1
    position: int = -1


@dataclass(slots=True)
class Findings:
    """Gathers findings, a bounded number of each kind."""

    found: list[Finding] = field(default_factory=list)
    more: Counter[tuple[Severity, Check, str]] = field(default_factory=Counter)
    """Those that are only counted."""
    _seen: Counter[tuple[Severity, Check, str]] = field(default_factory=Counter)

    def add(
        self,
        severity: Severity,
        check: Check,
        path: str,
        what: str,
        *,
        on_start: str = "",
        command: str = "",
        offset: int = -1,
        position: int = -1,
    ) -> None:
        kind = (severity, check, path)
        self._seen[kind] += 1
        if self._seen[kind] > FINDINGS_OF_A_KIND_MAX:
            self.more[kind] += 1
        else:
            self.found.append(Finding(severity, check, path, what, on_start, command, offset, position))

    def __iter__(self) -> Iterator[Finding]:
        """The worst first, else in the order they were found."""
        order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
        return iter(sorted(self.found, key=lambda one: order.index(one.severity)))

    def count(self, severity: Severity) -> int:
        return sum(1 for one in self.found if one.severity is severity) + sum(
            number for (kind, _, _), number in self.more.items() if kind is severity
        )

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.count(Severity.WARNING) and not self.count(Severity.ERROR)
