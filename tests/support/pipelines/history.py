"""Judges what clients saw of a run, the way Jepsen's queue workload does: by unique values, and nothing else.

A run writes down every transaction that a worker tried (which values it sent where, which source offsets they came
from, and what it was told of the outcome) and every read. `check` looks for what must never be (E1):

    lost          a value of a transaction that was answered as committed is not in the log
    duplicated    a value stands in the log more than once
    aborted-read  a reader saw a value of a transaction that was answered as aborted
    torn          a transaction is there in part
    phantom       a reader saw a value that nobody sent
    reordered     two values of one worker stand in a partition in another order than it sent them
    inconsistent  two readers saw different values at the same offset
    skipped       a reader jumped over a value that is in the log
    backwards     a reader's offsets went back without a seek
    unread        a source offset was transformed by no committed transaction
    twice         a source offset was transformed by more than one
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path


class Outcome(StrEnum):
    """What the worker was told. UNKNOWN: it died, or the answer was lost; either may have happened."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Send:
    """A value sent to a partition, and the source position it was made from, if any."""

    topic: str
    partition: int
    value: str
    source: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """is_ordered: whether one thread sent everything. Writers of a shared transaction send side by side."""

    worker: str
    sends: tuple[Send, ...]
    outcome: Outcome
    is_ordered: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """A run of records that one reader saw of one partition without a seek, in the order it saw them."""

    reader: str
    topic: str
    partition: int
    records: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class History:
    transactions: list[Transaction] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    source_end_offsets: dict[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def check(history: History) -> list[Anomaly]:
    """Return everything in the history that exactly-once forbids; nothing where it held."""
    log = _merge(history.reads)
    return [
        *_inconsistent(history.reads),
        *_reader_order(history.reads, log),
        *_presence(history, log),
        *_send_order(history, log),
        *_sources(history, log),
    ]


class HistoryWriter:
    """Appends a worker's transactions to a file, a line each, so that a killed worker leaves what it knew.

    An intent is written before the transaction begins to commit, the outcome after: an intent alone reads as UNKNOWN.
    """

    def __init__(self, path: Path, worker: str) -> None:
        self._file = path.open("a", buffering=1)
        self._worker = worker
        self._count = 0

    def intend(self, sends: Sequence[Send]) -> int:
        self._count += 1
        self._write({"id": self._count, "worker": self._worker, "sends": [_send_row(send) for send in sends]})
        return self._count

    def settle(self, number: int, outcome: Outcome) -> None:
        self._write({"id": number, "worker": self._worker, "outcome": outcome.value})

    def close(self) -> None:
        self._file.close()

    def _write(self, row: Mapping[str, object]) -> None:
        self._file.write(json.dumps(row) + "\n")


def load_transactions(paths: Iterable[Path]) -> list[Transaction]:
    """Read the files of `HistoryWriter`s. A last line that a kill cut short is left out."""
    sends: dict[tuple[str, str, int], tuple[Send, ...]] = {}
    outcomes: dict[tuple[str, str, int], Outcome] = {}
    for path in sorted(paths):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            key = (path.name, row["worker"], row["id"])
            if "sends" in row:
                sends[key] = tuple(
                    Send(topic, partition, value, tuple(source) if source else None)  # type: ignore[arg-type]
                    for topic, partition, value, source in row["sends"]
                )
            else:
                outcomes[key] = Outcome(row["outcome"])
    return [Transaction(key[1], what, outcomes.get(key, Outcome.UNKNOWN)) for key, what in sends.items()]


def _send_row(send: Send) -> list[object]:
    return [send.topic, send.partition, send.value, list(send.source) if send.source else None]


def _merge(reads: Iterable[Read]) -> dict[Partition, dict[int, str]]:
    log: dict[Partition, dict[int, str]] = defaultdict(dict)
    for read in reads:
        for offset, value in read.records:
            log[read.topic, read.partition].setdefault(offset, value)
    return {partition: dict(sorted(records.items())) for partition, records in log.items()}


def _inconsistent(reads: Iterable[Read]) -> Iterator[Anomaly]:
    seen: dict[tuple[str, int, int], tuple[str, str]] = {}
    for read in reads:
        for offset, value in read.records:
            reader, first = seen.setdefault((read.topic, read.partition, offset), (read.reader, value))
            if first != value:
                yield Anomaly(
                    "inconsistent",
                    f"{read.topic}-{read.partition}@{offset} is {first!r} to {reader} and {value!r} to {read.reader}",
                )


def _reader_order(reads: Iterable[Read], log: Mapping[Partition, Mapping[int, str]]) -> Iterator[Anomaly]:
    for read in reads:
        place = f"{read.topic}-{read.partition}"
        offsets = [offset for offset, _ in read.records]
        for before, after in pairwise(offsets):
            if after <= before:
                yield Anomaly("backwards", f"{read.reader} read {place}@{after} after {before}")
        if offsets:
            known = log[read.topic, read.partition]
            missed = [o for o in known if offsets[0] <= o <= offsets[-1] and o not in set(offsets)]
            if missed:
                yield Anomaly("skipped", f"{read.reader} jumped over {place}@{missed[:5]} ({len(missed)} in all)")


def _presence(history: History, log: Mapping[Partition, Mapping[int, str]]) -> Iterator[Anomaly]:
    places: dict[str, list[str]] = defaultdict(list)
    for (topic, partition), records in log.items():
        for offset, value in records.items():
            places[value].append(f"{topic}-{partition}@{offset}")
    for value, where in places.items():
        if len(where) > 1:
            yield Anomaly("duplicated", f"{value!r} stands at {where[:4]}")
    sent: set[str] = set()
    for transaction in history.transactions:
        values = [send.value for send in transaction.sends]
        sent.update(values)
        there = [value for value in values if value in places]
        missing = [value for value in values if value not in places]
        told = f"a transaction of {transaction.worker} that was answered as {transaction.outcome}"
        if transaction.outcome is Outcome.COMMITTED and missing:
            yield Anomaly("lost", f"{missing[:4]} ({len(missing)} in all) of {told}")
        if transaction.outcome is Outcome.ABORTED and there:
            yield Anomaly("aborted-read", f"{there[:4]} ({len(there)} in all) of {told}")
        if there and missing:
            yield Anomaly("torn", f"{there[:2]} are there, {missing[:2]} are not, of {told}")
    for value, where in places.items():
        if value not in sent:
            yield Anomaly("phantom", f"{value!r} at {where[0]} was never sent")


def _send_order(history: History, log: Mapping[Partition, Mapping[int, str]]) -> Iterator[Anomaly]:
    offsets = {
        (topic, partition, value): offset
        for (topic, partition), records in log.items()
        for offset, value in records.items()
    }
    last: dict[tuple[str, str, int], tuple[int, str]] = {}
    for transaction in history.transactions:
        if not transaction.is_ordered:
            continue
        for send in transaction.sends:
            offset = offsets.get((send.topic, send.partition, send.value))
            if offset is None:
                continue
            lane = (transaction.worker, send.topic, send.partition)
            before = last.get(lane)
            if before is not None and offset < before[0]:
                yield Anomaly(
                    "reordered",
                    f"{transaction.worker} sent {before[1]!r} before {send.value!r} to {send.topic}-{send.partition}, "
                    f"which have offsets {before[0]} and {offset}",
                )
            last[lane] = (offset, send.value)


def _sources(history: History, log: Mapping[Partition, Mapping[int, str]]) -> Iterator[Anomaly]:
    visible = {value: place for place, records in log.items() for value in records.values()}
    transformed: defaultdict[tuple[str, int, int], list[str]] = defaultdict(list)
    for transaction in history.transactions:
        made = {send.source: send.value for send in transaction.sends if send.source and send.value in visible}
        for source, value in made.items():
            transformed[source].append(f"{value!r} of {transaction.worker} ({transaction.outcome})")
    for (topic, partition, offset), made_of in transformed.items():
        if len(made_of) > 1:
            detail = f"{topic}-{partition}@{offset} was transformed by {len(made_of)} transactions"
            yield Anomaly("twice", f"{detail}: {', '.join(made_of)}")
    for (topic, partition), end_offset in history.source_end_offsets.items():
        unread = [offset for offset in range(end_offset) if (topic, partition, offset) not in transformed]
        if unread:
            yield Anomaly("unread", f"{topic}-{partition}@{unread[:5]} ({len(unread)} in all)")
