"""What clients tried and were told, kept outside of their processes, so that their death does not lose it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from zlib import crc32

from history import Anomaly, History, Outcome, Read, Send, Transaction, check

from semel.protocol.ids import TopicPartition


@dataclass(slots=True)
class Begins:
    """Where a log whose head is deleted may begin: at `latest` at most, and not before `answered` any more.

    retention_bytes: so much is left where retention takes more
    retention_ms:    and it takes nothing that is younger
    """

    latest: int = 0
    answered: int = 0
    retention_bytes: int | None = None
    retention_ms: int | None = None

    @property
    def has_retention(self) -> bool:
        return self.retention_bytes is not None or self.retention_ms is not None

    def may(self, offset: int) -> None:
        """Somebody asks for what is before `offset` to be deleted."""
        self.latest = max(self.latest, offset)


class Ledger:
    """The history of one world, in the order of what was tried."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        """`now` says what time it is in the world."""
        self._now = now
        self._tried: list[tuple[str, tuple[Send, ...], bool]] = []
        self._times: dict[tuple[int, str], float] = {}
        """When each was tried, and when its outcome was known, by its number."""
        self._outcomes: dict[int, Outcome] = {}
        self.reads: list[Read] = []
        self.acknowledged: list[tuple[str, int, int, str]] = []
        """Topic, partition and offset that a producer was answered for each value."""
        self.several_an_epoch: set[int] = set()
        """Producer ids of which one epoch has several transactions, as in version 1 of them."""
        self.deleted: set[str] = set()
        """Topics whose deletion was asked for: where the metadata goes back, they may be there again, and empty."""
        self.begins: dict[TopicPartition, Begins] = {}
        """The logs whose heads are deleted. All others begin at 0."""
        self.restarts: set[tuple[TopicPartition, int]] = set()
        """Where producers go on that were idle so long that they may be forgotten: what such a one sends again is not
        known as a duplicate any more (P8).
        """
        self.after_restart: dict[tuple[str, int, int], int] = {}
        """Of each record that such a producer wrote from there on, where that was."""
        self.committed: set[str] = set()
        """The names of the programs that know of something that it is committed."""
        self.anomalies: list[Anomaly] = []
        """What was found wrong on the way."""

    def intend(self, worker: str, *sends: Send, is_ordered: bool = True) -> int:
        self._tried.append((worker, sends, is_ordered))
        number = len(self._tried) - 1
        self._times[number, "tried"] = self._now()
        return number

    def settle(self, number: int, outcome: Outcome) -> None:
        known = self._outcomes.setdefault(number, outcome)
        self._times.setdefault((number, "known"), self._now())
        if outcome is Outcome.COMMITTED:
            self.committed.add(self._tried[number][0].partition(".")[0])
        if known is not outcome:
            self.wrong("two answers", f"{self._tried[number]} was answered as {known}, and then as {outcome}")

    def outcome(self, number: int) -> Outcome:
        return self._outcomes.get(number, Outcome.UNKNOWN)

    def digest(self) -> int:
        """Return a number that two worlds have in common in which clients tried and were told the same."""
        reads = [(one.reader, one.topic, one.partition, [*one.records]) for one in self.reads]
        outcomes = {number: outcome.name for number, outcome in self._outcomes.items()}
        return crc32(repr((self._tried, outcomes, self.acknowledged, reads)).encode())

    def about(self, anomalies: Iterable[Anomaly]) -> list[str]:
        """Return what was tried that anomalies are about, a line for each: by whom, when, and what came of it."""
        text = " ".join(anomaly.detail for anomaly in anomalies)
        lines = []
        for number, (worker, sends, _) in enumerate(self._tried):
            values = [send.value for send in sends if f"'{send.value}'" in text]
            if not values:
                continue
            known = self._times.get((number, "known"))
            told = "nobody was told what became of it" if known is None else f"{self.outcome(number)} at {known:.3f} s"
            lines.append(f"{worker} tried {', '.join(values)} at {self._times[number, 'tried']:.3f} s: {told}")
        return lines

    def wrong(self, kind: str, detail: str) -> None:
        self.anomalies.append(Anomaly(kind, detail))

    def check(self, source_end_offsets: dict[tuple[str, int], int]) -> list[Anomaly]:
        """Judge everything, after the last reads."""
        transactions = [
            Transaction(worker, sends, self.outcome(number), is_ordered)
            for number, (worker, sends, is_ordered) in enumerate(self._tried)
        ]
        self._forget_repeated()
        return [
            *self.anomalies,
            *check(History(transactions, self.reads, source_end_offsets)),
            *self._misplaced(),
        ]

    def _forget_repeated(self) -> None:
        """Leave out what stands a second time where its producer was not known any more. The first one counts."""
        if not self.restarts:
            return
        others: dict[str, set[tuple[str, int, int]]] = {}
        for one in self.reads:
            for offset, value in one.records:
                others.setdefault(value, set()).add((one.topic, one.partition, offset))
        repeated = {
            place
            for places in others.values()
            for before, place in itertools.pairwise(sorted(places))
            if before[:2] == place[:2] and before[2] < self.after_restart.get(place, 0)
        }
        self.reads = [
            replace(one, records=[each for each in one.records if (one.topic, one.partition, each[0]) not in repeated])
            for one in self.reads
        ]
        self.acknowledged = [one for one in self.acknowledged if one[:3] not in repeated]

    def _misplaced(self) -> Iterator[Anomaly]:
        """A value stands where its producer was told, if it can be seen at all (P1)."""
        read = {(one.topic, one.partition, offset): value for one in self.reads for offset, value in one.records}
        places: dict[str, tuple[str, int, int]] = {value: place for place, value in read.items()}
        for topic, partition, offset, value in self.acknowledged:
            place = places.get(value, (topic, partition, offset))
            if place != (topic, partition, offset):
                yield Anomaly("misplaced", f"{value!r} was answered as {topic}-{partition}@{offset}, and is at {place}")
