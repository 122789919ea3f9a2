"""The flaw that Jepsen described (KAFKA-17754), against foreign clients: what the network kept too long, or lost.

A proxy holds, repeats and loses whole requests and answers between a client and a node. With an epoch for each
transaction (KIP-890) nothing that comes late has any effect. confluent-kafka speaks the older protocol, which gives
less: what is kept out there, and the one thing that can't be, is what its tests say, and docs/transactions.md.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from foreign_clients import QUIET, READERS, WRITERS
from kafka_node import KafkaClient, close_clients
from kafka_proxy import Decide, Fate, KafkaProxy, KeptRequest, every, first, passing
from kafka_transactions import ID, PRODUCE_NEWER, A, B, Kafka, next_of
from live_node import LiveNode

import semel
from semel.protocol.api.transactions import DescribeTransactionRequest
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey, parse_response_header
from semel.protocol.kafka.produce import ProduceResponse

KEYS = (
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)

REFUSED = (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_PRODUCER_EPOCH)
"""What a batch is answered that is in no transaction."""


class Network:
    """A node behind a proxy, and one confluent-kafka producer in front of it."""

    def __init__(self, folder: Path) -> None:
        self.proxy = KafkaProxy()
        self.live = LiveNode(folder, kafka_advertised=f"127.0.0.1:{self.proxy.port}")
        self.producer: Any = None

    def __enter__(self) -> Network:
        self.live.start()
        self.proxy.aim(self.live.node.kafka_address.port)
        with semel.Admin(self.grpc) as admin:
            admin.create_topic("a", partitions=2)
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.decide = passing
        if self.producer is not None:
            with suppress(confluent_kafka.KafkaException):
                self.producer.purge()
        self.live.stop()
        self.proxy.close()

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"

    @property
    def grpc(self) -> str:
        return self.live.bootstrap

    def start_producer(self, **options: Any) -> None:
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.kafka,
                "transactional.id": ID,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 0,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 5,
                **options,
            },
            logger=QUIET,
        )
        self.producer.init_transactions(60)

    def send(self, value: bytes, tp: TopicPartition = A) -> None:
        failed: list[object] = []
        self.producer.produce(
            tp.topic,
            value,
            partition=tp.partition,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
        assert self.producer.flush(60) == 0
        assert not failed

    def transact(self, *values: bytes, commit: bool = True, decide: Decide = passing) -> None:
        """One whole transaction over both partitions, under a rule of the proxy's."""
        self.proxy.decide = decide
        self.producer.begin_transaction()
        for value in values:
            self.send(value, A)
            self.send(value, B)
        self.end(commit)
        self.proxy.decide = passing

    def end(self, commit: bool = True) -> None:
        (self.producer.commit_transaction if commit else self.producer.abort_transaction)(60)

    def partition(self, tp: TopicPartition) -> Any:
        partition = self.live.node.partition(tp)
        assert partition is not None
        return partition

    def state(self) -> str:
        asked = DescribeTransactionRequest(ID)
        return str(self.live.run(lambda: self.live.node.transactions.describe(asked)).state)

    def settled(self) -> None:
        """Wait until nothing is open on any partition; what hangs never lets this end."""
        for partition in self.live.node.logs.partitions():
            while partition.last_stable_offset < partition.log_end_offset:
                time.sleep(0.002)  # the node runs in this process
        while self.state().startswith("Prepare"):
            time.sleep(0.002)

    def read(self, *tps: TopicPartition) -> list[list[bytes]]:
        self.settled()
        found = READERS["semel"](self, list(tps or (A, B)), True)
        return list(found.values())

    def produced(self, answer: bytes, request: KeptRequest) -> ErrorCode:
        _, body = parse_response_header(answer, ApiKey.PRODUCE, request.version)
        (item,) = ProduceResponse.parse(answer, request.version, body).partitions
        return item.error


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path) as made:
        yield made


# --- The older protocol, as confluent-kafka speaks it -----------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS[:2] + KEYS[4:], ids=lambda key: key.name)
@pytest.mark.parametrize("fate", [Fate.LOSE_ANSWER, Fate.HOLD], ids=["answer lost", "request lost"])
def test_T7_confluent_kafka_ends_a_transaction_of_which_a_request_or_an_answer_was_lost(
    network: Network, key: ApiKey, fate: Fate
) -> None:
    network.start_producer()
    for number, commit in enumerate([True, False, True]):
        network.transact(b"%d" % number, commit=commit, decide=first(key, fate))
    assert network.proxy.lost == 3
    assert network.read() == [[b"0", b"2"]] * 2


def test_T8_a_batch_of_confluent_kafka_that_arrives_after_its_transaction_enters_nothing(network: Network) -> None:
    network.start_producer()
    network.transact(b"0", decide=first(ApiKey.PRODUCE, Fate.HOLD))
    network.transact(b"1", commit=False, decide=first(ApiKey.PRODUCE, Fate.HOLD))
    network.settled()
    ends = [network.partition(tp).log_end_offset for tp in (A, B)]
    assert len(network.proxy.kept) == 2
    for request in network.proxy.kept * 2:
        assert network.produced(network.proxy.deliver(request), request) in REFUSED
    assert [network.partition(tp).log_end_offset for tp in (A, B)] == ends
    assert network.read() == [[b"0"]] * 2


def test_T8_a_batch_that_confluent_kafka_gave_up_opens_nothing_when_it_arrives_at_last(network: Network) -> None:
    """KAFKA-12671: without verification it would open a transaction that nobody ends."""
    network.start_producer(**{"message.timeout.ms": 15_000})
    network.transact(b"0")  # it is connected, so that the batch is sent before its time is over
    network.proxy.decide = every(ApiKey.PRODUCE, Fate.HOLD)
    network.producer.begin_transaction()
    network.producer.produce("a", b"given up", partition=0)
    with pytest.raises(confluent_kafka.KafkaException):
        network.producer.commit_transaction(60)
    network.end(commit=False)  # the rule still holds: a retry that got through would be the batch itself
    network.proxy.decide = passing
    network.settled()
    late = network.proxy.kept[0]
    assert network.produced(network.proxy.deliver(late), late) in REFUSED
    network.settled()
    network.producer.begin_transaction()
    network.send(b"next", B)  # a transaction that has the other partition
    assert network.produced(network.proxy.deliver(late), late) in REFUSED
    network.end()
    network.producer.begin_transaction()
    network.send(b"next", A)  # and one that has its own
    end = network.partition(A).log_end_offset
    answered = network.produced(network.proxy.deliver(late), late)
    # Mostly librdkafka took a new epoch. Where the batch timed out between two attempts it took none, and its next
    # batch has the same number: then the late one is answered as a repetition of that.
    assert answered in REFUSED or answered is ErrorCode.NONE
    assert network.partition(A).log_end_offset == end
    network.end()
    assert network.read() == [[b"0", b"next"]] * 2


@pytest.mark.parametrize("count", [1, 3])
def test_P1_a_number_that_confluent_kafka_gives_again_after_an_abort_loses_no_record(
    network: Network, count: int
) -> None:
    """Its abort drops a batch that was sent and not answered, and the next transaction's has the number of that one.

    Apache Kafka 4.3 says that this one is in already: a commit succeeds without it.
    """
    network.start_producer(**{"linger.ms": 50, "retry.backoff.ms": 5_000, "retry.backoff.max.ms": 5_000})
    network.transact(b"0")
    network.proxy.decide = first(ApiKey.PRODUCE, Fate.LOSE_ANSWER)
    network.producer.begin_transaction()
    for _ in range(count):
        network.producer.produce("a", b"aborted", partition=0)
    while not network.proxy.lost:
        network.producer.poll(0.01)
    network.end(commit=False)
    network.settled()
    end = network.partition(A).log_end_offset
    network.producer.begin_transaction()
    for _ in range(count):
        network.producer.produce("a", b"refused", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        network.producer.commit_transaction(60)
    assert raised.value.args[0].code() == ErrorCode.INVALID_TXN_STATE
    assert raised.value.args[0].txn_requires_abort()
    assert network.partition(A).log_end_offset == end
    network.end(commit=False)
    network.transact(b"1")
    assert network.read() == [[b"0", b"1"]] * 2


def test_T7_an_end_that_is_repeated_between_transactions_changes_nothing(network: Network) -> None:
    network.start_producer()
    for number, commit in enumerate([True, False]):
        network.transact(b"%d" % number, commit=commit, decide=first(ApiKey.END_TXN, Fate.KEEP))
        network.settled()
        (request,) = network.proxy.kept
        for _ in range(2):
            network.proxy.deliver(request)
        network.proxy.kept.clear()
    network.transact(b"2")
    assert network.read() == [[b"0", b"2"]] * 2


def test_the_older_protocol_cannot_tell_an_end_that_arrives_in_the_next_transaction(network: Network) -> None:
    """KAFKA-17754. The same in Kafka 4: one epoch for all transactions, so it ends the wrong one.

    What verification does give: nothing hangs, and the producer learns of it with its next batch, instead of committing
    the second half as if it were the whole.
    """
    network.start_producer()
    network.transact(b"0", decide=first(ApiKey.END_TXN, Fate.KEEP))
    network.settled()
    network.producer.begin_transaction()
    network.send(b"first half")
    network.proxy.deliver(network.proxy.kept[0])
    network.settled()
    assert network.state() == "CompleteCommit"
    network.producer.produce("a", b"second half", partition=0)
    with pytest.raises(confluent_kafka.KafkaException):
        network.producer.commit_transaction(60)
    assert network.read(A) == [[b"0", b"first half"]]
    network.start_producer()
    network.transact(b"1")
    assert network.read(A) == [[b"0", b"first half", b"1"]]


def test_T8_partitions_added_late_open_nothing_on_them_and_end_with_the_next_transaction(network: Network) -> None:
    network.start_producer()
    network.transact(b"0", decide=every(ApiKey.ADD_PARTITIONS_TO_TXN, Fate.KEEP))
    network.settled()
    late = network.proxy.kept[0]
    network.proxy.deliver(late)
    assert network.state() == "Ongoing"
    network.settled()  # readers are not held back
    assert network.read() == [[b"0"]] * 2
    network.transact(b"1", commit=False)
    network.proxy.deliver(late)
    network.transact(b"2")
    assert network.read() == [[b"0", b"2"]] * 2
    assert network.state() == "CompleteCommit"


Transact = Callable[[bytes, bool], None]


def lose_and_repeat_at_random(network: Network, seed: int, count: int, transact: Transact) -> None:
    """All that the older protocol can stand: requests and answers lost, and all but EndTxn repeated late."""
    draw = random.Random(seed)

    def decide(request: KeptRequest) -> Fate:
        if request.key not in KEYS:
            return Fate.PASS
        fate = draw.choices(list(Fate), [20, 4, 1, 1])[0]
        return Fate.LOSE_ANSWER if fate is Fate.KEEP and request.key == ApiKey.END_TXN else fate

    expected = []
    for number in range(count):
        commit = draw.random() < 0.7
        network.proxy.decide = decide
        transact(b"%d" % number, commit)
        network.proxy.decide = passing
        if commit:
            expected.append(b"%d" % number)
        kept, network.proxy.kept = network.proxy.kept, []
        for request in kept:
            if request.key != ApiKey.END_TXN and draw.random() < 0.5:
                network.proxy.deliver(request)
        assert network.read() == [expected] * 2, number
    assert network.proxy.lost > 5


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_T7_T8_confluent_kafka_through_a_network_that_loses_and_repeats_at_random(network: Network, seed: int) -> None:
    network.start_producer()

    def transact(value: bytes, commit: bool) -> None:
        network.producer.begin_transaction()
        network.send(value, A)
        network.send(value, B)
        network.end(commit)

    lose_and_repeat_at_random(network, seed, 40, transact)


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_P1_confluent_kafka_aborts_at_any_moment_while_answers_are_lost_at_random(network: Network, seed: int) -> None:
    """What was committed is there once, what was aborted is not, and what is not known is there whole or not."""
    draw = random.Random(seed)
    fates = {ApiKey.PRODUCE: [8, 3, 1], ApiKey.END_TXN: [20, 1, 1], ApiKey.ADD_PARTITIONS_TO_TXN: [20, 1, 1]}

    def decide(request: KeptRequest) -> Fate:
        weights = fates.get(ApiKey(request.key), [1, 0, 0])
        return draw.choices([Fate.PASS, Fate.LOSE_ANSWER, Fate.HOLD], weights)[0]

    def start() -> None:
        network.proxy.decide = passing
        network.start_producer(**{"retry.backoff.ms": draw.choice([5, 50, 500]), "retry.backoff.max.ms": 500})
        network.proxy.decide = decide

    def transact(values: list[bytes]) -> set[int]:
        """Return how often each of them may be there."""
        commits = draw.random() < 0.5
        try:
            network.producer.begin_transaction()
            for value in values:
                network.producer.produce("a", value, partition=draw.randrange(2))
                network.producer.poll(draw.choice([0, 0, 0.05]))
            network.end(commits)
        except confluent_kafka.KafkaException as error:
            if error.args[0].txn_requires_abort():
                with suppress(confluent_kafka.KafkaException):
                    network.end(commit=False)
                    return {0}
            network.producer.purge()
            start()
            return {0, 1} if commits else {0}
        return {int(commits)}

    start()
    outcomes = []
    for number in range(25):
        values = [b"%d-%d" % (number, place) for place in range(draw.choice([1, 1, 2, 5]))]
        outcomes.append((values, transact(values)))
    start()  # what is not known is decided by it
    found = Counter(value for values in network.read() for value in values)
    for values, times in outcomes:
        counts = {found[value] for value in values}
        assert len(counts) == 1, (values, counts)
        assert counts <= times, values


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_T7_T8_other_clients_through_such_a_network(network: Network, client: str) -> None:
    producer = WRITERS[client](network, ID)

    def transact(value: bytes, commit: bool) -> None:
        producer.begin()
        for tp in (A, B):
            producer.send(tp.topic, [value], tp.partition)
        (producer.commit if commit else producer.abort)()

    try:
        lose_and_repeat_at_random(network, 0, 20, transact)
    finally:
        producer.close()


# --- An epoch for each transaction, as newer clients speak it ---------------------------------------------------------


def newer(network: Network, test: Callable[[Kafka], Awaitable[None]]) -> None:
    """Run a test with a raw client of the newer protocol, whose requests go through the proxy."""

    async def main() -> None:
        async with asyncio.timeout(120):
            client = await KafkaClient.connect(network.proxy.port)
            try:
                await test(Kafka(network.live.node, client, network.proxy.port))
            finally:
                await close_clients()

    asyncio.run(main())


async def until_known(call: Callable[[], Awaitable[Any]]) -> Any:
    """Retry where that is what the node says, or where the connection ended."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            found = await call()
            if found is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return found


async def write(kafka: Kafka, producer: ProducerIdAndEpoch, value: bytes, sequence: int = 0) -> None:
    for tp in (A, B):
        sent = await until_known(lambda tp=tp: send_again(kafka, producer, value, sequence, tp))  # type: ignore[misc]
        assert sent is ErrorCode.NONE


async def send_again(
    kafka: Kafka, producer: ProducerIdAndEpoch, value: bytes, sequence: int, tp: TopicPartition
) -> ErrorCode:
    """Send over a connection of its own if the last one ended."""
    if kafka.kafka.reader.at_eof() or kafka.kafka.writer.is_closing():
        await kafka.kafka.close()
        kafka.kafka = await KafkaClient.connect(kafka.port)
    return await kafka.send(producer, value, sequence, tp=tp, version=PRODUCE_NEWER)


async def off_loop(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


@pytest.mark.parametrize("fate", [Fate.LOSE_ANSWER, Fate.HOLD], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_T6_T7_an_end_that_was_lost_is_repeated_and_late_it_has_no_effect(
    network: Network, commit: bool, fate: Fate
) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        await write(kafka, producer, b"0")
        network.proxy.decide = first(ApiKey.END_TXN, fate, first(ApiKey.END_TXN, Fate.KEEP))
        following = await until_known(lambda: kafka.end(producer, commit))
        assert following == next_of(producer), "told what the first answer would have said"
        await write(kafka, following, b"1")
        (late,) = network.proxy.kept[:1]
        await off_loop(lambda: network.proxy.deliver(late))
        await write(kafka, following, b"2", 1)
        assert await until_known(lambda: kafka.end(following)) == next_of(following)

    newer(network, test)
    assert network.read() == [[b"0"] * commit + [b"1", b"2"]] * 2


def test_T6_T8_whatever_comes_after_its_transaction_has_no_effect_on_the_next_one(network: Network) -> None:
    network.proxy.decide = lambda request: Fate.KEEP if request.key in KEYS else Fate.PASS

    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        for number in range(8):
            await write(kafka, producer, b"%d" % number)
            assert await until_known(lambda producer=producer: kafka.commit_offset(producer, 7, 5)) is ErrorCode.NONE  # type: ignore[misc]
            assert await kafka.add(producer, A, B) == [ErrorCode.NONE] * 2
            kept = list(network.proxy.kept)
            producer = await until_known(
                lambda producer=producer, number=number: kafka.end(producer, commit=number % 2 == 0)  # type: ignore[misc]
            )
            assert isinstance(producer, ProducerIdAndEpoch)
            for request in kept:  # all of all transactions so far, between two of them
                await off_loop(lambda request=request: network.proxy.deliver(request))  # type: ignore[misc]
            await off_loop(network.settled)
            assert network.state() in ("CompleteCommit", "CompleteAbort")
            kept = list(network.proxy.kept)
            await write(kafka, producer, b"amid")
            for request in kept:  # and amid one
                await off_loop(lambda request=request: network.proxy.deliver(request))  # type: ignore[misc]
            assert network.state() == "Ongoing"
            producer = await until_known(lambda producer=producer: kafka.end(producer, commit=False))  # type: ignore[misc]

    newer(network, test)
    assert network.read() == [[b"0", b"2", b"4", b"6"]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_T6_T7_T8_the_newer_protocol_through_a_network_that_loses_and_repeats_everything_at_random(
    network: Network, seed: int
) -> None:
    draw = random.Random(seed)
    expected: list[bytes] = []
    network.proxy.decide = lambda request: (
        draw.choices(list(Fate), [20, 6, 2, 2])[0] if request.key in KEYS else Fate.PASS
    )

    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        kept: list[KeptRequest] = []
        for number in range(40):
            await write(kafka, producer, b"%d" % number)
            for request in draw.sample(kept, min(len(kept), 3)):
                await off_loop(lambda request=request: network.proxy.deliver(request))  # type: ignore[misc]
            await write(kafka, producer, b"%d again" % number, 1)
            kept = list(network.proxy.kept)
            commit = draw.random() < 0.7
            producer = await until_known(lambda producer=producer, commit=commit: kafka.end(producer, commit))  # type: ignore[misc]
            assert isinstance(producer, ProducerIdAndEpoch), producer
            if commit:
                expected.extend((b"%d" % number, b"%d again" % number))
            for request in draw.sample(kept, min(len(kept), 3)):
                await off_loop(lambda request=request: network.proxy.deliver(request))  # type: ignore[misc]

    newer(network, test)
    assert network.read() == [expected] * 2
    assert network.proxy.lost > 5
