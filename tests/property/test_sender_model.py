"""The sender against a model broker over a network that loses, delays and duplicates (P1, P2, and the client's E1)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from longer_runs import examples
from model_broker import ModelBroker

from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.clock import ManualClock
from semel.sdk.producer.accumulator import Accumulator, AccumulatorOptions
from semel.sdk.producer.delivery import Delivery
from semel.sdk.producer.sender import Attempt, Outcome, Sender, SenderOptions

TOPIC = "orders"
PARTITIONS = 2


@dataclass
class Request:
    """A Produce on its way. The bytes are copied: a request that was sent does not change any more."""

    attempt: Attempt
    connection: int
    data: dict[TopicPartition, bytes]
    outcomes: dict[TopicPartition, Outcome] | None = None


@dataclass
class Network:
    """One connection to one node, in order both ways; requests of old connections may still arrive."""

    connection: int = 0
    sent: list[Request] = field(default_factory=list)
    answers: list[Request] = field(default_factory=list)
    stray: list[Request] = field(default_factory=list)


class World:
    """A sender, a network, a broker, and a seeded order of events."""

    def __init__(self, seed: int, *, delivery_timeout_ms: int, max_in_flight: int, faults: bool) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.clock = ManualClock()
        options = AccumulatorOptions(batch_size_bytes=self.random.choice([1, 200, 1000]), linger_ms=5)
        self.accumulator = Accumulator(options, self.clock, seed=seed)
        self.accumulator.open_topic = lambda topic: self.accumulator.add_topic(topic, PARTITIONS)
        self.accumulator.wake = lambda: None
        sender_options = SenderOptions(
            delivery_timeout_ms=delivery_timeout_ms, max_in_flight=max_in_flight, request_bytes_max=2000
        )
        self.sender = Sender(self.accumulator, sender_options, lambda tp: 1)
        self.broker = ModelBroker({TOPIC: PARTITIONS})
        self.network = Network()
        self.deliveries: list[tuple[bytes, Delivery]] = []
        self.strays_allowed = True

    @property
    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def send(self) -> None:
        value = b"%d" % len(self.deliveries)
        partition = self.random.randrange(PARTITIONS)
        self.deliveries.append((value, self.accumulator.send(TOPIC, value, partition=partition)))

    def poll(self) -> None:
        for attempt in self.sender.poll(self.now_ms, lambda node: 8 - len(self.network.sent)):
            data = {TopicPartition(b.topic, b.partition): bytes(b.data or b"") for b in attempt.batches}
            assert len(data) == len(attempt.batches), "two batches of a partition in one request"
            self.network.sent.append(Request(attempt, self.network.connection, data))
        if self.sender.wants_producer:
            self.sender.set_producer(self.broker.init_producer_id("", None))

    def apply(self, request: Request) -> None:
        """The node works a request off."""
        outcomes = {}
        for tp, data in request.data.items():
            if self.faults and self.random.random() < 0.1:
                refusals = [
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    ErrorCode.INVALID_RECORD,
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    ErrorCode.MESSAGE_TOO_LARGE,
                ]
                outcomes[tp] = Outcome(self.random.choice(refusals))
                continue
            error, base_offset = self.broker.produce(tp, data)
            if self.faults and error is ErrorCode.NONE and self.random.random() < 0.05:
                error, base_offset = ErrorCode.REQUEST_TIMED_OUT, -1  # appended, but said not to be
            outcomes[tp] = Outcome(error, base_offset)
        request.outcomes = outcomes

    def node_works(self) -> None:
        if self.network.sent:
            request = self.network.sent.pop(0)
            self.apply(request)
            self.network.answers.append(request)

    def answer_arrives(self) -> None:
        if self.network.answers:
            request = self.network.answers.pop(0)
            assert request.outcomes is not None
            self.sender.answered(request.attempt, request.outcomes, self.now_ms)

    def connection_breaks(self) -> None:
        """Answers are lost, and requests the node has not read yet arrive later or never."""
        lost, self.network.answers = self.network.answers, []
        unread, self.network.sent = self.network.sent, []
        self.network.connection += 1
        for request in [*lost, *unread]:
            self.sender.lost(request.attempt, RetriableError("lost", ErrorCode.NETWORK_EXCEPTION), self.now_ms)
        if self.strays_allowed:
            self.network.stray += [request for request in unread if self.random.random() < 0.7]

    def stray_arrives(self) -> None:
        if self.network.stray:
            # Of one old connection in order.
            first = self.random.choice(self.network.stray).connection
            request = next(request for request in self.network.stray if request.connection == first)
            self.network.stray.remove(request)
            for tp, data in request.data.items():
                self.broker.produce(tp, data)

    def step(self) -> None:
        events = [self.send, self.send, self.poll, self.poll, self.node_works, self.node_works, self.answer_arrives]
        if self.faults:
            events.append(self.stray_arrives)
            if self.random.random() < 0.1:
                events = [self.connection_breaks]
        self.random.choice(events)()
        self.clock.advance(ms=self.random.choice([0, 0, 1, 5, 30, 200]))

    def finish(self) -> None:
        """No more faults: everything must come to an end (liveness)."""
        self.faults = False
        self.sender.flush_serial = self.accumulator.last_serial
        for _ in range(2000):
            if self.accumulator.first_incomplete() is None:
                return
            self.poll()
            while self.network.sent:
                self.node_works()
            while self.network.answers:
                self.answer_arrives()
            while self.network.stray:
                self.stray_arrives()
            self.clock.advance(ms=50)
        raise AssertionError(f"{self.accumulator.incomplete_count()} batches never end")

    def check(self) -> None:
        written = {
            tp: {offset: record.value for offset, record in partition.records()}
            for tp, partition in self.broker.partitions.items()
        }
        counts = Counter(value for values in written.values() for value in values.values())
        twice = [value for value, count in counts.items() if count > 1]
        assert not twice, f"written twice: {twice}"
        last: dict[TopicPartition, int] = {}
        for value, delivery in self.deliveries:
            assert delivery.done()
            tp = TopicPartition(delivery.topic, delivery.partition)
            error = delivery.exception(0)
            if error is None:
                offset = delivery.result(0).offset
                assert written[tp].get(offset) == value, f"{value!r} is not at {tp} offset {offset}"
                assert offset > last.get(tp, -1), f"{value!r} at {tp} offset {offset} is out of order"
                last[tp] = offset
            else:
                assert isinstance(error, SemelError)
        assert self.accumulator.buffered_bytes == 0


@settings(max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans())
def test_P1_P2_E1_each_acknowledged_record_is_there_once_and_in_order(seed: int, in_flight: int, faults: bool) -> None:
    world = World(seed, delivery_timeout_ms=120_000, max_in_flight=in_flight, faults=faults)
    for _ in range(world.random.choice([20, 100, 300])):
        world.step()
    world.finish()
    world.check()
    if not faults:
        assert all(delivery.exception(0) is None for _, delivery in world.deliveries)
        note(f"{len(world.deliveries)} records")


@settings(max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_P1_P2_nothing_is_written_twice_when_batches_time_out_in_doubt(seed: int, in_flight: int) -> None:
    world = World(seed, delivery_timeout_ms=400, max_in_flight=in_flight, faults=True)
    for _ in range(world.random.choice([50, 200])):
        world.step()
    world.finish()
    world.check()


def test_epochs_that_run_out_are_followed_by_a_new_id() -> None:
    world = World(3, delivery_timeout_ms=120_000, max_in_flight=5, faults=False)
    world.sender.set_producer(ProducerIdAndEpoch(7, 32766))
    for _ in range(5):
        world.send()
    world.finish()
    for partition in world.broker.partitions.values():
        known = partition.producers.get(7)
        if known is not None:
            known.batches.clear()
            known.batches.append((500, 501, 0))  # the node's state is not what the client believes
    for _ in range(20):
        world.send()
    world.finish()
    world.check()
    assert {batch.producer for partition in world.broker.partitions.values() for batch in partition.batches} == {
        ProducerIdAndEpoch(7, 32766),
        ProducerIdAndEpoch(1001, 0),
    }
