"""Reads the demo's output to its end and compares it with the data set: what is missing, what is there twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.cli.demo.flights import Flight
from semel.cli.demo.worker import ENRICHED, PER_CARRIER
from semel.protocol.api.topics import LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.admin.api import Admin
from semel.sdk.consumer.api import Consumer


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reader of the output finds.

    once:          how many flights are there exactly once.
    missing:       how many are not there at all.
    repeated:      how many are there more than once.
    surplus:       records beyond the first of each flight.
    counts:        what the pipeline counted for each carrier; truth: what the data set says, the largest first.
    hidden:        records of aborted transactions, which are in the log and were not shown to this reader.
    """

    flights: int
    once: int
    missing: int
    repeated: int
    surplus: int
    counts: dict[str, int]
    truth: dict[str, int]
    hidden: int

    @property
    def wrong_counts(self) -> dict[str, tuple[int, int]]:
        """Carriers whose count differs from the data set's, with (counted, true)."""
        return {
            carrier: (self.counts.get(carrier, 0), self.truth.get(carrier, 0))
            for carrier in sorted({*self.truth, *self.counts})
            if self.counts.get(carrier, 0) != self.truth.get(carrier, 0)
        }

    @property
    def is_exactly_once(self) -> bool:
        return self.once == self.flights and not self.surplus and not self.wrong_counts


def judge(bootstrap: str, flights: Sequence[Flight], *, isolation: str, progress: Callable[[int], None]) -> Verdict:
    """Read the output topics from the beginning to their end and compare them with `flights`."""
    seen = bytearray(len(flights))
    surplus = 0

    def take_flight(record: Record) -> None:
        nonlocal surplus
        number = json.loads(record.value or b"{}")["number"]
        if seen[number]:
            surplus += 1
        seen[number] = min(seen[number] + 1, 255)

    counts: Counter[str] = Counter()

    def take_count(record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        counts[record.key.decode()] += int(record.value)

    shown = read_to_end(bootstrap, ENRICHED, isolation, take_flight, progress)
    read_to_end(bootstrap, PER_CARRIER, isolation, take_count, lambda _: None)
    written = shown
    if isolation == "read_committed":
        written = read_to_end(bootstrap, ENRICHED, "read_uncommitted", lambda _: None, lambda _: None)
    truth = Counter(flight.carrier for flight in flights)
    return Verdict(
        flights=len(flights),
        once=seen.count(1),
        missing=seen.count(0),
        repeated=len(seen) - seen.count(0) - seen.count(1),
        surplus=surplus,
        counts=dict(counts),
        truth=dict(truth.most_common()),
        hidden=written - shown,
    )


def read_to_end(
    bootstrap: str,
    topic: str,
    isolation: str,
    take: Callable[[Record], None],
    progress: Callable[[int], None],
) -> int:
    """Hand every record of a topic to `take`, up to where the topic ends now. Returns how many there were."""
    level = IsolationLevel[isolation.upper()]
    with Admin(bootstrap) as admin, Consumer(bootstrap, isolation=isolation) as reader:
        tps = [TopicPartition(topic, partition.partition) for partition in admin.topic(topic).partitions]
        ends = admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP), isolation=level)
        left = {tp for tp in tps if ends[tp].offset > 0}
        reader.assign(tps)
        count = 0
        while left:
            for record in reader.poll(1.0) or ():
                take(record)
                count += 1
            progress(count)
            left = {tp for tp in left if (reader.position(tp) or 0) < ends[tp].offset}
    return count
