"""Arithmetic on offsets, without IO: how much a batch takes, and how it is split among tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql.datasource import InputPartition

from semel.protocol.ids import TopicPartition

Offsets: TypeAlias = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange(InputPartition):
    """What one task reads: the records of a partition from `start` on, up to before `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start

    def __repr__(self) -> str:
        return f"OffsetRange({self.tp}, {self.start} to {self.end})"


def limited(start: Offsets, latest: Offsets, rows_max: int) -> dict[TopicPartition, int]:
    """Return the end of a batch of about `rows_max` offsets, shared among partitions in proportion to what they have.

    A partition with few gets at least one, as in Spark's Kafka source, so that none starves.
    """
    sizes = {tp: max(0, end - start.get(tp, end)) for tp, end in latest.items()}
    total = sum(sizes.values())
    if total <= rows_max:
        return dict(latest)
    ends = dict(latest)
    for tp, size in sizes.items():
        if size:
            share = rows_max * size / total
            ends[tp] = start[tp] + min(size, math.ceil(share) if share < 1 else math.floor(share))
    return ends


def split(
    ranges: Sequence[OffsetRange], partitions_min: int | None, records_max: int | None = None
) -> list[OffsetRange]:
    """Return the ranges as tasks: none with more than `records_max` offsets, and at least `partitions_min` of them.

    Fewer than that where there are not as many records. Ranges without offsets are left out.
    """
    ranges = [each for each in ranges if each.size > 0]
    if records_max is not None:
        ranges = [part for each in ranges for part in _cut(each, math.ceil(each.size / records_max))]
    if partitions_min is None or len(ranges) >= partitions_min:
        return list(ranges)
    total = sum(each.size for each in ranges)
    counts = [min(each.size, max(1, math.floor(partitions_min * each.size / total))) for each in ranges]
    while sum(counts) < min(partitions_min, total):
        # The one with the most left for each of its tasks is cut once more.
        largest = max(range(len(ranges)), key=lambda at: ranges[at].size / counts[at])
        counts[largest] += 1
    return [part for each, count in zip(ranges, counts, strict=True) for part in _cut(each, count)]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.size * at // count for at in range(count + 1)]
    return [
        OffsetRange(whole.topic, whole.partition, first, last)
        for first, last in itertools.pairwise(edges)
        if last > first
    ]
