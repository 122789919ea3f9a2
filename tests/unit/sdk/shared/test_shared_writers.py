"""Shared transactions as programs use them: writers join, a commit names them, and much goes wrong (T12, T13)."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import semel
from semel.protocol.api.shared_transactions import OpenSharedRequest
from semel.protocol.batch_builder import encode_batch
from semel.protocol.compression import Compression
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    UsageError,
)
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.transaction import CommitToken
from semel.sdk.shared.calls import open_shared
from semel.sdk.shared.writer import SharedPart, _State
from semel.sdk.transport.client import ClientCore
from semel.testing import Broker

WAIT_S = 30


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate(str.maketrans("[]", ".."))
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(name, partitions=2)
    return name


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A line of transactions of the test's own."""
    return str(request.node.name)


def opened(node: Broker, key: str, token: str = "day 1", **options: Any) -> semel.SharedTransaction:
    return semel.SharedTransaction.open(node.bootstrap, key, token=token, **options)


def write(shared: semel.SharedTransaction, topic: str, *values: bytes) -> semel.SharedWriterId:
    with shared.join() as writer:
        for value in values:
            writer.send(topic, value)
        return writer.finish()


def settled(node: Broker, key: str) -> None:
    """Wait until every writer that a decision has ended is gone: its markers are written then."""
    with semel.Admin(node.bootstrap) as admin:
        deadline = time.monotonic() + WAIT_S
        while any(writer.state not in ("Ongoing", "Empty") for writer in admin.shared_transaction(key).writers):
            assert time.monotonic() < deadline, admin.shared_transaction(key)
            time.sleep(0.01)


def committed_values(node: Broker, topic: str, key: str) -> list[bytes | None]:
    """What a read_committed reader sees from the start to the end of the day."""
    settled(node, key)
    with semel.Admin(node.bootstrap) as admin:
        partitions = [TopicPartition(topic, info.partition) for info in admin.topic(topic).partitions]
        ends = admin.list_offsets(dict.fromkeys(partitions, -1))
    with semel.Consumer(node.bootstrap) as consumer:
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, 0)
        values: list[bytes | None] = []
        deadline = time.monotonic() + WAIT_S
        while any((consumer.position(tp) or 0) < ends[tp].offset for tp in partitions):
            assert time.monotonic() < deadline, values
            values += [record.value for record in consumer.poll(0.05) or ()]
    return sorted(values, key=lambda value: value or b"")


def test_T12_the_named_writers_appear_together_and_no_other(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key)
    first, second = write(shared, topic, b"a", b"b"), write(shared, topic, b"c")
    write(shared, topic, b"loser")
    assert committed_values(node, topic, key) == []
    result = shared.commit([first, second])
    assert not result.already_committed
    assert (result.decision.token, result.decision.writers) == ("day 1", 2)
    assert committed_values(node, topic, key) == [b"a", b"b", b"c"]


def test_T13_a_token_that_is_committed_says_so_and_nothing_is_written_twice(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key)
    shared.commit([write(shared, topic, b"once")], payload=b"range 1-5")
    again = opened(node, key)
    assert again.committed is not None
    assert again.committed.payload == b"range 1-5"
    with again.join() as writer:
        assert writer.committed == again.committed
        with pytest.raises(UsageError, match=r"is committed already, so there is nothing to write"):
            writer.send(topic, b"twice")
        member = writer.finish()
    assert not member.has_written
    assert again.commit([member], payload=b"range 1-5").already_committed
    assert committed_values(node, topic, key) == [b"once"]


def test_T13_a_token_with_another_payload_is_fatal(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key)
    shared.commit([write(shared, topic, b"once")], payload=b"range 1-5")
    again = opened(node, key)
    with pytest.raises(FatalError, match="committed with another payload") as caught:
        again.commit([], payload=b"range 1-6")
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


def test_T12_repeating_a_commit_gives_the_same_answer(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key)
    member = write(shared, topic, b"once")
    first = shared.commit([member])
    assert shared.commit([member]) == first
    assert committed_values(node, topic, key) == [b"once"]


def test_a_writer_that_is_fenced_says_so_once_and_not_for_each_partition(
    node: Broker, topic: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every partition's refusal was a line of its own, with the advice to call InitProducerId."""
    zombie = opened(node, key).join()
    for partition in (0, 1):
        zombie.send(topic, b"zombie", partition=partition).result(WAIT_S)
    opened(node, key, token="day 2")
    for partition in (0, 1):
        zombie.send(topic, b"zombie writes on", partition=partition)
    with pytest.raises(FencedError, match="has taken its place"):
        zombie.flush()
    with pytest.raises(FencedError, match="has taken its place"):
        zombie.flush()
    zombie.close()
    lines = [record.getMessage() for record in caplog.records if "not delivered" in record.getMessage()]
    assert len(lines) == 1
    assert "has taken its place; stop" in lines[0]


def test_T12_a_writer_of_an_older_attempt_is_fenced_and_told_why(node: Broker, topic: str, key: str) -> None:
    old = opened(node, key)
    zombie = old.join()
    zombie.send(topic, b"zombie").result(WAIT_S)
    new = opened(node, key, token="day 2")
    with pytest.raises(FencedError, match="has taken its place"):
        old.join()
    zombie.send(topic, b"zombie writes on")
    with pytest.raises(FencedError, match=r"is over: attempt .* has taken its place"):
        zombie.finish()
    zombie.close()
    new.commit([write(new, topic, b"new")])
    with pytest.raises(FencedError):
        old.commit([])
    assert committed_values(node, topic, key) == [b"new"]


def test_T12_a_writer_that_the_decision_left_out_is_fenced(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key)
    late = shared.join()
    late.send(topic, b"late").result(WAIT_S)
    shared.commit([write(shared, topic, b"in time")])
    settled(node, key)
    late.send(topic, b"later still")
    with pytest.raises(FencedError, match="it was committed without this writer"):
        late.finish()
    late.close()
    with pytest.raises(UsageError, match="closed before it finished"):
        late.finish()
    assert committed_values(node, topic, key) == [b"in time"]


@pytest.fixture
def clock_node(topic: str) -> Iterator[Broker]:
    """A node whose time the test moves, with the same topic."""
    with Broker(frozen_clock=True) as node:
        node.create_topic(topic, partitions=2)
        yield node


def let_time_out(node: Broker, key: str) -> None:
    node.advance(61)
    with semel.Admin(node.bootstrap) as admin:
        deadline = time.monotonic() + WAIT_S
        while admin.shared_transaction(key).writers:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_T12_a_member_that_left_makes_the_commit_abort(clock_node: Broker, topic: str, key: str) -> None:
    node = clock_node
    shared = opened(node, key, timeout_ms=60_000)
    member = write(shared, topic, b"too early")
    let_time_out(node, key)
    with pytest.raises(AbortTransactionError, match="run the attempt again under another name"):
        shared.commit([member])
    again = opened(node, key)
    again.commit([write(again, topic, b"in time")])
    assert committed_values(node, topic, key) == [b"in time"]


def test_a_writer_that_times_out_is_told_to_join_again(clock_node: Broker, topic: str, key: str) -> None:
    node = clock_node
    shared = opened(node, key, timeout_ms=60_000)
    with shared.join() as slow:
        slow.send(topic, b"slow").result(WAIT_S)
        let_time_out(node, key)
        slow.send(topic, b"slow")
        with pytest.raises(AbortTransactionError, match="timed out after 60000 ms"):
            slow.finish()
    shared.commit([write(shared, topic, b"fast")])
    assert committed_values(node, topic, key) == [b"fast"]


def test_a_writer_that_did_not_finish_counts_for_nothing(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key)
    with shared.join() as writer:
        writer.send(topic, b"unfinished").result(WAIT_S)
    with semel.Admin(node.bootstrap) as admin:
        settled(node, key)
        assert admin.shared_transaction(key).writers == ()
    shared.commit([write(shared, topic, b"finished")])
    assert committed_values(node, topic, key) == [b"finished"]


def test_T12_a_writer_that_was_closed_while_it_finished_names_nothing() -> None:
    """By another thread: what it has sent is aborted, so it must not be among what a commit names."""
    attempt = OpenSharedRequest("key", "attempt", "token", 60_000)
    sender = SimpleNamespace(sent_any=True, set_producer=lambda producer: None)

    async def flush() -> None:
        await part.abort()

    part = SharedPart(attempt, cast(Any, None), cast(Any, sender), flush, lambda error: None, lambda: None)
    part._move(_State.OPEN)
    with pytest.raises(UsageError, match="this writer is left: its part of the transaction is not committed"):
        asyncio.run(part.finish())
    assert not part.has_finished
    assert not part.identity().has_written


def test_an_aborted_attempt_leaves_nothing_and_refuses_late_writers(node: Broker, topic: str, key: str) -> None:
    with opened(node, key) as shared:
        write(shared, topic, b"never")
    with pytest.raises(FencedError, match="it was ended"):
        shared.join()
    with pytest.raises(FencedError):
        shared.commit([])
    assert committed_values(node, topic, key) == []


def test_leaving_the_block_undoes_no_decision(node: Broker, topic: str, key: str) -> None:
    with opened(node, key) as shared:
        shared.commit([write(shared, topic, b"kept")])
        shared.abort()
    assert committed_values(node, topic, key) == [b"kept"]


def test_T12_group_offsets_come_with_the_decision(node: Broker, topic: str, key: str) -> None:
    tp = TopicPartition(topic, 0)
    with semel.Admin(node.bootstrap) as admin:
        shared = opened(node, key)
        shared.commit([write(shared, topic, b"a")], offsets={tp: 7}, group=key)
        settled(node, key)
        assert admin.group_offsets(key)[tp].offset == 7
        # The token is committed: the offsets that come with a repetition are not another commit.
        again = opened(node, key)
        assert again.commit([], offsets={tp: 3}, group=key).already_committed
        settled(node, key)
        assert admin.group_offsets(key)[tp].offset == 7


@pytest.mark.parametrize("offset", [7, 3])
def test_T12_a_commit_whose_offset_writer_another_call_has_ended_learns_that_it_is_committed(
    node: Broker, topic: str, key: str, offset: int
) -> None:
    """Two calls commit one attempt, as where the first waits for a node that is away: "nothing was" would be false."""
    tp = TopicPartition(topic, 0)
    slow = opened(node, key)
    fast = pickle.loads(pickle.dumps(slow))

    async def join(client: ClientCore) -> None:
        slow._offset_writer = await open_shared(client.control, slow._open_request(writer=True))

    slow._run(join)
    done = fast.commit([], offsets={tp: 7}, group=key)
    late = slow.commit([], offsets={tp: offset}, group=key)
    assert late.decision == done.decision
    settled(node, key)
    with semel.Admin(node.bootstrap) as admin:
        assert admin.group_offsets(key)[tp].offset == 7


def test_T12_offsets_that_the_group_refuses_commit_nothing(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key)
    member = write(shared, topic, b"a")
    stranger = semel.GroupMetadata(key, generation_id=5, member_id="nobody")
    with pytest.raises(AbortTransactionError, match="so nothing was"):
        shared.commit([member], offsets={TopicPartition(topic, 0): 7}, group=stranger)
    shared.abort()
    assert committed_values(node, topic, key) == []


def test_a_sequence_that_goes_back_is_refused(node: Broker, key: str) -> None:
    opened(node, key, sequence=5).commit([])
    with pytest.raises(FatalError, match="Was a checkpoint rolled back"):
        opened(node, key, token="day 2", sequence=5)
    with semel.Admin(node.bootstrap) as admin:
        assert [decision.sequence for decision in admin.commits(key)] == [5]


def test_handles_and_members_are_picklable_and_whole(node: Broker, topic: str, key: str) -> None:
    shared = opened(node, key, sequence=3, max_block_ms=40_000)
    copy = pickle.loads(pickle.dumps(shared))
    member = pickle.loads(pickle.dumps(write(copy, topic, b"a")))
    assert (copy.attempt, copy.key, copy.token, copy.sequence) == (shared.attempt, key, "day 1", 3)
    assert shared.commit([member]).decision.sequence == 3
    writer = opened(node, key + "2").join()
    with pytest.raises(TypeError, match="join in the other process"):
        pickle.dumps(writer)
    writer.close()


def test_a_handle_can_be_made_before_the_node_is_asked(node: Broker, topic: str, key: str) -> None:
    shared = semel.SharedTransaction(node.bootstrap, key, token="day 1", attempt="run 1")
    shared.commit([write(shared, topic, b"a")])
    assert committed_values(node, topic, key) == [b"a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": ""}, "key must not be empty"),
        ({"token": ""}, "token must not be empty"),
        ({"sequence": -1}, "sequence must be between 0 and"),
        ({"timeout_ms": 0}, "timeout_ms must be between 1"),
        ({"timeout": 1}, r"no option 'timeout'; did you mean 'timeout_ms'\?"),
        ({"bootstrap": "nowhere"}, "is not HOST:PORT"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        semel.SharedTransaction(**{"bootstrap": "localhost:9094", "key": "k", "token": "t", **arguments})


def test_bad_commits_are_refused_before_anything_is_asked() -> None:
    shared = semel.SharedTransaction("localhost:1", "k", token="t")
    stranger = semel.SharedWriterId("k", "another attempt", 1, 0)
    with pytest.raises(UsageError, match="all writers join through the handle that commits"):
        shared.commit([stranger])
    with pytest.raises(UsageError, match="not NoneType"):
        shared.commit([None])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="payload is bytes, 65536 at most"):
        shared.commit([], payload=bytes(65537))
    with pytest.raises(UsageError, match="needs the group"):
        shared.commit([], offsets={TopicPartition("a", 0): 1})
    with pytest.raises(UsageError, match="join\\(\\) has no option 'acks'"):
        shared.join(acks=1)


def test_a_node_that_is_away_is_a_retriable_error() -> None:
    with pytest.raises(RetriableError):
        semel.SharedTransaction.open("127.0.0.1:1", "k", token="t", connect_timeout_ms=100)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_ready_made_batches_are_written_as_they_are(node: Broker, topic: str, key: str, kind: Any) -> None:
    """Under the writer's identity and numbers, in order with its other records, whatever they were made with."""
    shared = opened(node, key)
    with shared.join(linger_ms=1_000) as writer:
        assert writer.partition_count(topic) == 2
        before = writer.send(topic, b"0", partition=0)
        batches = [
            encode_batch([(1_000, None, b"%d" % number, ()) for number in (first, first + 1)], compression=compression)
            for first, compression in ((1, Compression.NONE), (3, Compression.GZIP))
        ]
        futures = [writer.send_batch(topic, 0, kind(batch)) for batch in batches]
        after = writer.send(topic, b"5", partition=0)
        member = writer.finish()
    offsets = [future.result(0).offset for future in (before, *futures, after)]
    assert [offset - offsets[0] for offset in offsets] == [0, 1, 3, 5]
    shared.commit([member])
    assert committed_values(node, topic, key) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_ready_made_batches_too_large_for_the_topic_are_split(node: Broker, topic: str, key: str) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.alter_topic_configs(topic, changes={"max.message.bytes": "2000"})
    values = [bytes([number]) * 500 for number in range(65, 75)]
    shared = opened(node, key)
    with shared.join() as writer:
        writer.send_batch(topic, 1, encode_batch([(1_000, None, value, ()) for value in values]))
        member = writer.finish()
    shared.commit([member])
    assert committed_values(node, topic, key) == values


def test_what_is_no_batch_is_refused_at_once(node: Broker, topic: str) -> None:
    good = encode_batch([(1_000, None, b"a", ())])
    broken = bytearray(good)
    broken[-1] ^= 1
    with semel.Producer(node.bootstrap) as producer:
        for data, message in (
            (b"", "takes a record batch"),
            (good[:-1], "exactly one record batch"),
            (good + good, "exactly one record batch"),
            (broken, "checksum|CRC"),
            ("text", "not str"),
        ):
            with pytest.raises(UsageError, match=message):
                producer.send_batch(topic, 0, data)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="has partitions 0 to 1, not 2"):
            producer.send_batch(topic, 2, good)
        assert producer.send_batch(topic, 0, good).result(WAIT_S).offset == 0


def test_T12_shared_transactions_from_asyncio(node: Broker, topic: str, key: str) -> None:
    tp = TopicPartition(topic, 0)

    async def write(shared: semel.aio.SharedTransaction, value: bytes) -> semel.SharedWriterId:
        async with await shared.join() as writer:
            assert await writer.partition_count(topic) == 2
            await writer.send(topic, value, partition=0)
            await writer.flush(timeout_s=WAIT_S)
            await writer.send_batch(topic, 1, encode_batch([(1_000, None, value, ())]))
            return await writer.finish()

    async def run() -> None:
        async with await semel.aio.SharedTransaction.open(node.bootstrap, key, token="day 1") as shared:
            members = await asyncio.gather(write(shared, b"a"), write(shared, b"b"))
            async with await shared.join() as unfinished:
                await (await unfinished.send(topic, b"unfinished"))
            with pytest.raises(UsageError, match="closed before it finished"):
                await unfinished.finish()
            with pytest.raises(UsageError, match="is closed; make a new one"):
                await unfinished.flush()
            result = await shared.commit(members, offsets={tp: 9}, group=key)
            assert not result.already_committed
        async with await semel.aio.SharedTransaction.open(node.bootstrap, key, token="day 1") as again:
            assert again.committed == result.decision
            assert not (await write_nothing(again)).has_written
        async with await semel.aio.SharedTransaction.open(node.bootstrap, key, token="day 2") as never:
            await write(never, b"never")
        with pytest.raises(FencedError, match="it was ended"):
            await never.join()
        with pytest.raises(UsageError, match="has no option 'acks'"):
            await never.join(acks=1)

    async def write_nothing(shared: semel.aio.SharedTransaction) -> semel.SharedWriterId:
        async with await shared.join() as writer:
            assert writer.committed == shared.committed
            return await writer.finish()

    asyncio.run(run())
    assert committed_values(node, topic, key) == [b"a", b"a", b"b", b"b"]
    with semel.Admin(node.bootstrap) as admin:
        assert admin.group_offsets(key)[tp].offset == 9


def test_ready_made_batches_wait_for_memory(node: Broker, topic: str, key: str) -> None:
    """More of them than buffer_memory_bytes has room for are taken one after the other, not all at once."""
    data = bytes(encode_batch([(1_000, None, bytes(4_000), ())]))
    shared = opened(node, key)
    with shared.join(buffer_memory_bytes=10_000) as writer:
        most = 0
        for number in range(50):
            writer.send_batch(topic, number % 2, data)
            most = max(most, writer.statistics()["buffered_bytes"])
        member = writer.finish()
    assert 0 < most <= 10_000
    shared.commit([member])
    assert len(committed_values(node, topic, key)) == 50


NOBODY = "127.0.0.1:1"
"""Where no node is: what is found without asking one."""


@pytest.mark.parametrize("name", ["key", "token", "attempt", "run"])
def test_names_that_no_node_takes_are_found_before_anybody_is_asked(name: str) -> None:
    """A lone surrogate raised UnicodeEncodeError, and a name too long was found by the tasks' first call."""
    for wrong, message in (
        ("k\ud800", "half a character"),
        ("\u00fc" * 257, "at most 512 bytes, not 514"),
        ("", "empty"),
    ):
        with pytest.raises(UsageError, match=message):
            semel.SharedTransaction(NOBODY, **{"key": "k", "token": "t", name: wrong})
    if name == "key":
        with semel.Admin(NOBODY) as admin:
            for call in (admin.commits, admin.shared_transaction, admin.abort_shared_transaction, admin.transaction):
                with pytest.raises(UsageError, match="half a character"):
                    call("k\ud800")
    if name == "token":
        with pytest.raises(UsageError, match="half a character"):
            CommitToken.checked("k\ud800", b"", None)


def test_members_that_are_no_list_are_refused_with_what_to_write_instead() -> None:
    """commit(None) and commit(member) raised a TypeError of Python's."""
    shared = semel.SharedTransaction(NOBODY, "k", token="t")
    member = semel.SharedWriterId("k", shared.attempt, 1, 0)
    for wrong in (None, member, 5):
        with pytest.raises(UsageError, match=r"commit\(\[member\]\); for none, commit\(\[\]\)"):
            shared.commit(wrong)  # type: ignore[arg-type]


def test_T12_a_late_task_of_an_older_run_does_not_end_the_live_one(node: Broker, topic: str, key: str) -> None:
    """A zombie that had never joined took over, and the live commit got PRODUCER_FENCED."""
    opened(node, key, "day 0", run="old").commit([])
    zombie = semel.SharedTransaction(node.bootstrap, key, token="day 1", run="old")
    live = opened(node, key, run="new")
    member = write(live, topic, b"live")
    with pytest.raises(FencedError, match="run 'new' has taken the place"):
        pickle.loads(pickle.dumps(zombie)).join()
    assert not live.commit([member]).already_committed
    assert committed_values(node, topic, key) == [b"live"]


def test_E5_a_one_off_commit_is_answered_for_right_after(node: Broker, topic: str, key: str) -> None:
    shared = pickle.loads(pickle.dumps(opened(node, key, one_off=True)))
    member = write(shared, topic, b"once")
    done = shared.commit([member])
    assert shared.commit([member]).decision == done.decision
    with semel.Admin(node.bootstrap) as admin:
        assert admin.commits(key) == [done.decision]
    with pytest.raises(UsageError, match="one_off must be True or False"):
        semel.SharedTransaction(node.bootstrap, key, token="t", one_off=1)  # type: ignore[arg-type]


def test_a_token_repeated_with_another_sequence_is_refused(node: Broker, topic: str, key: str) -> None:
    opened(node, key, sequence=0).commit([])
    with pytest.raises(FatalError, match="committed as sequence 0, not 77"):
        opened(node, key, sequence=77)
    with semel.Producer(node.bootstrap, transactional_id=key) as producer:
        with producer.transaction(token="day 1", sequence=3):
            producer.send(topic, b"a")
        again = producer.transaction(token="day 1", sequence=4)
        with pytest.raises(FatalError, match="committed as sequence 3, not 4"), again:
            producer.send(topic, b"b")
