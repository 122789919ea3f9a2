"""Members of a group against a real node: who owns what and when, what listeners are told, and who may commit."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from consumer_kit import FACES, Kit, nothing, poll_until, read
from impatience import given_up

import semel
from semel.protocol.errors import AbortTransactionError, ErrorCode, FencedError, RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer import base as consumer_base
from semel.testing import Broker

REBALANCING = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
EAGER = ["range", "roundrobin", "sticky"]


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(params=sorted(FACES))
def kit(node: Broker, request: pytest.FixtureRequest) -> Iterator[Kit]:
    kit = Kit(node, request.param)
    yield kit
    kit.close()


@pytest.fixture
def sync_kit(node: Broker) -> Iterator[Kit]:
    """For what only a blocking consumer can do: listeners that block, and futures that a thread waits for."""
    kit = Kit(node, "sync")
    yield kit
    kit.close()


class Diary(semel.RebalanceListener):
    """Writes down what it is told, with the time of it in a book that all members of a test share."""

    def __init__(self, name: str, book: list[tuple[str, str, frozenset[TopicPartition]]]) -> None:
        self._name = name
        self._book = book
        self.before: dict[str, Callable[[Iterable[TopicPartition]], object]] = {}

    def _note(self, what: str, partitions: Iterable[TopicPartition]) -> None:
        self._book.append((self._name, what, frozenset(partitions)))
        self.before.get(what, lambda _: None)(partitions)

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        self._note("lost", partitions)


def check_G2(book: list[tuple[str, str, frozenset[TopicPartition]]]) -> dict[TopicPartition, str]:
    """Check that nobody is given what another has; return who has what at the end."""
    owners: dict[TopicPartition, str] = {}
    for name, what, partitions in book:
        for tp in partitions:
            if what == "assigned":
                assert owners.get(tp) is None, f"{tp} is {owners[tp]}'s, and {name} got it: {book}"
                owners[tp] = name
            else:
                assert owners.pop(tp) == name, book
    return owners


def split(*consumers: Any, total: int) -> Callable[[], bool]:
    """Whether the partitions are shared out evenly."""

    def is_split() -> bool:
        shares = [consumer.assignment() for consumer in consumers]
        whole = frozenset().union(*shares)
        return len(whole) == total == sum(map(len, shares)) and max(map(len, shares)) - min(map(len, shares)) <= 1

    return is_split


@pytest.mark.parametrize("assignor", ["cooperative-sticky", *EAGER])
def test_G2_partitions_are_revoked_before_the_next_owner_has_them(kit: Kit, assignor: str) -> None:
    tps = kit.create(6)
    book: list[tuple[str, str, frozenset[TopicPartition]]] = []
    first = kit.member(listener=Diary("first", book), assignors=assignor)
    poll_until(lambda: first.assignment() == set(tps), first)
    second = kit.member(listener=Diary("second", book), assignors=assignor)
    poll_until(split(first, second, total=6), first, second)
    third = kit.member(listener=Diary("third", book), assignors=assignor)
    poll_until(split(first, second, third, total=6), first, second, third)
    second.close()
    poll_until(split(first, third, total=6), first, third)
    owners = check_G2(book)
    assert {tp for tp, name in owners.items() if name == "first"} == first.assignment()
    assert set(owners) == set(tps)
    if assignor == "cooperative-sticky":
        revoked = [partitions for name, what, partitions in book if name == "first" and what == "revoked"]
        assert sum(map(len, revoked)) == 4, "of a cooperative member only what moves is revoked"


def test_a_cooperative_member_goes_on_reading_while_the_group_rebalances(kit: Kit) -> None:
    tps = kit.create(2)
    first = kit.member(auto_commit_interval_ms=600_000)
    poll_until(lambda: len(first.assignment()) == 2, first)
    silent = kit.member(auto_commit_interval_ms=600_000)
    poll_until(lambda: kit.admin.group(kit.group).state == "PreparingRebalance", silent)
    for tp in tps:
        kit.fill(f"{tp.partition}", partition=tp.partition)
    found = read(first, 2)  # the other does not take part any more, so the rebalance is not over
    assert sorted(found) == ["0", "1"]
    poll_until(split(first, silent, total=2), first, silent, into=found)
    nothing(first)
    nothing(silent)
    assert sorted(found) == ["0", "1"], "what had been read was committed before it moved"


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_committing_inside_on_revoked_hands_the_place_over(sync_kit: Kit, assignor: str) -> None:
    tps = sync_kit.create(2)
    for tp in tps:
        sync_kit.fill(*"abc", partition=tp.partition)
    book: list[tuple[str, str, frozenset[TopicPartition]]] = []
    diary = Diary("first", book)
    first = sync_kit.member(listener=diary, assignors=assignor)
    diary.before["revoked"] = lambda _: first.commit()
    assert len(read(first, 6)) == 6
    second = sync_kit.member(assignors=assignor)
    found = poll_until(split(first, second, total=2), first, second)
    assert found == []
    nothing(second)


def test_nothing_is_read_twice_where_members_come_and_go_with_commits(kit: Kit) -> None:
    tps = kit.create(4)
    members = [kit.member(auto_commit_interval_ms=600_000) for _ in range(2)]
    found = poll_until(split(*members, total=4), *members)
    for round_number in range(4):
        for tp in tps:
            kit.fill(f"{round_number}/{tp.partition}", partition=tp.partition)
        joined = kit.member(auto_commit_interval_ms=600_000)
        members.append(joined)
        poll_until(split(*members, total=4), *members, into=found)
        members.pop(0).close()  # commits what it was returned
        poll_until(split(*members, total=4), *members, into=found)
    poll_until(lambda: len(found) >= 16, *members, into=found)
    assert sorted(found) == sorted(f"{n}/{tp.partition}" for n in range(4) for tp in tps)


def test_seeking_inside_on_assigned_says_where_to_begin(kit: Kit) -> None:
    kit.create()
    kit.fill(*"abcd")
    diary = Diary("first", [])
    first = kit.member(listener=diary)
    seeker = first if kit.face == "sync" else first._consumer
    diary.before["assigned"] = lambda partitions: [seeker.seek(tp, 2) for tp in partitions]
    assert read(first, 2) == ["c", "d"]


def test_an_error_in_a_listener_comes_out_of_poll_and_the_rebalance_goes_on(kit: Kit) -> None:
    kit.create()
    kit.fill("a")
    diary = Diary("first", [])
    first = kit.member(listener=diary)

    def fail_once(_: object) -> None:
        del diary.before["assigned"]
        raise LookupError("no cache")

    diary.before["assigned"] = fail_once
    with pytest.raises(LookupError, match="no cache"):
        poll_until(lambda: False, first)
    assert read(first, 1) == ["a"]


def test_close_and_unsubscribe_tell_the_listener_and_leave_the_group(kit: Kit) -> None:
    tps = kit.create(2)
    book: list[tuple[str, str, frozenset[TopicPartition]]] = []
    first = kit.member(listener=Diary("first", book), session_timeout_ms=60_000)
    poll_until(lambda: first.assignment(), first)
    first.unsubscribe()
    assert book[-1] == ("first", "revoked", frozenset(tps))
    assert kit.admin.group(kit.group).members == ()
    first.subscribe([kit.topic])
    poll_until(lambda: first.assignment(), first)
    first.close()
    assert [what for _, what, _ in book] == ["assigned", "revoked", "assigned", "revoked"]
    assert kit.admin.group(kit.group).members == ()


def test_a_member_that_does_not_poll_for_too_long_loses_its_partitions_and_comes_back(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill("a")
    book: list[tuple[str, str, frozenset[TopicPartition]]] = []
    stuck = kit.member(listener=Diary("stuck", book), max_poll_interval_ms=150)
    assert read(stuck, 1) == ["a"]
    other = kit.member(listener=Diary("other", book))
    found = poll_until(lambda: other.assignment() == {a}, other)
    with pytest.raises(AbortTransactionError, match=r"no member of group.*poll to join") as caught:
        stuck.commit()
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert found + read(other, 1 - len(found)) == ["a"]
    other.commit()
    poll_until(lambda: ("stuck", "lost", frozenset({a})) in book, stuck, other)
    other.close()
    poll_until(lambda: stuck.assignment() == {a}, stuck)
    nothing(stuck)


def test_O4_a_member_whose_session_ended_can_commit_nothing_and_is_told_on_lost(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"ab")
    book: list[tuple[str, str, frozenset[TopicPartition]]] = []
    zombie = kit.member(listener=Diary("zombie", book), heartbeat_interval_ms=49_000, session_timeout_ms=50_000)
    assert read(zombie, 1, max_records=1) == ["a"]
    kit.node.advance(51)
    with pytest.raises(AbortTransactionError) as caught:
        zombie.commit()
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    fresh = kit.member()
    assert read(fresh, 2) == ["a", "b"]
    fresh.commit()
    with pytest.raises(AbortTransactionError):
        zombie.commit({a: 1})
    assert fresh.committed() == {a: semel.OffsetAndMetadata(2)}


def test_G4_a_static_member_that_comes_back_has_its_partitions_without_a_rebalance(kit: Kit) -> None:
    kit.create(4)
    first = kit.member(instance_id="one")
    other = kit.member(instance_id="two")
    poll_until(split(first, other, total=4), first, other)
    had, generation = first.assignment(), kit.admin.group(kit.group).generation_id
    first.close()
    assert len(kit.admin.group(kit.group).members) == 2
    again = kit.member(instance_id="one")
    poll_until(lambda: again.assignment() == had, again)
    assert kit.admin.group(kit.group).generation_id == generation
    other.poll(0)
    assert len(other.assignment()) == 2


def test_O4_a_static_member_that_was_replaced_is_fenced(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill("a")
    book: list[tuple[str, str, frozenset[TopicPartition]]] = []
    old = kit.member(instance_id="one", listener=Diary("old", book))
    assert read(old, 1) == ["a"]
    new = kit.member(instance_id="one")
    assert read(new, 1) == ["a"]
    with pytest.raises(FencedError) as caught:
        old.commit({a: 1})
    assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID
    for _ in range(2):  # and it stays fenced, and never takes the place back
        with pytest.raises(FencedError):
            poll_until(lambda: False, old)
    assert ("old", "lost", frozenset({a})) in book
    new.commit()
    nothing(new)


def test_commit_commits_what_was_handed_out_and_sought(kit: Kit) -> None:
    a, b = kit.create(2)
    kit.fill(*"abcd")
    reader = kit.member()
    assert read(reader, 2, max_records=2) == ["a", "b"]
    reader.commit()
    assert reader.committed() == {a: semel.OffsetAndMetadata(2), b: None}
    reader.seek(a, 1)
    reader.commit()
    assert reader.committed([a]) == {a: semel.OffsetAndMetadata(1)}
    reader.commit({a: semel.OffsetAndMetadata(3, metadata="why"), b: 0})
    assert reader.committed() == {
        a: semel.OffsetAndMetadata(3, metadata="why"),
        b: semel.OffsetAndMetadata(0),
    }
    reader.seek_to_end([a])
    reader.commit()  # it is not known yet where that is
    assert reader.committed([a]) == {a: semel.OffsetAndMetadata(3, metadata="why")}
    reader.close()
    again = kit.member()
    assert read(again, 1) == ["d"]


def test_a_commit_for_a_partition_that_is_not_there_says_so(kit: Kit) -> None:
    kit.create()
    reader = kit.member()
    poll_until(lambda: reader.assignment(), reader)
    while True:
        with pytest.raises(SemelError) as caught:
            reader.commit({TopicPartition(kit.topic, 9): 1})
        if caught.value.code not in REBALANCING:  # of its own making, where its topics were looked up again
            break
        reader.poll(0.01)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert re.search(r"offset of .*-9 was not committed for group", caught.value.message)


def test_commit_before_the_first_poll_is_refused(kit: Kit) -> None:
    (a,) = kit.create()
    reader = kit.member()
    with pytest.raises(AbortTransactionError, match="no member of group"):
        reader.commit({a: 5})


def test_an_assigned_reader_may_commit_for_a_group_without_members(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"ab")
    reader = kit.consumer(group=kit.group)
    reader.assign([a])
    assert read(reader, 1, max_records=1) == ["a"]
    reader.commit()
    other = kit.consumer(group=kit.group)
    other.assign([a])
    assert read(other, 1) == ["b"]
    member = kit.member()
    poll_until(lambda: member.assignment(), member)
    with pytest.raises(AbortTransactionError) as caught:
        other.commit()
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_async_in_order_with_callbacks_in_later_calls(sync_kit: Kit) -> None:
    (a,) = sync_kit.create()
    sync_kit.fill("a")
    reader = sync_kit.member()
    read(reader, 1)
    told: list[tuple[int, SemelError | None]] = []
    futures = [reader.commit_async({a: n}, lambda error, n=n: told.append((n, error))) for n in range(20)]
    futures[-1].result(10)
    assert told == []
    assert reader.committed() == {a: semel.OffsetAndMetadata(19)}
    reader.poll(0)
    assert told == [(n, None) for n in range(20)]
    bad = TopicPartition(sync_kit.topic, 9)
    reader.commit_async({bad: 1}, lambda error: told.append((99, error))).exception(10)
    reader.commit()
    assert told[-1][0] == 99
    assert isinstance(told[-1][1], SemelError)
    reader.commit_async({bad: 1}).exception(10)
    with pytest.raises(SemelError, match="was not committed"):
        reader.poll(0)


def test_commit_async_from_asyncio(sync_kit: Kit) -> None:
    (a,) = sync_kit.create()
    sync_kit.fill("a")
    bad = TopicPartition(sync_kit.topic, 9)
    told: list[SemelError | None] = []

    async def run() -> None:
        async with semel.aio.Consumer(sync_kit.node.bootstrap, group=sync_kit.group, topics=[sync_kit.topic]) as reader:
            assert await reader.poll(10) is not None
            await asyncio.gather(*(reader.commit_async({a: n}, told.append) for n in range(20)))
            assert told == []
            assert await reader.committed() == {a: semel.OffsetAndMetadata(19)}
            assert told == []
            await reader.poll(0)
            assert told == [None] * 20
            with pytest.raises(SemelError, match="was not committed"):
                await reader.commit_async({bad: 1}, told.append)
            await reader.commit()
            assert isinstance(told[-1], SemelError)
            with pytest.raises(SemelError, match="was not committed"):
                await reader.commit_async({bad: 1})
            with pytest.raises(SemelError, match="was not committed"):
                await reader.poll(0)

    asyncio.run(run())


def test_commit_async_is_bounded(sync_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_base, "COMMITS_PENDING_MAX", 2)
    (a,) = sync_kit.create()
    reader = sync_kit.member()
    poll_until(lambda: reader.assignment(), reader)
    reader.commit_async({a: 0}).result(10)
    reader.commit_async({a: 0}).result(10)
    with pytest.raises(RetriableError, match="2 commits wait already; poll"):
        reader.commit_async({a: 0})
    reader.poll(0)
    reader.commit_async({a: 0}).result(10)


def test_auto_commit_never_commits_what_was_not_handed_out_before(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcdef")
    reader = kit.member(auto_commit_interval_ms=1)
    observer = kit.admin
    assert read(reader, 2, max_records=2) == ["a", "b"]
    handed_out = 2
    deadline = time.monotonic() + 20
    seen: list[int] = []
    while handed_out < 6 or (seen and seen[-1] < 6):
        assert time.monotonic() < deadline
        committed = observer.group_offsets(kit.group).get(a)
        seen.append(-1 if committed is None else committed.offset)
        assert seen[-1] <= handed_out
        batch = reader.poll(0.01, 1)
        handed_out += 0 if batch is None else len(batch)
    assert seen == sorted(seen)


def test_auto_commit_commits_when_closing_but_not_after_an_exception(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcd")
    with kit.member(auto_commit_interval_ms=600_000) as reader:
        assert read(reader, 2, max_records=2) == ["a", "b"]
    with pytest.raises(LookupError), kit.member(auto_commit_interval_ms=600_000) as reader:  # noqa: PT012
        assert read(reader, 1, max_records=1) == ["c"]
        raise LookupError
    with kit.member(auto_commit_interval_ms=600_000) as reader:
        assert read(reader, 2) == ["c", "d"]
        reader.unsubscribe()
    assert kit.admin.group_offsets(kit.group)[a].offset == 4


def test_without_auto_commit_nothing_is_committed(kit: Kit) -> None:
    kit.create()
    kit.fill("a")
    with kit.member() as reader:
        assert read(reader, 1) == ["a"]
    with kit.member() as reader:
        assert read(reader, 1) == ["a"]


def test_O2_committed_waits_for_a_transaction_that_is_about_to_commit(kit: Kit) -> None:
    a, b = kit.create(2)
    kit.fill("a0", "a1")
    kit.fill("b0", partition=1)
    reader = kit.member()
    batch = None
    while batch is None or len(batch) < 3:
        batch = reader.poll(1.0)
        if batch is not None and len(batch) < 3:
            reader.seek_to_beginning()
    with semel.Producer(kit.node.bootstrap, transactional_id=kit.topic) as producer:
        producer.begin_transaction()
        producer.send_offsets({a: 1}, batch.group_metadata)
        waiting = kit.consumer(group=kit.group)
        error = given_up(waiting, lambda: waiting.committed([a, b]), ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert re.search(r"a transaction holds the committed offset of .* open", error.message)
        other = kit.consumer(group=kit.group)
        other.assign([a, b])
        assert read(other, 1) == ["b0"], "a partition with a stable place need not wait for the other"
        nothing(other)
        producer.commit_transaction()
        assert read(other, 1) == ["a1"]
        assert waiting.committed([a, b]) == {a: semel.OffsetAndMetadata(1), b: None}


def test_a_group_with_another_protocol_refuses_this_member(kit: Kit) -> None:
    kit.create()
    first = kit.member(assignors="range")
    poll_until(lambda: first.assignment(), first)
    other = kit.member(assignors="sticky")
    nothing(other, 0.2)  # as long as the other is there: it may be about to leave
    first.close()
    poll_until(lambda: other.assignment(), other)


def test_members_of_different_settings_agree_on_an_assignor(kit: Kit) -> None:
    kit.create(2)
    first = kit.member(assignors=["sticky", "range"])
    second = kit.member(assignors=["range", "roundrobin"])
    poll_until(split(first, second, total=2), first, second)
    assert kit.admin.group(kit.group).protocol_name == "range"


def test_poll_needs_something_to_read(kit: Kit) -> None:
    reader = kit.consumer(group=kit.group)
    with pytest.raises(UsageError, match="reads nothing yet"):
        reader.poll(0)
