"""What a consumer reads and where, against a real node, on both faces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from consumer_kit import FACES, Kit, nothing, poll_until, read, values

import semel
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer import topic_watch
from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(params=sorted(FACES))
def kit(node: Broker, request: pytest.FixtureRequest) -> Iterator[Kit]:
    kit = Kit(node, request.param)
    yield kit
    kit.close()


def test_assigned_partitions_are_read_in_order_from_the_start(kit: Kit) -> None:
    a, b = kit.create(2)
    kit.fill("a0", "a1", "a2")
    kit.fill("b0", partition=1)
    reader = kit.consumer()
    reader.assign([a, b])
    assert reader.assignment() == {a, b}
    found = read(reader, 4)
    assert [value for value in found if value.startswith("a")] == ["a0", "a1", "a2"]
    assert "b0" in found
    assert reader.position(a) == 3
    assert reader.lag() == {a: 0, b: 0}
    assert reader.beginning_offsets() == {a: 0, b: 0}
    assert reader.end_offsets() == {a: 3, b: 1}


def test_records_have_all_that_was_sent(kit: Kit) -> None:
    (a,) = kit.create()
    with semel.Producer(kit.node.bootstrap) as producer:
        producer.send(kit.topic, None, key=b"k", headers={"h": b"\xff", "n": None}, timestamp_ms=1234)
        producer.send(kit.topic, b"", key=b"")
    reader = kit.consumer()
    reader.assign([a])
    first, second = reader.poll(10, 2)
    assert (first.key, first.value, first.timestamp_ms) == (b"k", None, 1234)
    assert ("h", b"\xff") in first.headers
    assert ("n", None) in first.headers
    assert (first.topic, first.partition, first.offset) == (kit.topic, 0, 0)
    assert (second.key, second.value, second.offset) == (b"", b"", 1)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_header_name_that_is_not_utf8_is_read_and_sent_on_as_it_is_and_stops_nobody(kit: Kit, codec: Any) -> None:
    """Kafka's broker takes it, since it skips headers when it checks records; some clients stop at it."""
    (a,) = kit.create()
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    reader = kit.consumer()
    reader.assign([a])
    with semel.Producer(kit.node.bootstrap, compression=codec) as producer:
        producer.send(kit.topic, b"before")
        producer.send(kit.topic, b"bad", headers=[(name, b"x"), ("ok", b"y")])
        producer.send(kit.topic, b"after")
        producer.flush()
        first, bad, last = (one for _ in range(3) for one in reader.poll(10, 1))
        assert (first.value, bad.value, last.value) == (b"before", b"bad", b"after")
        assert [header for header in bad.headers if header[0] != "traceparent"] == [(name, b"x"), ("ok", b"y")]
        producer.send(kit.topic, bad.value, headers=bad.headers)
        producer.flush()
    (again,) = reader.poll(10, 1)
    assert again.headers == bad.headers
    assert again.headers[0][0].encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_poll_gives_no_more_than_was_asked_for_and_ends_in_time(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcdefg")
    reader = kit.consumer()
    reader.assign([a])
    assert [len(reader.poll(10, 3)) for _ in range(3)] == [3, 3, 1]
    assert reader.poll(0) is None
    assert reader.poll(0.01) is None


def test_seek_goes_forward_back_and_to_both_ends(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcde")
    reader = kit.consumer()
    reader.assign([a])
    reader.seek(a, 3)
    assert reader.position(a) == 3
    assert read(reader, 2) == ["d", "e"]
    reader.seek(a, 1)
    assert read(reader, 1) == ["b"]
    reader.seek_to_beginning()
    assert reader.position(a) in (None, 0), "it is looked up by another thread"
    assert read(reader, 5) == list("abcde")
    reader.seek_to_beginning([a])
    reader.seek_to_end([a])
    nothing(reader)
    assert reader.position(a) == 5
    kit.fill("f")
    assert read(reader, 1) == ["f"]


def test_seek_by_timestamp_and_offsets_for_times(kit: Kit) -> None:
    a, b = kit.create(2)
    with semel.Producer(kit.node.bootstrap) as producer:
        for second in range(5):
            producer.send(kit.topic, f"{second}".encode(), partition=0, timestamp_ms=second * 1000)
        producer.send(kit.topic, b"old", partition=1, timestamp_ms=1)
    reader = kit.consumer()
    reader.assign([a, b])
    assert reader.offsets_for_times({a: 2500, b: 2500}) == {a: 3, b: None}
    reader.seek_to_timestamp(2500)
    assert read(reader, 2) == ["3", "4"]
    nothing(reader)
    assert reader.position(b) == 1


def test_paused_partitions_hand_out_nothing_until_resumed(kit: Kit) -> None:
    a, b = kit.create(2)
    reader = kit.consumer()
    reader.assign([a, b])
    reader.pause([a])
    kit.fill("a0", "a1")
    kit.fill("b0", partition=1)
    assert read(reader, 1) == ["b0"]
    nothing(reader)
    assert reader.paused() == {a}
    assert reader.assignment() == {a, b}
    reader.resume([a])
    assert read(reader, 1) == ["a0"]
    reader.pause()  # also what is fetched already
    nothing(reader)
    reader.resume()
    assert read(reader, 1) == ["a1"]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", ["old", "new"]), ("latest", ["new"])])
def test_offset_reset_says_where_to_begin(kit: Kit, reset: str, expected: list[str]) -> None:
    (a,) = kit.create()
    kit.fill("old")
    reader = kit.consumer(offset_reset=reset)
    reader.assign([a])
    if reset == "latest":
        nothing(reader)
    kit.fill("new")
    assert read(reader, len(expected)) == expected


def test_offset_reset_error_is_an_error_until_the_user_seeks(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill("old")
    reader = kit.consumer(offset_reset="error", group=kit.group)
    reader.assign([a])
    with pytest.raises(FatalError, match=f"no offset to begin at for {a}: nothing is committed") as caught:
        reader.poll(10)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    reader.seek(a, 0)
    assert read(reader, 1) == ["old"]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", "c"), ("latest", "new")])
def test_an_offset_out_of_range_is_reset(kit: Kit, reset: str, expected: str) -> None:
    (a,) = kit.create()
    kit.fill(*"abcd")
    kit.admin.delete_records({a: 2})
    reader = kit.consumer(offset_reset=reset)
    reader.assign([a])
    reader.seek(a, 0)
    if reset == "latest":
        nothing(reader)
        kit.fill("new")
    assert read(reader, 1) == [expected]


def test_an_offset_out_of_range_is_an_error_where_the_user_wants_one(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill("a")
    reader = kit.consumer(offset_reset="error")
    reader.assign([a])
    reader.seek(a, 99)
    with pytest.raises(FatalError, match=f"offset 99 of {a} is not in the log.*seek to where reading is to continue"):
        reader.poll(10)
    reader.seek(a, 0)
    assert read(reader, 1) == ["a"]


def test_records_larger_than_all_bounds_are_read(kit: Kit) -> None:
    tps = kit.create(3)
    for tp in tps:
        kit.fill("x" * 200_000, "y" * 300_000, partition=tp.partition)
    reader = kit.consumer(max_partition_bytes=1000, max_bytes=2000)
    reader.assign(tps)
    found = read(reader, 6)
    assert sorted(len(value) for value in found) == [200_000] * 3 + [300_000] * 3


def test_a_huge_record_behind_busy_partitions_has_its_turn(kit: Kit) -> None:
    """The node cuts an answer off after its first batch: nobody may always come last."""
    small = kit.create(3)
    (huge,) = kit.create(topic=f"z-{kit.topic}")
    for tp in small:
        kit.fill(*(f"{n}" for n in range(50)), partition=tp.partition, linger_ms=0)
    kit.fill("h" * 100_000, topic=huge.topic)
    reader = kit.consumer(max_partition_bytes=500, max_bytes=600)
    reader.assign([*small, huge])
    found = read(reader, 151, max_records=10)
    assert sum(len(value) > 1000 for value in found) == 1


def test_partitions_have_their_turn(kit: Kit) -> None:
    tps = kit.create(20)
    for tp in tps:
        kit.fill(*(str(n) for n in range(100)), partition=tp.partition)
    reader = kit.consumer()
    reader.assign(tps)
    seen: list[int] = []
    while len(set(seen)) < len(tps):
        batch = reader.poll(10, 10)
        seen += {record.partition for record in batch}
    assert len(seen) <= 3 * len(tps), "a partition came again long before others came at all"


def test_a_topic_that_is_not_there_is_an_error_at_once_and_read_when_it_is(kit: Kit) -> None:
    reader = kit.member()
    with pytest.raises(FatalError, match=f"no topic '{kit.topic}'; create it with Admin.create_topic"):
        reader.poll(10)
    kit.create()
    kit.fill("a")
    assert read(reader, 1) == ["a"]


def test_a_partition_that_is_not_there_is_an_error(kit: Kit) -> None:
    kit.create(2)
    reader = kit.consumer()
    reader.assign([TopicPartition(kit.topic, 2)])
    with pytest.raises(FatalError, match="has 2 partitions, numbered from 0: there is no"):
        reader.poll(10)
    kit.admin.add_partitions(kit.topic, 3)
    kit.fill("a", partition=2)
    assert read(reader, 1) == ["a"]


def test_a_pattern_takes_topics_and_partitions_in_that_come_later(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "TOPICS_CHECK_INTERVAL_S", 0.02)
    reader = kit.member(pattern=f"{kit.topic}-.*")
    nothing(reader, 0.1)
    (a,) = kit.create(topic=f"{kit.topic}-a")
    (other,) = kit.create(topic=f"not-{kit.topic}-a")
    poll_until(lambda: reader.assignment() == {a}, reader)
    (b,) = kit.create(topic=f"{kit.topic}-b")
    poll_until(lambda: reader.assignment() == {a, b}, reader)
    kit.admin.add_partitions(b.topic, 2)
    more = TopicPartition(b.topic, 1)
    poll_until(lambda: reader.assignment() == {a, b, more}, reader)
    kit.fill("x", topic=b.topic, partition=1)
    kit.fill("y", topic=other.topic)
    assert read(reader, 1) == ["x"]
    kit.admin.delete_topic(a.topic)
    poll_until(lambda: reader.assignment() == {b, more}, reader)


def test_topics_get_their_new_partitions(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "TOPICS_CHECK_INTERVAL_S", 0.02)
    (a,) = kit.create()
    reader = kit.member()
    poll_until(lambda: reader.assignment() == {a}, reader)
    kit.admin.add_partitions(kit.topic, 2)
    poll_until(lambda: len(reader.assignment()) == 2, reader)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_topic_created_again_under_its_name_is_read_from_its_start(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    """A position in the topic that was deleted says nothing of the new one: it would skip what is before it."""
    monkeypatch.setattr(topic_watch, "TOPICS_CHECK_INTERVAL_S", 60.0)
    (a,) = kit.create()
    kit.fill("old0", "old1")
    reader = kit.consumer(group=kit.group, offset_reset=reset)
    reader.assign([a])
    reader.seek_to_beginning()
    assert read(reader, 2) == ["old0", "old1"]
    kit.admin.delete_topic(kit.topic)
    kit.create()
    kit.fill("new0", "new1", "new2", "new3")
    assert read(reader, 4) == ["new0", "new1", "new2", "new3"]
    reader.commit()
    assert reader.committed() == {a: semel.OffsetAndMetadata(4)}


def test_a_topic_created_again_is_an_error_where_the_user_wants_one(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill("old0", "old1")
    reader = kit.consumer(offset_reset="error")
    reader.assign([a])
    reader.seek(a, 0)
    read(reader, 2)
    kit.admin.delete_topic(kit.topic)
    kit.create()
    kit.fill("new0", "new1", "new2")
    with pytest.raises(FatalError, match="no offset to begin at"):
        read(reader, 1)
    reader.seek(a, 0)
    assert read(reader, 3) == ["new0", "new1", "new2"]


def test_a_deleted_partition_does_not_hold_up_the_others(kit: Kit) -> None:
    (a,) = kit.create()
    (b,) = kit.create(topic=f"{kit.topic}-b")
    reader = kit.consumer()
    reader.assign([a, b])
    nothing(reader, 0.1)
    kit.admin.delete_topic(b.topic)
    kit.fill("a0")
    assert read(reader, 1) == ["a0"]
    reader.seek_to_beginning()  # one of the two can't be located
    assert read(reader, 1) == ["a0"]


def test_assign_again_keeps_the_place_of_what_stays(kit: Kit) -> None:
    a, b = kit.create(2)
    kit.fill("a0", "a1")
    kit.fill("b0", partition=1)
    reader = kit.consumer()
    reader.assign([a])
    assert read(reader, 1) == ["a0"]
    reader.assign([a, b])
    assert sorted(read(reader, 2)) == ["a1", "b0"]
    reader.assign([b])
    assert reader.assignment() == {b}
    reader.assign([a, b])
    assert sorted(read(reader, 2)) == ["a0", "a1"]


def test_ways_of_reading_can_be_changed_after_unsubscribe(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill("a0")
    reader = kit.member()
    assert read(reader, 1) == ["a0"]
    with pytest.raises(UsageError, match="call unsubscribe"):
        reader.assign([a])
    reader.unsubscribe()
    assert reader.assignment() == frozenset()
    with pytest.raises(UsageError, match="reads nothing yet"):
        reader.poll(0)
    reader.assign([a])
    assert read(reader, 1) == ["a0"]
    reader.unsubscribe()
    reader.subscribe([kit.topic])
    assert read(reader, 1) == ["a0"]


def test_another_subscription_takes_the_place_of_the_one_before(kit: Kit) -> None:
    (a,) = kit.create()
    (b,) = kit.create(topic=f"{kit.topic}-b")
    reader = kit.member()
    poll_until(lambda: reader.assignment() == {a}, reader)
    reader.subscribe([b.topic])
    poll_until(lambda: reader.assignment() == {b}, reader)


def test_L2_L3_a_read_committed_reader_sees_neither_open_nor_aborted_records(kit: Kit) -> None:
    (a,) = kit.create()
    with semel.Producer(kit.node.bootstrap, transactional_id=f"{kit.topic}-1") as producer:
        with producer.transaction() as txn:
            txn.send(kit.topic, b"committed", partition=0)
        with pytest.raises(RuntimeError), producer.transaction() as txn:  # noqa: PT012
            txn.send(kit.topic, b"aborted", partition=0)
            producer.flush()
            raise RuntimeError
        kit.fill("plain")
        producer.begin_transaction()
        producer.send(kit.topic, b"open", partition=0)
        producer.flush()
        kit.fill("behind")
        committed = kit.consumer()
        committed.assign([a])
        uncommitted = kit.consumer(isolation="read_uncommitted")
        uncommitted.assign([a])
        assert read(committed, 2) == ["committed", "plain"]
        nothing(committed)
        assert read(uncommitted, 5) == ["committed", "aborted", "plain", "open", "behind"]
        assert committed.end_offsets()[a] < uncommitted.end_offsets()[a]
        assert committed.lag() == {a: 0}
        producer.commit_transaction()
    assert read(committed, 2) == ["open", "behind"]
    nothing(committed)  # the marker is passed over
    assert committed.position(a) == uncommitted.end_offsets()[a]


def test_L3_what_markers_leave_no_record_of_counts_as_read(kit: Kit) -> None:
    (a,) = kit.create()
    reader = kit.member()
    with semel.Producer(kit.node.bootstrap, transactional_id=kit.topic) as producer, producer.transaction() as txn:
        txn.send(kit.topic, b"a", partition=0)
    assert read(reader, 1) == ["a"]
    poll_until(lambda: reader.position(a) == 2, reader)
    reader.commit()
    assert kit.admin.group_lag(kit.group)[a].lag == 0


def test_iteration_hands_out_record_by_record(kit: Kit) -> None:
    a, b = kit.create(2)
    kit.fill(*(f"a{n}" for n in range(700)))
    kit.fill("b0", partition=1)
    reader = kit.member()
    found = []
    for record in reader:
        found.append((record.value or b"").decode())
        if len(found) == 250:
            break
    reader.commit()
    done = {tp: place.offset for tp, place in reader.committed().items() if place is not None}
    assert sum(done.values()) == 250
    assert done[a] >= 249, "the other partition has one record"
    assert all(reader.position(tp) == offset for tp, offset in done.items())
    for record in reader:  # continues where it was broken off
        found.append((record.value or b"").decode())
        if len(found) == 300:
            break
    found += read(reader, 401)  # and so does poll
    assert sorted(found) == sorted([f"a{n}" for n in range(700)] + ["b0"])
    reader.commit()
    assert {tp: place.offset for tp, place in reader.committed().items()} == {a: 700, b: 1}


def test_E1_a_broken_off_iteration_auto_commits_only_what_was_handed_out(kit: Kit) -> None:
    """Also once a poll has ended the iteration: what it had left is returned again, and must not pass for processed."""
    (a,) = kit.create()
    kit.fill(*"abcdefghij")
    reader = kit.member(auto_commit_interval_ms=1)
    found = []
    for record in reader:
        found.append((record.value or b"").decode())
        if len(found) == 3:
            break
    reader.pause([a])  # so that polls return nothing more, and still commit

    def committed() -> int | None:
        place = kit.admin.group_offsets(kit.group).get(a)
        return None if place is None else place.offset

    poll_until(lambda: (committed() or 0) >= 3, reader)
    assert committed() == 3
    reader.resume([a])
    assert found + read(reader, 7) == list("abcdefghij")
    poll_until(lambda: committed() == 10, reader)


def test_E1_commit_after_rewind_commits_the_place_gone_back_to(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcdef")
    reader = kit.member()
    assert read(reader, 1) == ["a"]
    batch = None
    while batch is None:
        batch = reader.poll(1.0, 3)
    batch.rewind()
    reader.commit()
    assert reader.committed()[a] == semel.OffsetAndMetadata(1)
    assert read(reader, 5) == list("bcdef")
    reader.commit()
    assert reader.committed()[a] == semel.OffsetAndMetadata(6)


def test_E1_commit_inside_an_iteration_commits_the_place_that_an_older_batch_was_rewound_to(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcdef")
    reader = kit.member()
    older = None
    while older is None:
        older = reader.poll(1.0, 2)
    for record in reader:
        assert values([record]) == ["c"]
        break
    older.rewind()
    reader.commit()
    assert reader.committed()[a] == semel.OffsetAndMetadata(0)
    assert read(reader, 6) == list("abcdef")


def test_commit_after_each_record_of_an_iteration_commits_it(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abc")
    reader = kit.member()
    for number, _ in enumerate(reader, start=1):
        reader.commit()
        assert reader.committed()[a] == semel.OffsetAndMetadata(number)
        assert reader.position(a) == number
        if number == 3:
            break


def test_seek_and_pause_take_effect_inside_an_iteration(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcde")
    reader = kit.consumer()
    reader.assign([a])
    found = []
    for record in reader:
        found.append(values([record])[0])
        if found == ["a", "b"]:
            reader.seek(a, 4)
        if found[-1] == "e":
            reader.seek(a, 0)
            break
    assert found == ["a", "b", "e"]
    assert read(reader, 5) == list("abcde")


def test_many_idle_partitions_and_one_busy_one(kit: Kit) -> None:
    tps = kit.create(300)
    reader = kit.consumer()
    reader.assign(tps)
    nothing(reader)
    for n in range(5):
        kit.fill(str(n), partition=299)
        assert read(reader, 1) == [str(n)]
    assert set(reader.lag()) == set(tps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "orders", "group": "g"}, r"topics takes a list of names: \['orders'\]"),
        ({"topics": [], "group": "g"}, "topics is empty"),
        ({"topics": [1], "group": "g"}, "option topics must be text"),
        ({"topics": 1, "group": "g"}, "topics takes a list of names, not int"),
        ({"topics": ["a"]}, "subscribing needs a group"),
        ({"topics": ["a"], "pattern": "b", "group": "g"}, "either topics or pattern"),
        ({"pattern": "(", "group": "g"}, "not a regular expression"),
        ({"group": ""}, "option group must not be empty"),
        ({"groop": "g"}, "Consumer has no option 'groop'; did you mean 'group'"),
        ({"isolation": "committed"}, "did you mean 'read_committed'"),
        ({"offset_reset": "xyz"}, "use one of: earliest, latest, error"),
        ({"assignors": "sticki", "group": "g"}, "did you mean 'sticky'"),
        ({"assignors": [], "group": "g"}, "option assignors is empty"),
        ({"assignors": 5, "group": "g"}, "option assignors takes a name"),
        ({"instance_id": "i"}, "option instance_id names a member of a group"),
        ({"auto_commit_interval_ms": 5}, "commits for a group"),
        ({"auto_commit_interval_ms": 0, "group": "g"}, "auto_commit_interval_ms must be between 1"),
        ({"heartbeat_interval_ms": 50_000, "group": "g"}, "must be less than session_timeout_ms"),
        ({"max_wait_ms": -1}, "max_wait_ms must be between 0"),
        ({"max_bytes": 1.5}, "max_bytes must be an integer"),
        ({"rack": None}, "option rack must be text"),
        ({"listener": object()}, "listener must be an instance of a subclass of RebalanceListener.*has no on_assigned"),
        ({"listener": semel.RebalanceListener}, "listener must be an instance"),
        ({"bootstrap": "localhost"}, "is not HOST:PORT"),
    ],
)
@pytest.mark.parametrize("face", sorted(FACES))
def test_wrong_options_say_what_to_do(face: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FACES[face](**options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.poll(-1), "timeout_s must be seconds, 0 or more"),
        (lambda c: c.poll("1"), "timeout_s must be seconds"),
        (lambda c: c.poll(float("nan")), "timeout_s must be seconds"),
        (lambda c: c.poll(1, 0), "max_records must be between 1"),
        (lambda c: c.poll(1), r"reads nothing yet; call subscribe\(\) or assign\(\)"),
        (lambda c: c.assign("t"), "partitions takes a list such as"),
        (lambda c: c.assign(TopicPartition("t", 0)), "partitions takes a list such as"),
        (lambda c: c.assign([("t",)]), "a partition is TopicPartition"),
        (lambda c: c.assign([("t", -1)]), "partition must be between 0"),
        (lambda c: c.subscribe(), "either topics or pattern"),
        (lambda c: c.subscribe(["t"]), "subscribing needs a group"),
        (lambda c: c.seek(TopicPartition("t", 0), 5), "t-0 is not assigned to this consumer, which has nothing"),
        (lambda c: c.seek("t", 5), "a partition is TopicPartition"),
        (lambda c: c.seek(TopicPartition("t", 0), -5), "offset must be between 0"),
        (lambda c: c.position("t"), "a partition is TopicPartition"),
        (lambda c: c.pause([TopicPartition("t", 0)]), "t-0 is not assigned"),
        (lambda c: c.seek_to_end([TopicPartition("t", 0)]), "t-0 is not assigned"),
        (lambda c: c.seek_to_timestamp(-1), "timestamp_ms must be between 0"),
        (lambda c: c.offsets_for_times({TopicPartition("t", 0): -1}), "timestamp of t-0 must be between 0"),
        (lambda c: c.commit(), "committing needs a group"),
        (lambda c: c.committed([TopicPartition("t", 0)]), "committed offsets need a group"),
        (lambda c: c.commit([1]), "offsets takes a mapping such as"),
        (lambda c: c.commit({TopicPartition("t", 0): "5"}), "offset of t-0 must be an integer"),
        (lambda c: c.close(-1), "timeout_s must be seconds"),
    ],
)
@pytest.mark.parametrize("face", sorted(FACES))
def test_wrong_calls_say_what_to_do(face: str, call: Any, message: str) -> None:
    with FACES[face]("localhost:1") as consumer, pytest.raises(UsageError, match=message):
        call(consumer)


def test_an_assignment_may_say_where_to_begin() -> None:
    with Broker() as node:
        topic = node.create_topic()
        with semel.Producer(node.bootstrap) as producer:
            for number in range(5):
                producer.send(topic, b"%d" % number)
        tp = semel.TopicPartition(topic, 0)
        with semel.Consumer(node.bootstrap, offset_reset="error") as consumer:
            for offset in (3, 1, 4):  # where others were, and while it runs
                consumer.assign({tp: offset})
                batch = consumer.poll(30)
                assert batch is not None
                assert [record.offset for record in batch] == list(range(offset, 5))
            with pytest.raises(semel.UsageError, match=r"offset of .*-0"):
                consumer.assign({tp: -1})
