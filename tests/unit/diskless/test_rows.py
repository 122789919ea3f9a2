"""The rows of diskless topics: one leader commits, each entry once, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from diskless_topic import claim_one
from running_node import running_node

from semel.broker.diskless.rows import (
    Claimed,
    Committed,
    DisklessRows,
    Entry,
    Log,
    NewClaim,
    NewEntry,
    ObjectGoneError,
    PartitionKey,
)
from semel.broker.metadata.store import METADATA_FILE, sqlite_url
from semel.broker.metadata.tables import DISKLESS_ENTRIES
from semel.broker.metadata_moving import move_metadata
from semel.protocol.ids import TopicId, format_topic_id
from semel.runtime.disk_storage import DiskStorage

TOPIC = TopicId(UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"))
OTHER = TopicId(UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8"))
KEY: PartitionKey = (TOPIC, 3)
RUN = "run-1"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(str(tmp_path / "rows.sqlite"))
    found: str = request.getfixturevalue("postgresql_url")
    return found


@pytest.fixture
def rows(url: str) -> Iterator[DisklessRows]:
    made = DisklessRows(url)
    made.create()
    made.create()
    yield made
    made.close()


def entry(start: int, end: int, data: bytes = b"records", *, key: str = "") -> Entry:
    return Entry(start, end, key, 0, len(data), 7, b"" if key else data)


def commit(rows: DisklessRows, claim: str, one: Entry, key: PartitionKey = KEY) -> bool:
    """Commit one entry; return whether it was led."""
    led, ends = rows.commit([NewEntry(key, claim, one)])
    assert led <= {key}
    assert not ends
    return bool(led)


def entries(rows: DisklessRows, key: PartitionKey = KEY) -> list[Entry]:
    return rows.load(key).entries


def test_R3_many_partitions_are_claimed_at_once_but_for_those_of_a_later_leader(rows: DisklessRows) -> None:
    keys = [(TOPIC, number) for number in range(1_200)]
    assert claim_one(rows, keys[7], "later", 5, 2)
    assert claim_one(rows, keys[8], "before", 2, 2)
    assert commit(rows, "before", entry(0, 3), keys[8])
    found = rows.claim_all([NewClaim(key, f"mine-{key[1]}", 3, 1) for key in reversed(keys)])
    assert set(found) == {*keys} - {keys[7]}
    assert found[keys[8]] == Claimed(3, is_in_store=False)
    assert found[keys[0]] == Claimed(0, is_in_store=False)
    assert [rows.claim_of(keys[number]) for number in (0, 7, 8, 1_199)] == ["mine-0", "later", "mine-8", "mine-1199"]
    assert not commit(rows, "before", entry(3, 4), keys[8])
    assert rows.claim_all([]) == {}


def test_R3_a_leader_that_continues_has_its_claim_only_where_nobody_else_had_one_since(rows: DisklessRows) -> None:
    """It leads again before it has heard that another one did: its log lacks what that one has committed."""
    assert claim_one(rows, KEY, "mine", 1, 1)
    continues = NewClaim(KEY, "mine", 3, 1, continues=True)
    assert set(rows.claim_all([continues])) == {KEY}
    assert claim_one(rows, KEY, "anothers", 4, 2)
    assert rows.claim_all([continues._replace(leader_epoch=5)]) == {}
    assert rows.claim_of(KEY) == "anothers"
    assert set(rows.claim_all([NewClaim(KEY, "new", 5, 1)])) == {KEY}


def test_entries_are_found_as_they_were_committed(rows: DisklessRows) -> None:
    assert rows.load(KEY) == Log("", 0, [])
    assert rows.claim_of(KEY) == ""
    assert claim_one(rows, KEY, "a", 0, 1)
    rows.begin_object("o1", RUN, 100, 5)
    data = bytes(range(256))
    small, large = entry(0, 4, data), Entry(4, 2**40, "o1", 2**33, 2**31 + 1, 2**32 - 1, b"")
    assert commit(rows, "a", small)
    assert commit(rows, "a", large)
    assert rows.load(KEY) == Log("a", 2**40, [small, large])
    assert rows.load((TOPIC, 4)) == Log("", 0, [])
    assert rows.topic_ids() == {format_topic_id(TOPIC)}
    assert rows.object_keys() == {"o1"}


def test_R3_the_claim_of_a_later_epoch_ends_those_before(rows: DisklessRows) -> None:
    assert claim_one(rows, KEY, "first", 4, 1)
    assert commit(rows, "first", entry(0, 1))
    assert claim_one(rows, KEY, "second", 5, 2)
    assert not claim_one(rows, KEY, "late", 4, 1), "an earlier epoch has no say any more"
    assert rows.claim_of(KEY) == "second"
    assert not commit(rows, "first", entry(1, 2))
    assert entries(rows) == [entry(0, 1)], "of what is refused nothing is written"
    assert commit(rows, "second", entry(1, 3))
    assert entries(rows) == [entry(0, 1), entry(1, 3)]


def test_R3_a_leader_that_reads_again_under_its_epoch_ends_its_own_claim(rows: DisklessRows) -> None:
    assert claim_one(rows, KEY, "first", 4, 1)
    assert claim_one(rows, KEY, "again", 4, 1)
    assert not commit(rows, "first", entry(0, 1))
    assert commit(rows, "again", entry(0, 2))
    assert entries(rows) == [entry(0, 2)]


def test_R3_nobody_commits_without_a_claim(rows: DisklessRows) -> None:
    assert not commit(rows, "a", entry(0, 1))
    assert not commit(rows, "", entry(0, 1))
    assert entries(rows) == []


def test_R3_in_one_commit_each_partition_counts_for_itself(rows: DisklessRows) -> None:
    keys: list[PartitionKey] = [(TOPIC, 0), (OTHER, 0), (TOPIC, 1)]
    for key in keys:
        assert claim_one(rows, key, "mine", 1, 1)
    assert claim_one(rows, keys[1], "anothers", 2, 2)
    led, _ = rows.commit([NewEntry(key, "mine", entry(0, 1)) for key in keys])
    assert led == {keys[0], keys[2]}
    assert [entries(rows, key) for key in keys] == [[entry(0, 1)], [], [entry(0, 1)]]


def test_D1_more_partitions_than_one_statement_names_are_committed_together(rows: DisklessRows) -> None:
    keys: list[PartitionKey] = [(TOPIC, number) for number in range(1_003)]
    for key in keys:
        assert claim_one(rows, key, "mine", 1, 1)
    assert rows.commit([NewEntry(key, "mine", entry(0, 1)) for key in keys]).led == set(keys)
    assert entries(rows, keys[-1]) == [entry(0, 1)]


def test_D3_a_commit_whose_answer_was_lost_can_be_repeated(rows: DisklessRows) -> None:
    claim_one(rows, KEY, "a", 1, 1)
    rows.begin_object("o1", RUN, 100, 5)
    for one in (entry(0, 3), entry(3, 5, key="o1")):
        assert commit(rows, "a", one)
        assert commit(rows, "a", one)
    assert entries(rows) == [entry(0, 3), entry(3, 5, key="o1")]


def test_D3_records_are_not_committed_behind_a_gap(rows: DisklessRows) -> None:
    """The database was put back to an older state: it tells where that ends, and takes nothing behind it."""
    other: PartitionKey = (TOPIC, 4)
    for key in (KEY, other):
        claim_one(rows, key, "a", 1, 1)
    assert commit(rows, "a", entry(0, 3))
    found = rows.commit([NewEntry(KEY, "a", entry(5, 6)), NewEntry(other, "a", entry(0, 1))])
    assert found == Committed({other}, {KEY: 3})
    assert entries(rows) == [entry(0, 3)]
    assert rows.load(KEY).end_offset == 3


def test_D3_where_a_log_ends_is_known_though_its_entries_were_trimmed(rows: DisklessRows) -> None:
    claim_one(rows, KEY, "a", 1, 1)
    assert commit(rows, "a", entry(0, 3))
    rows.trim(KEY, 3)
    assert rows.load(KEY) == Log("a", 3, [])
    claim_one(rows, KEY, "b", 2, 2)
    assert rows.load(KEY) == Log("b", 3, [])
    assert commit(rows, "b", entry(3, 4))


def test_D3_a_commit_is_all_there_or_not_at_all(rows: DisklessRows) -> None:
    """One object is gone, so that nothing of the commit is there, of no partition."""
    other: PartitionKey = (TOPIC, 4)
    for key in (KEY, other):
        claim_one(rows, key, "a", 1, 1)
    rows.begin_object("o1", RUN, 100, 5)
    with pytest.raises(ObjectGoneError):
        rows.commit([NewEntry(KEY, "a", entry(0, 1, key="o1")), NewEntry(other, "a", entry(0, 1, key="unknown"))])
    assert entries(rows) == entries(rows, other) == []


def test_D6_an_object_that_was_given_up_can_not_be_committed(rows: DisklessRows) -> None:
    claim_one(rows, KEY, "a", 1, 1)
    rows.begin_object("gone", RUN, 100, 5)
    rows.begin_object("busy", RUN, 100, 5)
    rows.begin_object("anothers", "run-2", 100, 5)
    assert rows.runs() == {RUN, "run-2"}
    rows.retire_run(RUN, 50, but=["busy"])
    with pytest.raises(ObjectGoneError):
        commit(rows, "a", entry(0, 1, key="gone"))
    rows.begin_object("gone", RUN, 100, 60)
    with pytest.raises(ObjectGoneError):
        commit(rows, "a", entry(0, 1, key="gone"))
    assert entries(rows) == []
    assert commit(rows, "a", entry(0, 1, key="busy"))
    assert commit(rows, "a", entry(1, 2, key="anothers"))
    rows.retire_run(RUN, 70)
    rows.retire_run("run-2", 70)
    assert rows.runs() == set()
    assert [one.object_key for one in entries(rows)] == ["busy", "anothers"], "what is committed stays"


def test_D6_an_object_is_garbage_once_no_entry_of_any_partition_needs_it(rows: DisklessRows) -> None:
    other: PartitionKey = (OTHER, 0)
    for key in (KEY, other):
        claim_one(rows, key, "a", 1, 1)
    for name in ("o1", "o2", "never"):
        rows.begin_object(name, RUN, 100, 5)
    rows.commit([NewEntry(key, "a", entry(0, 10, key="o1")) for key in (KEY, other)])
    commit(rows, "a", entry(10, 20, key="o2"))
    assert rows.garbage(before_ms=1_000) == [], "what may still be committed is none"
    rows.retire_run(RUN, 50)
    assert rows.garbage(before_ms=49) == []
    assert rows.garbage(before_ms=50) == [("never", 100, 50)]
    rows.trim(KEY, 10)
    assert rows.garbage(before_ms=50) == [("never", 100, 50)], "another partition needs the object"
    rows.trim(other, 10)
    assert sorted(rows.garbage(before_ms=50)) == [("never", 100, 50), ("o1", 100, 50)]
    rows.forget(["never", "o1"])
    assert rows.garbage(before_ms=50) == []
    assert rows.object_keys() == {"o2"}
    rows.begin_object("o3", RUN, 100, 60)
    rows.forget(["o3"])
    assert rows.object_keys() == {"o2", "o3"}, "what may still be committed is not forgotten"


def test_D6_trimming_removes_what_ends_at_an_offset_and_no_more(rows: DisklessRows) -> None:
    other: PartitionKey = (TOPIC, 4)
    for key in (KEY, other):
        claim_one(rows, key, "a", 1, 1)
        for first in range(0, 50, 10):
            commit(rows, "a", entry(first, first + 10), key)
    rows.trim(KEY, 25)
    assert [one.base_offset for one in entries(rows)] == [20, 30, 40]
    rows.trim(KEY, 30)
    assert [one.base_offset for one in entries(rows)] == [30, 40]
    assert len(entries(rows, other)) == 5


def test_D6_nothing_is_left_of_a_deleted_topic_and_nobody_commits_to_it(rows: DisklessRows) -> None:
    other: PartitionKey = (OTHER, 3)
    rows.begin_object("o1", RUN, 100, 5)
    for key in (KEY, other):
        claim_one(rows, key, "a", 1, 1)
        commit(rows, "a", entry(0, 1), key)
    commit(rows, "a", entry(1, 2, key="o1"))
    rows.forget_topic(format_topic_id(TOPIC))
    assert rows.load(KEY) == Log("", 0, [])
    assert not commit(rows, "a", entry(2, 3))
    assert rows.topic_ids() == {format_topic_id(OTHER)}
    assert entries(rows, other) == [entry(0, 1)]
    rows.retire_run(RUN, 50)
    assert rows.garbage(before_ms=50) == [("o1", 100, 50)]


def test_R3_of_two_that_claim_and_commit_at_once_the_later_epoch_reads_all_that_counts(url: str) -> None:
    """What the leader before commits is there when the next one reads, or is refused: whichever comes first."""
    made = DisklessRows(url)
    made.create()
    claim_one(made, KEY, "claim-0", 0, 1)
    claims, committed, refused, failures = ["claim-0"], list[int](), list[str](), list[BaseException]()
    stop = threading.Event()

    def commit_on() -> None:
        before = DisklessRows(url)
        try:
            while not stop.is_set():
                claim, offset = claims[-1], len(committed)
                if commit(before, claim, entry(offset, offset + 1)):
                    committed.append(offset)
                else:
                    refused.append(claim)
        except BaseException as error:
            failures.append(error)
        finally:
            before.close()

    thread = threading.Thread(target=commit_on)
    thread.start()
    try:
        for epoch in range(1, 20):
            assert claim_one(made, KEY, f"claim-{epoch}", epoch, 2)
            claim, _, found = made.load(KEY)
            while claims[-1] not in refused and not failures:
                stop.wait(0.001)
            assert claim == f"claim-{epoch}"
            assert [one.base_offset for one in found] == committed, "what was read is all that was committed"
            assert entries(made) == found, "and nothing came after it"
            claims.append(claim)
    finally:
        stop.set()
        thread.join()
        made.close()
    assert not failures


def test_R10_they_move_with_the_metadata_to_another_database(tmp_path: Path) -> None:
    async def start_and_stop() -> None:
        async with running_node(tmp_path):
            pass

    asyncio.run(start_and_stop())
    rows = DisklessRows(sqlite_url(str(tmp_path / "data" / METADATA_FILE)))
    rows.create()
    claim_one(rows, KEY, "a", 1, 1)
    rows.begin_object("o1", RUN, 100, 5)
    commit(rows, "a", entry(0, 1))
    commit(rows, "a", entry(1, 2, key="o1"))
    before = rows.load(KEY)
    rows.close()
    target = sqlite_url(str(tmp_path / "shared.sqlite"))
    move_metadata(DiskStorage(), str(tmp_path / "data"), target)
    moved = DisklessRows(target)
    assert moved.load(KEY) == before
    assert moved.object_keys() == {"o1"}
    moved.close()


def test_R10_a_database_that_was_put_back_is_noticed_by_who_commits(rows: DisklessRows) -> None:
    claim_one(rows, KEY, "a", 1, 1)
    other: PartitionKey = (OTHER, 0)
    claim_one(rows, other, "a", 1, 1)
    assert commit(rows, "a", entry(0, 4))
    found = rows.commit([NewEntry(KEY, "a", entry(7, 8)), NewEntry(other, "a", entry(0, 1))])
    assert (found.led, found.ends) == ({other}, {KEY: 4})
    assert entries(rows) == [entry(0, 4)], "what would leave a gap is not written"


def test_R10_rows_that_nobody_wrote_cost_no_other_partition(rows: DisklessRows) -> None:
    other: PartitionKey = (OTHER, 0)
    for key in (KEY, other):
        claim_one(rows, key, "a", 1, 1)
    with rows._transaction() as connection:
        stray = {"topic_id": format_topic_id(TOPIC), "partition": 3, **entry(0, 9)._asdict()}
        connection.execute(DISKLESS_ENTRIES.insert().values(**stray))
    found = rows.commit([NewEntry(KEY, "a", entry(0, 1)), NewEntry(other, "a", entry(0, 1))])
    assert (found.led, found.ends) == ({other}, {KEY: 0})
    assert entries(rows, other) == [entry(0, 1)]


# --- Logs that are still on disks -----------------------------------------------------------------------------------


def test_R3_only_the_leader_of_the_latest_epoch_copies_a_log(rows: DisklessRows) -> None:
    assert rows.claim_copy(KEY, "first", 4, 1, 10) == 10
    assert commit(rows, "first", entry(10, 12))
    assert rows.claim_copy(KEY, "first", 4, 1, 10) == 12, "it continues where it was"
    assert rows.claim_copy(KEY, "late", 3, 2, 10) is None
    assert entries(rows) == [entry(10, 12)]
    assert rows.claim_copy(KEY, "next", 5, 2, 11) == 11
    assert entries(rows) == [], "its log may be another"
    assert not commit(rows, "first", entry(12, 13))
    assert commit(rows, "next", entry(11, 14))
    assert rows.claim_copy(KEY, "first", 4, 1, 10) is None
    assert rows.load(KEY) == Log("next", 14, [entry(11, 14)])


def test_R3_another_run_under_the_same_epoch_begins_again(rows: DisklessRows) -> None:
    assert rows.claim_copy(KEY, "first", 4, 1, 0) == 0
    assert commit(rows, "first", entry(0, 5))
    assert rows.claim_copy(KEY, "second", 4, 1, 0) == 0
    assert rows.load(KEY) == Log("second", 0, [])


def test_what_is_in_segments_by_now_is_not_copied(rows: DisklessRows) -> None:
    assert rows.claim_copy(KEY, "first", 4, 1, 0) == 0
    assert commit(rows, "first", entry(0, 5))
    assert rows.claim_copy(KEY, "first", 4, 1, 9) == 9
    assert rows.load(KEY) == Log("first", 9, [])


def test_R3_what_was_copied_is_taken_over_by_a_later_epoch_alone(rows: DisklessRows) -> None:
    assert rows.claim_copy(KEY, "copies", 4, 1, 0) == 0
    assert commit(rows, "copies", entry(0, 5))
    assert not claim_one(rows, KEY, "early", 3, 2)
    assert claim_one(rows, KEY, "leads", 5, 2)
    assert rows.load(KEY) == Log("leads", 5, [entry(0, 5)])
    assert rows.claim_copy(KEY, "copies", 4, 1, 0) is None
