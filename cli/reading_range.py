"""Where `semel consume` begins and ends: the last records of all partitions together, and a time to end at."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Final

from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from semel.protocol.record_decoder import Record
    from semel.sdk.consumer.api import Consumer

TAIL_MAX: Final = 100_000
"""As many records of each partition are held until the newest of all are known."""
_WAIT_S: Final = 0.5
_EMPTY_POLLS_MAX: Final = 10
"""Where no more comes, though a partition's end is not reached: compaction has left nothing before it."""


class _Tail:
    """The last records of one partition, read backwards in ever larger pieces.

    An offset is not a record: markers of transactions, aborted records and what compaction removed have offsets too.
    """

    def __init__(self, start: int, end: int, count: int) -> None:
        self.start = start
        self.end = end
        self.upper = end
        self.lower = max(start, end - count)
        self.count = count
        self.records: deque[Record] = deque(maxlen=count)
        self.piece: deque[Record] = deque(maxlen=count)

    def add(self, record: Record) -> None:
        if record.offset < self.upper:
            self.piece.append(record)

    def go_back(self) -> bool:
        """Take in the piece that was read. Returns whether an earlier one is needed."""
        room = self.count - len(self.records)
        self.records.extendleft(list(self.piece)[::-1][:room])
        self.piece.clear()
        width = self.end - self.lower
        self.upper = self.lower
        self.lower = max(self.start, self.lower - 2 * width)
        return len(self.records) < self.count and self.upper > self.start


def last_records(consumer: Consumer, tps: Sequence[TopicPartition], count: int) -> list[Record]:
    """Return the last records of all partitions together, the newest last; the consumer continues behind them.

    The order is that of their timestamps, and in each partition that of the log.
    """
    starts, ends = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
    tails = {tp: _Tail(starts[tp], ends[tp], count) for tp in tps}
    reading = {tp: tail for tp, tail in tails.items() if tail.lower < tail.end}
    while reading:
        _read_pieces(consumer, tps, reading)
        reading = {tp: tail for tp, tail in reading.items() if tail.go_back()}
    for tp, tail in tails.items():
        consumer.seek(tp, tail.end)
    consumer.resume(tps)
    return list(deque(merge(*(tail.records for tail in tails.values()), key=_time_of), maxlen=count))


def _read_pieces(consumer: Consumer, tps: Sequence[TopicPartition], reading: dict[TopicPartition, _Tail]) -> None:
    consumer.pause([tp for tp in tps if tp not in reading])
    for tp, tail in reading.items():
        consumer.seek(tp, tail.lower)
    consumer.resume(reading)
    left = set(reading)
    empty_polls = 0
    while left and empty_polls < _EMPTY_POLLS_MAX:
        batch = consumer.poll(_WAIT_S)
        empty_polls = empty_polls + 1 if batch is None else 0
        for record in batch or ():
            reading[_place_of(record)].add(record)
        read = {tp for tp in left if (consumer.position(tp) or 0) >= reading[tp].upper}
        consumer.pause(read)
        left -= read


def _time_of(record: Record) -> int:
    return record.timestamp_ms


def _place_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


class Until:
    """Ends reading at a time: at the first record of that time or a later one, in each partition."""

    def __init__(self, consumer: Consumer, tps: Sequence[TopicPartition], until_ms: int) -> None:
        self._consumer = consumer
        self._tps = tps
        self._until_ms = until_ms
        self._stops: dict[TopicPartition, int] | None = None
        """Where to stop; not known before the time has come."""

    def admitted(self, records: Iterable[Record]) -> list[Record]:
        """Return those of the records that are before the end."""
        stops = self._stops
        if stops is None:
            return [record for record in records if record.timestamp_ms < self._until_ms]
        return [record for record in records if record.offset < stops[_place_of(record)]]

    def is_reached(self) -> bool:
        """Whether every partition is read up to its end."""
        if self._stops is None:
            if time.time() * 1000 < self._until_ms:
                return False
            found = self._consumer.offsets_for_times(dict.fromkeys(self._tps, self._until_ms))
            ends = self._consumer.end_offsets(self._tps)
            self._stops = {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}
        stops = self._stops
        positions = {tp: self._consumer.position(tp) for tp in self._tps}
        return all(place is not None and place >= stops[tp] for tp, place in positions.items())
