"""Reads a piece of some partitions for a page: bounded by a count, by time, and by what is kept of large records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Final

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.web.gateway import Clients

COUNT_MAX: Final = 500
"""Records on one page."""
PARTITIONS_MAX: Final = 32
"""Partitions that are read together."""
_READ_S: Final = 6.0
_POLL_S: Final = 0.25
_EMPTY_POLLS_MAX: Final = 4
"""Where no more comes though the end is not reached: compaction has left nothing before it."""
_POLL_RECORDS: Final = 500
_LOOKED_MAX: Final = 50_000
"""Records that are looked through for a key."""
HEADERS_MAX: Final = 50
"""Of a record."""
HEADER_BYTES: Final = 1 << 10
"""Of a header's name, and of its value."""
_FIRST_WIDTH: Final = 16
_WIDER: Final = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A record, its key, value and headers cut off where they are large. The sizes are those of all; -1 for null.

    header_bytes: of the values of the headers that are there
    headers:      how many the record has in all
    """

    record: Record
    key_bytes: int
    value_bytes: int
    header_bytes: tuple[int, ...]
    headers: int


@dataclass(slots=True)
class Piece:
    """What was read.

    next_offsets: where reading would go on
    is_whole:     whether everything asked for was looked at; not where time or the bounds ended it before
    looked_at:    how many records were read to find these
    skipped:      batches that can't be read
    """

    found: list[Found] = field(default_factory=list)
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    is_whole: bool = True
    looked_at: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """How records are read. wanted: which of them; kept_bytes: of each key and value, at most."""

    clients: Clients
    isolation: IsolationLevel
    wanted: Callable[[Record], bool]
    kept_bytes: int

    async def bounds(self, tps: Sequence[TopicPartition]) -> tuple[dict[TopicPartition, tuple[int, int]], list[str]]:
        """Return where partitions begin, and where what may be read of them ends; and why others can't be read.

        Raises the `SemelError` of the first, where none can be read.
        """
        admin = self.clients.admin()
        starts, ends = await asyncio.gather(
            admin.look_up_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP)),
            admin.look_up_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP), isolation=self.isolation),
        )
        found: dict[TopicPartition, tuple[int, int]] = {}
        errors: list[SemelError] = []
        for tp in tps:
            start, end = starts[tp], ends[tp]
            if isinstance(start, SemelError):
                errors.append(start)
            elif isinstance(end, SemelError):
                errors.append(end)
            else:
                found[tp] = start.offset, end.offset
        if errors and not found:
            raise errors[0]
        return found, [error.message for error in errors]

    async def at_time(self, tps: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition that is at a time, or later."""
        found = await self.clients.admin().list_offsets(dict.fromkeys(tps, time_ms), isolation=self.isolation)
        return {tp: one.offset for tp, one in found.items() if one.offset >= 0}

    async def forward(self, ranges: Mapping[TopicPartition, tuple[int, int]], count: int) -> Piece:
        """Read up to `count` records of each range (first offset, end), in the order of `in_order`."""
        piece = await self._read(ranges, count, _now() + _READ_S)
        piece.found = in_order(piece.found)
        return piece

    async def last(self, bounds: Mapping[TopicPartition, tuple[int, int]], count: int) -> Piece:
        """Read the last `count` records of all partitions together, from the ends on, in ever larger pieces."""
        ends_s = _now() + _READ_S
        whole, width = Piece(), _FIRST_WIDTH
        tops = {tp: end for tp, (_, end) in bounds.items()}
        left = {tp for tp, (start, end) in bounds.items() if start < end}
        while left and len(whole.found) < count:
            ranges = {tp: (max(bounds[tp][0], tops[tp] - width), tops[tp]) for tp in left}
            piece = await self._read(ranges, None, ends_s, newest=count)
            whole.found += piece.found
            whole.looked_at += piece.looked_at
            whole.skipped += piece.skipped
            tops.update({tp: first for tp, (first, _) in ranges.items()})
            left = {tp for tp in left if tops[tp] > bounds[tp][0]}
            width *= _WIDER
            if not piece.is_whole or whole.looked_at >= _LOOKED_MAX:
                whole.is_whole = False
                break
        whole.found = last_of(whole.found, count)
        whole.next_offsets = {tp: end for tp, (_, end) in bounds.items()}
        return whole

    async def _read(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        count: int | None,
        ends_s: float,
        *,
        newest: int | None = None,
    ) -> Piece:
        """Read ranges; with a count, up to so many records of each. newest: so many of them are wanted in the end."""
        piece = Piece(next_offsets={tp: first for tp, (first, _) in ranges.items()})
        left = {tp for tp, (first, end) in ranges.items() if first < end}
        if not left:
            return piece
        counts = dict.fromkeys(left, 0)
        consumer = self.clients.consumer(
            isolation=self.isolation.name.lower(),
            on_unreadable_batch="skip",
            max_wait_ms=100,
            max_bytes=8 << 20,
            api_timeout_ms=10_000,
        )
        async with consumer:
            consumer.assign(left)
            for tp in left:
                consumer.seek(tp, ranges[tp][0])
            empty = 0
            while left and empty < _EMPTY_POLLS_MAX:
                if _now() > ends_s or piece.looked_at >= _LOOKED_MAX:
                    piece.is_whole = False
                    break
                batch = await consumer.poll(_POLL_S, _POLL_RECORDS)
                empty = empty + 1 if batch is None else 0
                for record in batch or ():
                    tp = TopicPartition(record.topic, record.partition)
                    if tp in left and record.offset < ranges[tp][1]:
                        self._take(record, tp, piece, counts)
                        if counts[tp] == count:
                            left.discard(tp)
                    else:
                        left.discard(tp)
                if newest is not None and len(piece.found) > newest:
                    piece.found = last_of(piece.found, newest)
                for tp in sorted(left):
                    position = consumer.position(tp)
                    if position is not None and position >= ranges[tp][1]:
                        piece.next_offsets[tp] = ranges[tp][1]
                        left.discard(tp)
            if empty:
                piece.next_offsets.update({tp: ranges[tp][1] for tp in left})
            piece.skipped = consumer.skipped_batches
        return piece

    def _take(self, record: Record, tp: TopicPartition, piece: Piece, counts: dict[TopicPartition, int]) -> None:
        piece.looked_at += 1
        piece.next_offsets[tp] = record.offset + 1
        if self.wanted(record):
            counts[tp] += 1
            piece.found.append(kept(record, self.kept_bytes))


def kept(record: Record, most: int) -> Found:
    """Return a record with no more than `most` bytes of its key and its value, and with headers within their bounds."""
    key, value = record.key, record.value
    cut = Record(
        record.offset,
        record.timestamp_ms,
        None if key is None else bytes(key[:most]),
        None if value is None else bytes(value[:most]),
        tuple(
            (name[:HEADER_BYTES], None if data is None else bytes(data[: HEADER_BYTES + 1]))
            for name, data in record.headers[:HEADERS_MAX]
        ),
        record.topic,
        record.partition,
    )
    return Found(
        cut,
        -1 if key is None else len(key),
        -1 if value is None else len(value),
        tuple(0 if data is None else len(data) for _, data in record.headers[:HEADERS_MAX]),
        len(record.headers),
    )


def in_order(found: Iterable[Found]) -> list[Found]:
    """Return the records of each partition in the order of their offsets, and partitions among each other by time.

    A producer gives timestamps as it likes, so that they may go back within a partition.
    """
    return list(merge(*_by_partition(found), key=lambda one: one.record.timestamp_ms))


def last_of(found: Iterable[Found], count: int) -> list[Found]:
    """Return the last `count` of these records: from the ends of all partitions, those with the latest timestamps."""
    from_the_ends = merge(*(run[::-1] for run in _by_partition(found)), key=lambda one: -one.record.timestamp_ms)
    return list(islice(from_the_ends, count))[::-1]


def _by_partition(found: Iterable[Found]) -> list[list[Found]]:
    runs: dict[int, list[Found]] = {}
    for one in found:
        runs.setdefault(one.record.partition, []).append(one)
    return [sorted(runs[number], key=lambda one: one.record.offset) for number in sorted(runs)]


def _now() -> float:
    return asyncio.get_running_loop().time()
