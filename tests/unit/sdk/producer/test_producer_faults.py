"""The producer against a scripted node: lost answers, refusals, restarts, fencing, time-outs."""

# ruff: noqa: PT012 - a transaction raises at the end of its block

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fake_node import Action, FakeNode
from impatience import impatient

import semel
from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.sdk.producer.api import Producer

ORDERS = TopicPartition("orders", 0)
WAIT_S = 30


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 1, "wide": 8}) as node:
        yield node


def make(node: FakeNode, **options: Any) -> Producer:
    return Producer(node.bootstrap, **{"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 20, **options})


def values(node: FakeNode, tp: TopicPartition = ORDERS) -> list[bytes | None]:
    return node.broker.partitions[tp].values()


def sequences(node: FakeNode) -> list[tuple[int, int]]:
    return [(batch.producer.producer_epoch, len(batch.records)) for batch in node.broker.partitions[ORDERS].batches]


class Batch:
    """What a transaction commits the offsets of."""

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.group_metadata = GroupMetadata("enrich", 3, "member-1")
        self.next_offsets = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        self.rewound = 0

    def begin(self) -> None:
        pass

    def rewind(self) -> None:
        self.rewound += 1


# --- Without transactions ---------------------------------------------------------------------------------------------


def test_records_arrive_and_say_where_they_are(node: FakeNode) -> None:
    with make(node) as producer:
        deliveries = [producer.send("orders", b"%d" % n) for n in range(100)]
        producer.flush(WAIT_S)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(100))
        assert producer.statistics() == {"records": 0, "batches": 0, "buffered_bytes": 0}
    assert values(node) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.LOSE_REQUEST])
def test_P1_a_lost_answer_neither_loses_nor_repeats_a_record(node: FakeNode, action: Action) -> None:
    node.produce_script.extend([Action.ANSWER, action, action, Action.ANSWER, action])
    with make(node) as producer:
        for n in range(20):
            producer.send("orders", b"%d" % n).result(WAIT_S)
    assert values(node) == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_P2_refusals_that_may_pass_are_retried_in_order(node: FakeNode, code: ErrorCode) -> None:
    node.produce_script.extend([Action.ANSWER, code, code, Action.ANSWER, code])
    with make(node, batch_size_bytes=1) as producer:
        producer.send("orders", b"first").result(WAIT_S)
        for n in range(30):
            producer.send("orders", b"%d" % n)
        producer.flush(WAIT_S)
    assert values(node) == [b"first", *(b"%d" % n for n in range(30))]


def test_a_refusal_for_good_fails_its_records_and_the_rest_goes_on(node: FakeNode) -> None:
    with make(node, batch_size_bytes=1) as producer:
        producer.send("orders", b"first").result(WAIT_S)
        node.produce_script.append(ErrorCode.INVALID_RECORD)
        bad = producer.send("orders", b"bad")
        good = [producer.send("orders", b"%d" % n) for n in range(10)]
        error = bad.exception(WAIT_S)
        assert isinstance(error, FatalError)
        assert error.code is ErrorCode.INVALID_RECORD
        for delivery in good:
            delivery.result(WAIT_S)
        with pytest.raises(FatalError, match="1 record sent since the last flush failed"):
            producer.flush(WAIT_S)
        producer.flush(WAIT_S)  # said once
    assert values(node) == [b"first", *(b"%d" % n for n in range(10))]


def test_lost_producer_state_is_answered_with_the_next_epoch(node: FakeNode) -> None:
    with make(node) as producer:
        producer.send("orders", b"a").result(WAIT_S)
        known = next(iter(node.broker.partitions[ORDERS].producers.values()))
        known.batches.clear()
        known.batches.append((90, 99, 0))
        producer.send("orders", b"b").result(WAIT_S)
    assert values(node) == [b"a", b"b"]
    assert sequences(node) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.LOSE_REQUEST, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_P1_P2_ready_made_batches_are_repeated_as_others_are(node: FakeNode, action: Any, transactional: bool) -> None:
    """Once, in order, under one numbering with the records that are sent one by one."""
    node.produce_script.extend([Action.ANSWER, action, action, Action.ANSWER, action])
    expected = []
    with make(node, transactional_id="load" if transactional else None) as producer:
        if transactional:
            producer.begin_transaction()
        for n in range(0, 30, 3):
            expected += [b"%d" % number for number in range(n, n + 3)]
            producer.send("orders", expected[-3])
            producer.send_batch("orders", 0, encode_batch([(1_000, None, value, ()) for value in expected[-2:]]))
        producer.flush(WAIT_S)
        if transactional:
            assert producer.commit_transaction()
    assert values(node) == expected
    batches = node.broker.partitions[ORDERS].batches
    assert {batch.transactional for batch in batches} == {transactional}


def test_ready_made_batches_go_on_under_the_next_epoch_when_the_node_lost_their_numbers(node: FakeNode) -> None:
    with make(node) as producer:
        producer.send_batch("orders", 0, encode_batch([(1_000, None, b"a", ())])).result(WAIT_S)
        known = next(iter(node.broker.partitions[ORDERS].producers.values()))
        known.batches.clear()
        known.batches.append((90, 99, 0))
        producer.send_batch("orders", 0, encode_batch([(1_000, None, b"b", ()), (1_000, None, b"c", ())])).result(
            WAIT_S
        )
    assert values(node) == [b"a", b"b", b"c"]
    assert sequences(node) == [(0, 1), (1, 2)]


def test_the_node_restarts_while_records_are_sent(node: FakeNode) -> None:
    with make(node, batch_size_bytes=200) as producer:
        producer.send("orders", b"first").result(WAIT_S)
        node.stop()
        deliveries = [producer.send("orders", b"%d" % n) for n in range(50)]
        assert not deliveries[0].done()
        node.start()
        for delivery in deliveries:
            delivery.result(WAIT_S)
    assert values(node) == [b"first", *(b"%d" % n for n in range(50))]


def test_records_that_nobody_acknowledges_fail_after_the_delivery_timeout(node: FakeNode) -> None:
    with make(node, delivery_timeout_ms=200) as producer:
        producer.send("orders", b"first").result(WAIT_S)
        node.stop()
        error = producer.send("orders", b"lost").exception(WAIT_S)
        assert error is not None
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        assert "within delivery_timeout_ms (200)" in error.message
        node.start()
        with pytest.raises(SemelError):
            producer.flush(WAIT_S)
        producer.send("orders", b"next").result(WAIT_S)
    assert values(node)[-1] == b"next"


def test_records_that_ran_out_of_time_tell_what_the_node_said_last(node: FakeNode) -> None:
    node.produce_script.extend([ErrorCode.KAFKA_STORAGE_ERROR] * 1000)
    with make(node, delivery_timeout_ms=300, retry_backoff_ms=250) as producer:
        producer.send("orders", b"lost")
        with pytest.raises(SemelError, match=r"the last answer: .*KAFKA_STORAGE_ERROR") as raised:
            producer.flush(WAIT_S)
    assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_batch_too_large_for_its_topic_is_sent_in_halves(node: FakeNode) -> None:
    with make(node, linger_ms=10_000) as producer:
        producer.send("orders", b"first")
        producer.flush(WAIT_S)
        node.produce_script.extend([ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE])
        deliveries = [producer.send("orders", b"%d" % n) for n in range(10)]
        producer.flush(WAIT_S)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(1, 11))
    assert values(node) == [b"first", *(b"%d" % n for n in range(10))]
    assert [count for _, count in sequences(node)] == [1, 2, 3, 5]


def test_memory_makes_senders_wait_and_then_fail(node: FakeNode) -> None:
    node.produce_script.append(Action.HOLD)
    with make(node, buffer_memory_bytes=1000, max_block_ms=100) as producer:
        with pytest.raises(RetriableError, match=r"buffer_memory_bytes \(1000\) is full"):
            for _ in range(100):
                producer.send("orders", b"x" * 200)
        node.release()
        producer.flush(WAIT_S)
        for _ in range(100):
            producer.send("orders", b"x" * 200).result(WAIT_S)


def test_flush_has_a_deadline(node: FakeNode) -> None:
    node.produce_script.append(Action.HOLD)
    with make(node) as producer:
        producer.send("orders", b"x")
        with pytest.raises(RetriableError, match="no result within 50 ms"):
            producer.flush(0.05)
        node.release()
        producer.flush(WAIT_S)


def test_acks_0_asks_for_no_answer(node: FakeNode) -> None:
    with make(node, acks=0) as producer:
        assert producer.send("orders", b"x").result(WAIT_S).offset == -1
        done = threading.Event()
        node.on_produce = done.set
        producer.send("orders", b"y")
        producer.flush(WAIT_S)
        assert done.wait(WAIT_S)
    assert "InitProducerId" not in node.names()


def test_many_partitions_share_requests(node: FakeNode) -> None:
    with make(node, linger_ms=10_000) as producer:
        for n in range(8):
            producer.send("wide", b"warm", partition=n)
        producer.flush(WAIT_S)
        node.produced.clear()
        for n in range(80):
            producer.send("wide", b"%d" % n, partition=n % 8)
        producer.flush(WAIT_S)
        assert len(node.produced) == 1
    for number in range(8):
        assert len(values(node, TopicPartition("wide", number))) == 11


def test_a_deleted_topic_fails_its_records(node: FakeNode) -> None:
    with make(node) as producer:
        producer.send("orders", b"x").result(WAIT_S)
        node.broker.topics.pop("orders")
        del node.broker.partitions[ORDERS]
        error = producer.send("orders", b"y").exception(WAIT_S)
        assert isinstance(error, FatalError)
        assert "topic 'orders' was deleted" in error.message
        with pytest.raises(FatalError, match="there is no topic 'orders'; create it"):
            producer.send("orders", b"z")
        with pytest.raises(SemelError):
            producer.flush()


def test_callbacks_come_in_order_and_may_send(node: FakeNode) -> None:
    told: list[int] = []
    with make(node) as producer:

        def on_delivery(metadata: Any, error: Any) -> None:
            told.append(metadata.offset)
            if metadata.offset < 5:
                producer.send("orders", b"again", on_delivery=on_delivery)

        for _ in range(3):
            producer.send("orders", b"x", on_delivery=on_delivery)
        while len(told) < 8:
            producer.flush(WAIT_S)
    assert told == list(range(8))


def test_waiting_in_a_callback_is_refused(node: FakeNode) -> None:
    errors: list[BaseException] = []
    done = threading.Event()
    with make(node) as producer:

        def on_delivery(metadata: Any, error: Any) -> None:
            try:
                producer.flush()
            except UsageError as refused:
                errors.append(refused)
            done.set()

        producer.send("orders", b"x", on_delivery=on_delivery)
        assert done.wait(WAIT_S)
    assert "inside one of its callbacks" in str(errors[0])


# --- Transactions -----------------------------------------------------------------------------------------------------


def transactional(node: FakeNode, **options: Any) -> Producer:
    return make(node, transactional_id="enrich-0", **options)


def test_T6_each_transaction_has_an_epoch_of_its_own(node: FakeNode) -> None:
    with transactional(node) as producer:
        for n in range(3):
            with producer.transaction() as txn:
                txn.send("orders", b"%d" % n)
    assert node.broker.partitions[ORDERS].committed_values() == [b"0", b"1", b"2"]
    assert sequences(node) == [(0, 1), (1, 1), (2, 1)]
    assert node.names() == ["InitProducerId"] + ["EndTransaction"] * 3


def test_offsets_commit_with_the_output(node: FakeNode) -> None:
    source = TopicPartition("wide", 3)
    with transactional(node) as producer:
        with producer.transaction(commits=Batch({source: 42})) as txn:
            txn.send("orders", b"x")
        with producer.transaction() as txn:
            txn.send_offsets({source: OffsetAndMetadata(50)}, GroupMetadata("enrich"))
    assert node.broker.offsets == {("enrich", source): 50}
    request = next(request for name, request in node.calls if name == "CommitOffsets")
    assert (request.group_id, request.generation_id, request.member_id) == ("enrich", 3, "member-1")


def test_an_exception_aborts(node: FakeNode) -> None:
    batch = Batch({TopicPartition("wide", 0): 1})
    with transactional(node) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(commits=batch) as txn:
            txn.send("orders", b"x").result(WAIT_S)
            _ = 1 / 0
        with producer.transaction() as txn:
            txn.send("orders", b"y")
    assert values(node) == [b"x", b"y"]
    assert node.broker.partitions[ORDERS].committed_values() == [b"y"]
    assert node.broker.offsets == {}
    assert batch.rewound == 1


def test_a_transaction_that_sent_nothing_asks_nobody(node: FakeNode) -> None:
    with transactional(node) as producer:
        with producer.transaction():
            pass
        with pytest.raises(ZeroDivisionError), producer.transaction():
            _ = 1 / 0
    assert node.names() == ["InitProducerId"]


@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.LOSE_REQUEST, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
@pytest.mark.parametrize("commit", [True, False])
def test_T7_a_lost_answer_of_the_end_is_asked_for_again(node: FakeNode, action: Any, commit: bool) -> None:
    node.call_script["EndTransaction"].extend([action, action])
    with transactional(node) as producer:
        producer.begin_transaction()
        producer.send("orders", b"x").result(WAIT_S)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send("orders", b"y")
    assert node.broker.partitions[ORDERS].committed_values() == ([b"x", b"y"] if commit else [b"y"])
    assert node.names().count("EndTransaction") == 4


def test_T7_a_commit_that_got_no_answer_in_time_is_learnt_later(node: FakeNode) -> None:
    batch = Batch({TopicPartition("wide", 0): 1})
    with transactional(node) as producer:
        with producer.transaction() as txn:
            txn.send("orders", b"first")
        node.call_script["EndTransaction"].append(Action.LOSE_ANSWER)
        node.call_script["EndTransaction"].extend([Action.LOSE_REQUEST] * 1000)
        with (
            impatient(producer, "EndTransaction"),
            pytest.raises(RetriableError, match=r"can't be reached|did not answer"),
            producer.transaction(commits=batch) as txn,
        ):
            txn.send("orders", b"x")
        assert batch.rewound == 0  # it may have happened, and here it has
        with pytest.raises(UsageError, match=r"call commit_transaction\(\) again"):
            producer.begin_transaction()
        node.call_script["EndTransaction"].clear()
        producer.commit_transaction()
        with producer.transaction() as txn:
            txn.send("orders", b"y")
    assert node.broker.partitions[ORDERS].committed_values() == [b"first", b"x", b"y"]


def test_T7_a_commit_that_turns_out_to_have_failed_rewinds_its_batch_also_later(node: FakeNode) -> None:
    batch = Batch({TopicPartition("wide", 0): 1})
    with transactional(node) as producer:
        node.call_script["EndTransaction"].extend([Action.LOSE_REQUEST] * 1000)
        with (
            impatient(producer, "EndTransaction"),
            pytest.raises(RetriableError),
            producer.transaction(commits=batch) as txn,
        ):
            txn.send("orders", b"x")
        assert batch.rewound == 0
        with node.lock:
            node.broker.time_out("enrich-0")
        node.call_script["EndTransaction"].clear()
        with pytest.raises(AbortTransactionError):
            producer.commit_transaction()
        assert batch.rewound == 1, "or the next batch's offsets would commit past it"
        producer.abort_transaction()
        with producer.transaction(commits=batch) as txn:
            txn.send("orders", b"y")
    assert node.broker.partitions[ORDERS].committed_values() == [b"y"]


@pytest.mark.parametrize("fenced_first", [False, True])
def test_T7_what_breaks_on_the_way_to_a_commit_is_no_refusal(node: FakeNode, fenced_first: bool) -> None:
    """A fault of a node or of a proxy says nothing about the outcome: the records must not be processed again."""
    batch = Batch({TopicPartition("wide", 0): 1})
    with transactional(node) as producer:
        with producer.transaction() as txn:
            txn.send("orders", b"first")
        if fenced_first:
            node.call_script["EndTransaction"].append(ErrorCode.PRODUCER_FENCED)
            node.call_script["InitProducerId"].append(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            node.call_script["EndTransaction"].append(ErrorCode.UNKNOWN_SERVER_ERROR)
        with pytest.raises(RetriableError, match="is not known"), producer.transaction(commits=batch) as txn:
            txn.send("orders", b"x")
        assert batch.rewound == 0
        producer.commit_transaction()
    assert node.broker.partitions[ORDERS].committed_values() == [b"first", b"x"]


def test_the_node_restarts_in_the_middle_of_a_transaction(node: FakeNode) -> None:
    with transactional(node) as producer, producer.transaction() as txn:
        txn.send("orders", b"a").result(WAIT_S)
        node.stop()
        txn.send("orders", b"b")
        node.start()
        txn.send("orders", b"c")
    assert node.broker.partitions[ORDERS].committed_values() == [b"a", b"b", b"c"]


def test_P2_transactional_records_survive_lost_answers_in_order(node: FakeNode) -> None:
    node.produce_script.extend([Action.LOSE_ANSWER, Action.LOSE_REQUEST, ErrorCode.CONCURRENT_TRANSACTIONS] * 3)
    with transactional(node, batch_size_bytes=1) as producer:
        for transaction in range(3):
            with producer.transaction() as txn:
                for n in range(10):
                    txn.send("orders", b"%d-%d" % (transaction, n))
    expected = [b"%d-%d" % (transaction, n) for transaction in range(3) for n in range(10)]
    assert node.broker.partitions[ORDERS].committed_values() == expected


def test_a_zombie_is_fenced(node: FakeNode) -> None:
    with transactional(node) as old, transactional(node) as new:
        with pytest.raises(FencedError, match="'enrich-0' has taken over"), old.transaction() as txn:
            txn.send("orders", b"zombie")
        with pytest.raises(FencedError, match="another producer with transactional_id 'enrich-0' has taken over"):
            old.begin_transaction()
        with pytest.raises(FencedError, match="has taken over"):
            old.send("orders", b"zombie")
        with new.transaction() as txn:
            txn.send("orders", b"fine")
    assert node.broker.partitions[ORDERS].committed_values() == [b"fine"]


def test_a_zombie_is_fenced_at_its_commit(node: FakeNode) -> None:
    with transactional(node) as old:
        old.begin_transaction()
        old.send("orders", b"zombie").result(WAIT_S)
        with transactional(node), pytest.raises(FencedError):
            old.commit_transaction()
    assert node.broker.partitions[ORDERS].committed_values() == []


def test_T9_a_transaction_that_timed_out_is_run_again(node: FakeNode) -> None:
    with transactional(node) as producer:
        with pytest.raises(AbortTransactionError), producer.transaction() as txn:
            txn.send("orders", b"late").result(WAIT_S)
            with node.lock:
                node.broker.time_out("enrich-0")
        with pytest.raises(AbortTransactionError), producer.transaction() as txn:
            txn.send("orders", b"late").result(WAIT_S)
            with node.lock:
                node.broker.time_out("enrich-0")
            txn.send("orders", b"after").exception(WAIT_S)
        with producer.transaction() as txn:
            txn.send("orders", b"again")
    assert node.broker.partitions[ORDERS].committed_values() == [b"again"]


def test_a_commit_fenced_by_a_timeout_goes_on_with_a_new_identity(node: FakeNode) -> None:
    node.call_script["EndTransaction"].append(ErrorCode.PRODUCER_FENCED)
    with transactional(node) as producer:
        with pytest.raises(AbortTransactionError, match="transaction_timeout_ms"), producer.transaction() as txn:
            txn.send("orders", b"late")
        with producer.transaction() as txn:
            txn.send("orders", b"again")
    held = [request.producer for name, request in node.calls if name == "InitProducerId"]
    assert len(held) == 2
    assert node.broker.partitions[ORDERS].committed_values() == [b"again"]


@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
)
def test_O4_offsets_that_the_group_refuses_abort_the_transaction(node: FakeNode, code: ErrorCode) -> None:
    batch = Batch({TopicPartition("wide", 0): 1})
    node.call_script["CommitOffsets"].append(code)
    with transactional(node) as producer:
        with (
            pytest.raises(AbortTransactionError, match="offsets of group 'enrich' can't be committed") as caught,
            producer.transaction(commits=batch) as txn,
        ):
            txn.send("orders", b"x")
        assert caught.value.code is code
        assert batch.rewound == 1
        with producer.transaction(commits=batch) as txn:
            txn.send("orders", b"y")
    assert node.broker.partitions[ORDERS].committed_values() == [b"y"]


def test_a_record_that_fails_stops_the_commit(node: FakeNode) -> None:
    with transactional(node) as producer:
        node.produce_script.append(ErrorCode.INVALID_RECORD)
        with pytest.raises(AbortTransactionError, match="abort it and run it again"), producer.transaction() as txn:
            txn.send("orders", b"bad")
        with pytest.raises(AbortTransactionError), producer.transaction() as txn:
            node.produce_script.append(ErrorCode.INVALID_RECORD)
            txn.send("orders", b"bad").exception(WAIT_S)
            txn.send("orders", b"refused at once")
        with producer.transaction() as txn:
            txn.send("orders", b"good")
    assert node.broker.partitions[ORDERS].committed_values() == [b"good"]


def test_closing_aborts_what_is_open(node: FakeNode) -> None:
    producer = transactional(node)
    producer.begin_transaction()
    producer.send("orders", b"x").result(WAIT_S)
    producer.close()
    assert node.broker.partitions[ORDERS].committed_values() == []
    assert node.calls[-1][1].commit is False


def test_a_node_that_is_too_old_for_transactions_says_so() -> None:
    with FakeNode({"orders": 1}, produce_versions=(3, 11)) as node:
        with make(node) as producer:
            producer.send("orders", b"x").result(WAIT_S)
        producer = transactional(node)
        with (
            pytest.raises(AbortTransactionError, match="does not speak versions 12 to 12"),
            producer.transaction() as txn,
        ):
            txn.send("orders", b"x")
        producer.close()


def test_the_identity_is_the_one_that_the_end_gave(node: FakeNode) -> None:
    with transactional(node) as producer:
        with producer.transaction() as txn:
            txn.send("orders", b"x")
        assert producer._core.sender.producer == ProducerIdAndEpoch(1001, 1)
        assert semel.Producer is Producer
