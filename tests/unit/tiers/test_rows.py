"""The rows of the remote storage: whoever is late finds out, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from uuid import UUID

import pytest
import sqlalchemy as sa
from running_node import running_node

from semel.broker.metadata.store import METADATA_FILE, sqlite_url
from semel.broker.metadata.tables import REMOTE_SEGMENTS
from semel.broker.metadata_moving import move_metadata
from semel.broker.tiers.remote_log import Piece, RemoteLog, RemoteSegment
from semel.broker.tiers.rows import LateError, RemoteRows
from semel.protocol.errors import FatalError
from semel.protocol.ids import TopicId, format_topic_id
from semel.runtime.disk_storage import DiskStorage

TOPIC = TopicId(UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"))
KEY = (TOPIC, 3)


def segment(start: int, end: int, name: str = "") -> RemoteSegment:
    return RemoteSegment(
        segment_id=name or f"s{start}",
        key=f"cluster/t/3/{start}-{name}",
        base_offset=start,
        start_offset=start,
        end_offset=end,
        size_bytes=100,
        max_timestamp_ms=start * 10,
        copied_at_ms=2,
        leader_epoch=4,
        node_id=1,
        epochs=((2, start), (4, start + 1)),
        index=Piece(100, 24, 7),
        aborted=Piece(124, 32, 8),
        producers=Piece(156, 9, 9),
    )


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteRows]:
    if request.param == "sqlite":
        url = sqlite_url(str(tmp_path / "rows.sqlite"))
    else:
        url = request.getfixturevalue("postgresql_url")
    made = RemoteRows(url)
    made.create()
    made.create()
    yield made
    made.close()


@pytest.mark.postgresql
def test_nodes_that_start_together_all_find_the_tables(postgresql_url: str) -> None:
    nodes = [RemoteRows(postgresql_url) for _ in range(6)]
    try:
        together = Barrier(len(nodes))

        def create(node: RemoteRows) -> None:
            together.wait()
            node.create()

        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(create, nodes))
    finally:
        for node in nodes:
            node.close()


def copied(rows: RemoteRows, known: RemoteLog, one: RemoteSegment, *, start: int = 0) -> RemoteLog:
    rows.begin_copy(KEY, one, 1)
    return rows.finish_copy(KEY, one, known, log_start_offset=start, now_ms=2)


def test_segments_are_found_as_they_were_noted(rows: RemoteRows) -> None:
    assert rows.load(KEY) == RemoteLog()
    head = copied(rows, RemoteLog(), segment(5, 10), start=5)
    head = copied(rows, head, segment(10, 20))
    assert rows.load(KEY) == head
    assert (head.version, head.start_offset, head.end_offset) == (2, 5, 20)
    assert [one.start_offset for one in head.segments] == [5, 10]
    assert rows.versions([KEY, (TOPIC, 4)]) == {KEY: 2}
    assert rows.topic_ids() == {format_topic_id(TOPIC)}
    assert rows.object_keys() == {one.key for one in head.segments}


@pytest.mark.parametrize(
    ("telling", "left"), [((0, 1, 2, 3), [30]), ((0, 1), [10, 20, 30]), ((), [30]), ((0,), [0, 10, 20, 30])]
)
def test_P7_what_tells_of_producers_last_is_kept_with_all_that_follows(
    rows: RemoteRows, telling: tuple[int, ...], left: list[int]
) -> None:
    head = RemoteLog()
    for number in range(4):
        one = segment(10 * number, 10 * number + 10, f"s{number}")
        head = copied(rows, head, replace(one, producers=Piece(100, 9 if number in telling else 0, 0)))
    head = rows.move_start(KEY, head, 40, 3, keeps_last=True)
    assert [one.start_offset for one in head.segments] == left
    assert rows.load(KEY) == head


def test_R2_who_does_not_know_the_last_change_changes_nothing(rows: RemoteRows) -> None:
    """Two nodes copy the same offsets. The second is late, also where it was the first ever to copy."""
    one, other = segment(0, 10, "one"), segment(0, 12, "other")
    rows.begin_copy(KEY, one, 1)
    rows.begin_copy(KEY, other, 1)
    head = rows.finish_copy(KEY, one, RemoteLog(), log_start_offset=0, now_ms=2)
    with pytest.raises(LateError):
        rows.finish_copy(KEY, other, RemoteLog(), log_start_offset=0, now_ms=2)
    moved = rows.move_start(KEY, head, 4, 3)
    with pytest.raises(LateError):
        rows.move_start(KEY, head, 2, 3)
    with pytest.raises(LateError):
        rows.finish_copy(KEY, other, head, log_start_offset=0, now_ms=3)
    assert rows.load(KEY) == moved
    assert [one.segment_id for one in moved.segments] == ["one"]


def test_D6_a_copy_that_was_given_up_can_not_be_finished_and_goes_later(rows: RemoteRows) -> None:
    one, busy = segment(0, 10, "one"), segment(0, 10, "busy")
    rows.begin_copy(KEY, one, 1)
    rows.begin_copy(KEY, busy, 1)
    rows.give_up_copies([KEY], busy=["busy"], now_ms=50)
    with pytest.raises(LateError):
        rows.finish_copy(KEY, one, RemoteLog(), log_start_offset=0, now_ms=60)
    assert rows.load(KEY) == RemoteLog(), "what was begun with it is taken back"
    assert rows.garbage([KEY], given_up_before_ms=49) == []
    (garbage,) = rows.garbage([KEY], given_up_before_ms=50)
    assert garbage.is_given_up
    assert (garbage.segment_id, garbage.key) == ("one", one.key)
    rows.forget([garbage])
    assert rows.garbage([KEY], given_up_before_ms=100) == []
    head = rows.finish_copy(KEY, busy, RemoteLog(), log_start_offset=0, now_ms=60)
    rows.forget([garbage._replace(segment_id="busy")])
    assert rows.load(KEY) == head, "what readers may use is never forgotten so"


def test_D6_segments_below_the_start_of_the_log_are_garbage(rows: RemoteRows) -> None:
    head = RemoteLog()
    for first in range(0, 50, 10):
        head = copied(rows, head, segment(first, first + 10))
    head = rows.move_start(KEY, head, 25, 100)
    assert [one.start_offset for one in head.segments] == [20, 30, 40]
    assert rows.load(KEY) == head
    assert {one.segment_id for one in rows.garbage([KEY], given_up_before_ms=100)} == {"s0", "s10"}
    assert rows.garbage([(TOPIC, 4)], given_up_before_ms=100) == []


def test_all_rows_of_a_deleted_topic_are_found_and_removed(rows: RemoteRows) -> None:
    copied(rows, RemoteLog(), segment(0, 10))
    rows.begin_copy(KEY, segment(10, 20), 1)
    name = format_topic_id(TOPIC)
    found = rows.retire_topic(name, 9)
    assert {(one.segment_id, one.is_given_up) for one in found} == {("s0", False), ("s10", True)}
    rows.forget(found)
    assert rows.retire_topic(name, 9) == []
    rows.forget_topic(name)
    assert rows.topic_ids() == set()
    assert rows.load(KEY) == RemoteLog()


def test_R10_they_move_with_the_metadata_to_another_database(tmp_path: Path) -> None:
    async def start_and_stop() -> None:
        async with running_node(tmp_path):
            pass

    asyncio.run(start_and_stop())
    rows = RemoteRows(sqlite_url(str(tmp_path / "data" / METADATA_FILE)))
    rows.create()
    head = copied(rows, RemoteLog(), segment(0, 10))
    rows.close()
    target = sqlite_url(str(tmp_path / "shared.sqlite"))
    move_metadata(DiskStorage(), str(tmp_path / "data"), target)
    moved = RemoteRows(target)
    assert moved.load(KEY) == head
    moved.close()


def test_a_row_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    rows = RemoteRows(sqlite_url(str(tmp_path / "rows.sqlite")))
    rows.create()
    copied(rows, RemoteLog(), replace(segment(0, 10), epochs=()))
    with rows._transaction() as connection:
        connection.execute(sa.update(REMOTE_SEGMENTS).values(details="{}"))
    with pytest.raises(FatalError, match="can't be read"):
        rows.load(KEY)
    rows.close()
