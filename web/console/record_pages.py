"""Records: browsed by offset, by time, or from the end; one alone; and those that arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from semel.protocol.api.topics import IsolationLevel, TopicDescription
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.web.console.reading import COUNT_MAX, PARTITIONS_MAX, Found, Piece, Reading, kept
from semel.web.console.record_view import (
    FORMATS,
    SHOWN_ALONE_BYTES,
    SHOWN_BYTES,
    ShownRecord,
    schema_id_of,
    shown_record,
)
from semel.web.console.schema_lookup import schemas_of
from semel.web.console.visit import Handler, Visit
from semel.web.problems import Problem

ALL: Final = "all"
_COUNT: Final = 20
_PIECE_BYTES: Final = 256 << 10
_BEGINNINGS: Final = ("last", "offset", "time")
_ISOLATIONS: Final = ("read_committed", "read_uncommitted")


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets without a record, in a list of records."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page of records asks for. begin: "last", "offset" or "time"."""

    topic: TopicDescription
    partition: int | None
    begin: str
    offset: int
    time_text: str
    count: int
    key: str
    isolation: IsolationLevel
    form: str

    @property
    def tps(self) -> list[TopicPartition]:
        return [
            TopicPartition(self.topic.name, place.partition)
            for place in self.topic.partitions
            if self.partition in (None, place.partition)
        ]


async def _asked(visit: Visit) -> Asked:
    """Return what an address asks for. Raises `Problem` 400."""
    topic = await visit.admin.topic(visit.needed("topic"))
    many = len(topic.partitions) > PARTITIONS_MAX
    text = visit.text("partition") or ("0" if many else ALL)
    partition = None if text == ALL else visit.number("partition", 0)
    if partition is None and many:
        raise Problem(
            400, f"{topic.name} has {len(topic.partitions)} partitions, and up to {PARTITIONS_MAX} are read together: "
            "choose one"
        )  # fmt: skip
    if partition is not None and partition >= len(topic.partitions):
        raise Problem(404, f"{topic.name} has no partition {partition}: they are 0 to {len(topic.partitions) - 1}")
    begin = _one_of(visit, "begin", _BEGINNINGS)
    if begin == "offset" and partition is None:
        raise Problem(400, "offsets are numbered in each partition on its own: choose a partition, too")
    isolation = IsolationLevel[_one_of(visit, "isolation", _ISOLATIONS).upper()]
    count = min(max(visit.number("count", _COUNT), 1), COUNT_MAX)
    return Asked(
        topic,
        partition,
        begin,
        visit.number("offset"),
        visit.text("time"),
        count,
        visit.text("key"),
        isolation,
        _one_of(visit, "format", FORMATS),
    )


def _one_of(visit: Visit, name: str, choices: Sequence[str]) -> str:
    found = visit.text(name) or choices[0]
    if found not in choices:
        raise Problem(400, f"{name} is one of {', '.join(choices)}")
    return found


def time_of(text: str) -> int:
    """Return milliseconds since 1970, of such a number or of a time in ISO 8601, in UTC where it names no zone.

    >>> time_of("2026-11-30T10:00"), time_of("1000")
    (1796032800000, 1000)
    """
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return max(0, int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise Problem(400, f"{text[:40]!r} is no time: write it as 2026-11-30T10:00, which is in UTC") from None


def _has_key(text: str) -> Callable[[Record], bool]:
    wanted = text.encode("utf-8", "surrogateescape")
    return lambda record: not wanted or (record.key is not None and wanted in record.key)


async def _records(visit: Visit) -> Response:
    asked = await _asked(visit)
    reading = Reading(visit.clients, asked.isolation, _has_key(asked.key), SHOWN_BYTES + 1)
    async with visit.console.reads:
        bounds, unreadable = await reading.bounds(asked.tps)
        piece = await _read(reading, asked, bounds)
        states = await _states(visit, asked, piece)
    records = await _shown(visit, piece.found, asked.form, states)
    rows: list[ShownRecord | Gap] = list(records)
    is_single = asked.partition is not None
    if is_single and not asked.key and asked.isolation is IsolationLevel.READ_UNCOMMITTED:
        rows = _with_gaps(records, piece.next_offsets[asked.tps[0]])
    newest_first = asked.begin == "last"
    return visit.html(
        "records.html",
        asked=asked,
        rows=rows[::-1] if newest_first else rows,
        piece=piece,
        unreadable=unreadable,
        older=_older(asked, bounds, piece) if is_single else None,
        newer=_newer(asked, bounds, piece) if is_single else None,
        after=",".join(f"{tp.partition}:{end}" for tp, (_, end) in bounds.items()),
        formats=FORMATS,
        partitions_max=PARTITIONS_MAX,
        count_max=COUNT_MAX,
        is_gap=lambda row: isinstance(row, Gap),
    )


async def _read(reading: Reading, asked: Asked, bounds: dict[TopicPartition, tuple[int, int]]) -> Piece:
    if asked.begin == "last":
        return await reading.last(bounds, asked.count)
    if asked.begin == "offset":
        tp = asked.tps[0]
        start, end = bounds[tp]
        return await reading.forward({tp: (max(asked.offset, start), end)}, asked.count)
    first = await reading.at_time(list(bounds), time_of(asked.time_text))
    piece = await reading.forward({tp: (offset, bounds[tp][1]) for tp, offset in first.items()}, asked.count)
    piece.next_offsets.update({tp: end for tp, (_, end) in bounds.items() if tp not in first})
    if asked.partition is None:
        piece.found = piece.found[: asked.count]
    return piece


def _older(asked: Asked, bounds: dict[TopicPartition, tuple[int, int]], piece: Piece) -> int | None:
    """Return where the page before this one begins; None where this is the first."""
    start, _ = bounds[asked.tps[0]]
    first = piece.found[0].record.offset if piece.found else asked.offset
    return max(start, first - asked.count) if first > start else None


def _newer(asked: Asked, bounds: dict[TopicPartition, tuple[int, int]], piece: Piece) -> int | None:
    _, end = bounds[asked.tps[0]]
    following = piece.next_offsets[asked.tps[0]]
    return following if asked.begin != "last" and following < end else None


async def _states(visit: Visit, asked: Asked, piece: Piece) -> dict[tuple[int, int], str]:
    """Return which records readers of committed ones do not see: by partition and offset, "aborted" or "open"."""
    if asked.isolation is IsolationLevel.READ_COMMITTED or not piece.found:
        return {}
    offsets: dict[TopicPartition, list[int]] = {}
    for one in piece.found:
        offsets.setdefault(TopicPartition(one.record.topic, one.record.partition), []).append(one.record.offset)
    reading = Reading(visit.clients, IsolationLevel.READ_COMMITTED, lambda _: True, 0)
    bounds, _ = await reading.bounds(list(offsets))
    stable = {tp: bounds[tp][1] if tp in bounds else 0 for tp in offsets}
    seen = await reading.forward(
        {tp: (min(some), min(max(some) + 1, stable[tp])) for tp, some in offsets.items()}, COUNT_MAX * 20
    )
    committed = {(one.record.partition, one.record.offset) for one in seen.found}
    found = {}
    for tp, some in offsets.items():
        for offset in some:
            if offset >= stable[tp]:
                found[tp.partition, offset] = "not committed yet"
            elif (tp.partition, offset) not in committed and seen.is_whole:
                found[tp.partition, offset] = "aborted"
    return found


def _with_gaps(records: Sequence[ShownRecord], end: int) -> list[ShownRecord | Gap]:
    """Return records with the gaps between them: markers of transactions, or what compaction has removed."""
    found: list[ShownRecord | Gap] = []
    for place, one in enumerate(records):
        following = records[place + 1].record.offset if place + 1 < len(records) else end
        found.append(one)
        if following > one.record.offset + 1:
            found.append(Gap(one.record.offset + 1, following - 1))
    return found


async def _shown(
    visit: Visit,
    found: Sequence[Found],
    form: str,
    states: dict[tuple[int, int], str],
    most: int = SHOWN_BYTES,
) -> list[ShownRecord]:
    ids = {schema_id_of(one.record.value) for one in found} | {schema_id_of(one.record.key) for one in found}
    schemas = await schemas_of(visit.console, (one for one in ids if one is not None)) if _may_decode(form) else {}
    records = []
    for one in found:
        state = states.get((one.record.partition, one.record.offset), "")
        records.append(shown_record(one, form, schemas, most, state))
        await asyncio.sleep(0)  # decoding 500 records may take seconds: others go on, and the page's time is up in time
    return records


def _may_decode(form: str) -> bool:
    return form in ("auto", "schema")


async def _tail(visit: Visit) -> Response:
    """Answer what has arrived after some offsets, as rows for the page that shows them."""
    asked = await _asked(visit)
    reading = Reading(visit.clients, asked.isolation, _has_key(asked.key), SHOWN_BYTES + 1)
    after = _positions(visit.text("after"))
    async with visit.console.reads:
        bounds, _ = await reading.bounds(asked.tps)
        ranges = {tp: (after.get(tp.partition, end), end) for tp, (_, end) in bounds.items()}
        piece = await reading.forward(ranges, COUNT_MAX)
    records = await _shown(visit, piece.found[-COUNT_MAX:], asked.form, {})
    return JSONResponse(
        {
            "rows": visit.console.rendered("record_rows.html", rows=records[::-1], is_gap=lambda _: False),
            "after": ",".join(f"{tp.partition}:{offset}" for tp, offset in piece.next_offsets.items()),
        }
    )


def _positions(text: str) -> dict[int, int]:
    """Return offsets by partition.

    >>> _positions("0:12,1:40")
    {0: 12, 1: 40}
    """
    try:
        pairs = [pair.split(":") for pair in text.split(",")] if text else []
        return {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise Problem(400, "after takes PARTITION:OFFSET, with commas between") from None


async def _whole(visit: Visit) -> Record:
    """Return the record that an address names. Raises `Problem` 404."""
    topic = await visit.admin.topic(visit.needed("topic"))
    partition, offset = visit.number("partition"), visit.number("offset")
    if partition >= len(topic.partitions):
        raise Problem(404, f"{topic.name} has no partition {partition}: they are 0 to {len(topic.partitions) - 1}")
    tp = TopicPartition(topic.name, partition)
    records: list[Record] = []

    def keep(record: Record) -> bool:
        records.append(record)
        return True

    reading = Reading(visit.clients, IsolationLevel.READ_UNCOMMITTED, keep, 0)
    async with visit.console.reads:
        start, end = (await reading.bounds([tp]))[0][tp]
        if start <= offset < end:
            await reading.forward({tp: (offset, offset + 1)}, 1)
    if not records:
        raise Problem(
            404,
            f"{topic.name} has no record at offset {offset} of partition {partition}. Its offsets are {start} to "
            f"{end - 1}; markers of transactions, and what compaction removed, have offsets and are no records",
        )
    return records[0]


async def _record(visit: Visit) -> Response:
    record = await _whole(visit)
    form = _one_of(visit, "format", FORMATS)
    found = kept(record, SHOWN_ALONE_BYTES + 1)
    tp = TopicPartition(record.topic, record.partition)
    asked_states = Piece(found=[found], next_offsets={tp: record.offset + 1})
    topic = await visit.admin.topic(record.topic)
    asked = Asked(topic, record.partition, "offset", record.offset, "", 1, "", IsolationLevel.READ_UNCOMMITTED, form)
    states = await _states(visit, asked, asked_states)
    (one,) = await _shown(visit, [found], form, states, SHOWN_ALONE_BYTES)
    return visit.html("record.html", one=one, form=form, formats=FORMATS)


class _Download(StreamingResponse):
    """Bytes as a file that no browser opens, sent in pieces. `turns` is released once they are, or can't be."""

    def __init__(self, data: bytes, name: str, turns: asyncio.Semaphore) -> None:
        super().__init__(
            (data[place : place + _PIECE_BYTES] for place in range(0, len(data), _PIECE_BYTES)),
            media_type="application/octet-stream",
            headers={
                "Content-Length": str(len(data)),
                "Content-Disposition": f'attachment; filename="{name}"',
                "Content-Security-Policy": "default-src 'none'; sandbox",
            },
        )
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._turns.release()


async def _download(visit: Visit) -> Response:
    """Answer the bytes of a value, or of a key. Few at a time: those who read slowly hold all of it in memory."""
    part = _one_of(visit, "part", ("value", "key"))
    turns = visit.console.downloads
    await turns.acquire()
    is_sent = False
    try:
        record = await _whole(visit)
        data = record.value if part == "value" else record.key
        if data is None:
            raise Problem(404, f"the {part} of this record is null: there is nothing to download")
        made = _Download(bytes(data), f"{record.topic}-{record.partition}-{record.offset}.{part}", turns)
        is_sent = True
    finally:
        if not is_sent:
            turns.release()
    return made


PAGES: Final[tuple[tuple[str, Handler], ...]] = (
    ("records", _records),
    ("records/tail", _tail),
    ("record", _record),
    ("record/download", _download),
)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = ()
