"""The sender, step by step: what it may send again, under which number, and what it must give up (P1, P2, P3, E1).

Each is what a model with a network that loses and delays needs to meet by chance (property/test_sender_model.py).
"""

from __future__ import annotations

import pytest
from model_broker import ModelBroker

from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, RetriableError
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import ManualClock
from semel.sdk.producer.accumulator import Accumulator, AccumulatorOptions
from semel.sdk.producer.delivery import Delivery
from semel.sdk.producer.sender import Attempt, Outcome, Sender, SenderOptions

TP = TopicPartition("orders", 0)
DELIVERY_TIMEOUT_MS = 10_000
Requests = list[tuple[Attempt, bytes]]


class Bench:
    """A sender and a model broker, with the network in the test's hands."""

    def __init__(self, *, batch_bytes: int = 1) -> None:
        self.clock = ManualClock()
        self.accumulator = Accumulator(AccumulatorOptions(batch_size_bytes=batch_bytes, linger_ms=0), self.clock)
        self.accumulator.open_topic = lambda topic: self.accumulator.add_topic(topic, 1)
        self.accumulator.wake = lambda: None
        self.sender = Sender(
            self.accumulator, SenderOptions(linger_ms=0, delivery_timeout_ms=DELIVERY_TIMEOUT_MS), lambda tp: 1
        )
        self.broker = ModelBroker({TP.topic: 1})
        self.sender.set_producer(self.broker.init_producer_id("", None))

    @property
    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def send(self, value: bytes) -> Delivery:
        delivery = self.accumulator.send(TP.topic, value, partition=0)
        self.sender.flush_serial = self.accumulator.last_serial
        return delivery

    def requests(self) -> Requests:
        """What goes out now. The bytes are copied: what was sent does not change any more."""
        attempts = self.sender.poll(self.now_ms, lambda node: 8)
        return [(attempt, bytes(batch.data or b"")) for attempt in attempts for batch in attempt.batches]

    def append(self, request: tuple[Attempt, bytes]) -> Outcome:
        """The node works a request off, now or long after."""
        return Outcome(*self.broker.produce(TP, request[1]))

    def answer(self, request: tuple[Attempt, bytes], outcome: Outcome | None = None) -> None:
        self.sender.answered(request[0], {TP: outcome or self.append(request)}, self.now_ms)

    def lose(self, *requests: tuple[Attempt, bytes]) -> None:
        for attempt, _ in requests:
            self.sender.lost(attempt, RetriableError("lost", ErrorCode.NETWORK_EXCEPTION), self.now_ms)

    def proven(self) -> Bench:
        """With a first record in the log, so that the partition knows the producer."""
        self.send(b"first")
        (request,) = self.requests()
        self.answer(request)
        return self

    def written(self) -> list[bytes | None]:
        return self.broker.partitions[TP].values()

    def drain(self) -> None:
        for _ in range(100):
            if self.accumulator.first_incomplete() is None:
                return
            for request in self.requests():
                self.answer(request)
            self.clock.advance(ms=50)
        raise AssertionError("a batch never ends")


def test_P3_E1_one_batch_at_a_time_goes_to_a_partition_that_does_not_know_the_producer() -> None:
    """It may start anywhere there, so a later one that came first would shut the earlier one out."""
    bench = Bench()
    first, second = bench.send(b"a"), bench.send(b"b")
    (request,) = bench.requests()
    assert bench.requests() == []
    bench.lose(request)
    bench.clock.advance(ms=1_000)
    (again,) = bench.requests()
    assert again[1] == request[1]
    bench.answer(again)
    bench.drain()
    assert bench.written() == [b"a", b"b"]
    assert [first.result(0).offset, second.result(0).offset] == [0, 1]


def test_P3_E1_a_partition_that_may_have_forgotten_the_producer_gets_one_batch_at_a_time() -> None:
    bench = Bench().proven()
    bench.send(b"a")
    bench.send(b"b")
    assert len(bench.requests()) == 2
    bench = Bench().proven()
    bench.clock.advance(ms=365 * 24 * 3_600_000)
    bench.send(b"a")
    bench.send(b"b")
    assert len(bench.requests()) == 1


@pytest.mark.parametrize("how", ["lost", ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_P1_E1_a_batch_in_doubt_is_sent_again_as_it_was(how: str | ErrorCode) -> None:
    bench = Bench().proven()
    delivery = bench.send(b"a")
    (request,) = bench.requests()
    appended = bench.append(request)
    if isinstance(how, ErrorCode):
        bench.answer(request, Outcome(how))
    else:
        bench.lose(request)
    bench.clock.advance(ms=1_000)
    (again,) = bench.requests()
    assert again[1] == request[1], "under another number the node would not know it"
    bench.answer(again)
    assert delivery.result(0).offset == appended.base_offset
    assert bench.written() == [b"first", b"a"]


_MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("how", ["lost", ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR, _MOVED])
def test_E1_a_batch_in_doubt_is_never_split(how: str | ErrorCode) -> None:
    """It may be there whole, and its halves would not be known as duplicates."""
    bench = Bench(batch_bytes=1_000).proven()
    deliveries = [bench.send(b"a"), bench.send(b"b")]
    (request,) = bench.requests()
    appended = bench.append(request)
    if isinstance(how, ErrorCode):
        bench.answer(request, Outcome(how, appended.base_offset if how is _MOVED else -1))
    else:
        bench.lose(request)
    bench.clock.advance(ms=1_000)
    (again,) = bench.requests()
    bench.answer(again, Outcome(ErrorCode.MESSAGE_TOO_LARGE))  # the topic's bound was lowered meanwhile
    bench.drain()
    assert bench.written() == [b"first", b"a", b"b"]
    assert all(isinstance(each.exception(0), FatalError) for each in deliveries)


def test_a_batch_that_was_refused_as_too_large_is_split() -> None:
    bench = Bench(batch_bytes=1_000).proven()
    deliveries = [bench.send(b"a"), bench.send(b"b")]
    (request,) = bench.requests()
    bench.answer(request, Outcome(ErrorCode.MESSAGE_TOO_LARGE))
    bench.drain()
    assert bench.written() == [b"first", b"a", b"b"]
    assert [each.result(0).offset for each in deliveries] == [1, 2]


def test_E1_a_batch_whose_leader_moved_before_it_was_committed_may_be_written() -> None:
    """The next leader may have it from the former one. One that was refused before it was appended is nowhere."""
    for appended in (True, False):
        bench = Bench().proven()
        delivery = bench.send(b"a")
        (request,) = bench.requests()
        bench.answer(request, Outcome(_MOVED, bench.append(request).base_offset if appended else -1))
        bench.clock.advance(ms=DELIVERY_TIMEOUT_MS // 2)
        (again,) = bench.requests()
        bench.answer(again, Outcome(ErrorCode.NOT_ENOUGH_REPLICAS))
        bench.clock.advance(ms=DELIVERY_TIMEOUT_MS)
        bench.requests()
        error = delivery.exception(0)
        assert type(error) is (FatalError if appended else RetriableError)
        assert ("may be written or not" if appended else "not written; the last answer") in str(error)


def test_E1_behind_a_batch_that_was_given_up_in_doubt_nothing_in_doubt_gets_another_number() -> None:
    """Both may still turn up: under the next epoch the second would be written twice."""
    bench = Bench().proven()
    first = bench.send(b"a")
    bench.clock.advance(ms=DELIVERY_TIMEOUT_MS // 2)
    second = bench.send(b"b")
    strays = bench.requests()
    assert len(strays) == 2
    bench.lose(*strays)
    bench.clock.advance(ms=DELIVERY_TIMEOUT_MS // 2)
    (again,) = bench.requests()
    with pytest.raises(FatalError, match="may be written or not"):
        first.result(0)
    assert again[1] == strays[1][1]
    bench.answer(again)
    later = bench.requests()  # of the next epoch, if there were anything to number again
    for stray in strays:
        bench.append(stray)
    for request in later:
        bench.answer(request)
    assert bench.written() == [b"first", b"a", b"b"]
    with pytest.raises(FatalError, match="may be written or not"):
        second.result(0)
    third = bench.send(b"c")
    bench.drain()
    assert bench.written() == [b"first", b"a", b"b", b"c"]
    assert third.result(0).offset == 3


@pytest.mark.parametrize("polled", [False, True])
@pytest.mark.parametrize("removed", [False, True])
def test_T6_E1_what_waits_at_an_abort_is_never_sent_in_the_next_transaction(polled: bool, removed: bool) -> None:
    """Nor what waits for a topic that was deleted, which the accumulator knows no more."""
    bench = Bench()
    delivery = bench.send(b"of the aborted transaction")
    if polled:
        assert bench.sender.poll(bench.now_ms, lambda node: 0) == [], "there is no room yet"
    if removed:
        bench.accumulator.remove_topic(TP.topic)
    bench.sender.abandon(AbortTransactionError("the transaction was aborted"))
    assert bench.requests() == []
    with pytest.raises(AbortTransactionError):
        delivery.result(0)
    assert bench.accumulator.buffered_bytes == 0
    bench.send(b"of the next")
    bench.drain()
    assert bench.written() == [b"of the next"]
