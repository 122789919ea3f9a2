"""Transactions of the clients that people have and of our SDK, on the same topics, read by all of them.

All three foreign clients speak the older protocol: partitions added explicitly, one epoch for all transactions.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import pytest
from foreign_clients import MEMBERS, QUIET, READERS, WRITERS, FailedError, Writer
from live_node import LiveNode

import semel
from semel.protocol.api.transactions import DescribeTransactionRequest
from semel.protocol.ids import TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka
    from kafka.admin import AbortTransactionSpec, TransactionState
    from kafka.errors import TransactionalIdNotFoundError
    from kafka.structs import TopicPartition as KafkaPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FOREIGN = [name for name in WRITERS if name != "semel"]
_numbers = itertools.count()


@dataclass
class Place:
    """One node for all tests of this file; each makes topics of its own."""

    live: LiveNode

    @property
    def kafka(self) -> str:
        return str(self.live.node.kafka_address)

    @property
    def grpc(self) -> str:
        return self.live.bootstrap

    def topic(self, partitions: int = 1) -> str:
        name = f"topic-{next(_numbers)}"
        with semel.Admin(self.grpc) as admin:
            admin.create_topic(name, partitions=partitions)
        return name

    def name(self) -> str:
        return f"id-{next(_numbers)}"

    def partition(self, tp: TopicPartition) -> Any:
        partition = self.live.node.partition(tp)
        assert partition is not None
        return partition

    def state(self, name: str) -> str:
        asked = DescribeTransactionRequest(name)
        return str(self.live.run(lambda: self.live.node.transactions.describe(asked)).state)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with semel.Admin(self.grpc) as admin:
            return {tp: found.offset for tp, found in admin.group_offsets(group).items()}

    def settled(self, name: str) -> None:
        """Wait until nothing of `name` is on its way any more."""
        until(lambda: self.state(name) in ("CompleteCommit", "CompleteAbort", "Empty"))


def until(condition: Callable[[], bool]) -> None:
    """Ask until something has happened (bounded by the test's own timeout)."""
    while not condition():
        time.sleep(0.005)  # the node runs in this process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with LiveNode(tmp_path_factory.mktemp("node")) as live:
        yield Place(live)


@pytest.fixture
def writer(place: Place) -> Iterator[Callable[..., Writer]]:
    """Makes writers, and closes them after the test."""
    made: list[Writer] = []

    def make(client: str, name: str | None = None, **options: Any) -> Writer:
        made.append(WRITERS[client](place, name, **options))
        return made[-1]

    yield make
    for each in made:
        with suppress(FailedError):  # one that was fenced says so once more
            each.close()


# --- What one client writes, all clients read -------------------------------------------------------------------------


@pytest.mark.parametrize("client", WRITERS)
def test_every_reader_reads_what_an_idempotent_producer_wrote_in_every_codec(
    place: Place, writer: Callable[..., Writer], client: str
) -> None:
    topic = place.topic(len(CODECS))
    expected = {}
    for number, codec in enumerate(CODECS):
        values = [b"%d of %s in %s" % (n, client.encode(), codec.encode()) * 5 for n in range(200)]
        expected[TopicPartition(topic, number)] = values
        writer(client, codec=codec).send(topic, values, number)
    for read in READERS.values():
        assert read(place, list(expected), True) == expected
    entries = [list(place.partition(tp).log.producer_state) for tp in expected]
    assert all(len(found) == 1 and found[0].last_sequence == 199 for found in entries), "each was idempotent"


@pytest.mark.parametrize("client", WRITERS)
def test_L2_L3_every_reader_sees_committed_transactions_alone_and_of_open_ones_nothing(
    place: Place, writer: Callable[..., Writer], client: str
) -> None:
    topic = place.topic(2)
    first, second = tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    name = place.name()
    producer = writer(client, name)
    for number, commit in enumerate([True, False, True, True, False]):
        producer.begin()
        producer.send(topic, [b"a%d" % number, b"b%d" % number], 0)
        producer.send(topic, [b"c%d" % number], 1)
        if commit:
            producer.commit()
        else:
            producer.abort()
    place.settled(name)
    producer.begin()
    producer.send(topic, [b"open"], 0)
    writer("semel").send(topic, [b"behind it"], 0)
    committed = {
        first: [b"a0", b"b0", b"a2", b"b2", b"a3", b"b3"],
        second: [b"c0", b"c2", b"c3"],
    }
    everything = {
        first: [b"%s%d" % (letter, number) for number in range(5) for letter in (b"a", b"b")] + [b"open", b"behind it"],
        second: [b"c%d" % number for number in range(5)],
    }
    for reader, read in READERS.items():
        assert read(place, tps, True) == committed, reader
        assert read(place, tps, False) == everything, reader
    producer.commit()
    place.settled(name)
    committed[first] += [b"open", b"behind it"]
    for reader, read in READERS.items():
        assert read(place, tps, True) == committed, reader


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "idempotent"])
@pytest.mark.parametrize("client", WRITERS)
def test_P3_a_producer_that_the_partition_has_forgotten_goes_on(
    place: Place, writer: Callable[..., Writer], client: str, transactional: bool
) -> None:
    """UNKNOWN_PRODUCER_ID of older brokers made it stop: the partition takes it up again wherever it stands."""
    topic = place.topic()
    tp = TopicPartition(topic, 0)
    name = place.name() if transactional else None
    producer = writer(client, name)
    expected = []
    for number in range(3):
        if name is not None:
            producer.begin()
        values = [b"%d of %d" % (n, number) for n in range(3)]
        producer.send(topic, values)
        expected += values
        if name is not None:
            producer.commit()
            place.settled(name)
        state = place.partition(tp).log.producer_state
        assert place.live.run(lambda state=state: state.expire(2**62, 0)) == 1
    assert READERS["confluent"](place, [tp], True) == {tp: expected}


# --- Zombies and timeouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("successor", ["confluent", "semel"])
@pytest.mark.parametrize("client", WRITERS)
def test_T5_a_zombie_is_fenced_and_what_it_has_open_is_aborted(
    place: Place, writer: Callable[..., Writer], client: str, successor: str
) -> None:
    topic, name = place.topic(), place.name()
    zombie = writer(client, name)
    zombie.begin()
    zombie.send(topic, [b"zombie"])
    heir = writer(successor, name)
    heir.begin()
    with pytest.raises(FailedError) as fenced:
        zombie.commit()
    assert fenced.value.fenced, fenced.value
    heir.send(topic, [b"heir"])
    heir.commit()
    place.settled(name)
    tp = TopicPartition(topic, 0)
    assert READERS["confluent"](place, [tp], True) == {tp: [b"heir"]}


@pytest.mark.parametrize("client", WRITERS)
def test_T9_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(
    place: Place, writer: Callable[..., Writer], client: str
) -> None:
    topic, name = place.topic(), place.name()
    tp = TopicPartition(topic, 0)
    producer = writer(client, name, timeout_ms=1_000)
    producer.begin()
    producer.send(topic, [b"too slow"])
    until(lambda: place.partition(tp).last_stable_offset == 2)
    place.settled(name)
    with pytest.raises(FailedError):
        producer.commit()
    assert READERS["semel"](place, [tp], True) == {tp: []}
    successor = writer(client, name)
    successor.begin()
    successor.send(topic, [b"in time"])
    successor.commit()
    place.settled(name)
    assert READERS["semel"](place, [tp], True) == {tp: [b"in time"]}


# --- Consume, transform, produce --------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", WRITERS)
def test_O1_offsets_sent_to_a_transaction_count_when_it_commits(
    place: Place, writer: Callable[..., Writer], client: str
) -> None:
    source, target, group, name = place.topic(), place.topic(), place.name(), place.name()
    writer("semel").send(source, [b"%d" % number for number in range(20)])
    producer = writer(client, name)
    tp, out = TopicPartition(source, 0), TopicPartition(target, 0)
    member = MEMBERS[client](place, group, source)
    try:
        for number, commit in enumerate([True, False, True]):
            records = member.take(5)
            producer.begin()
            producer.send(target, [b"%d:" % number + value for _, _, value in records])
            producer.offsets({tp: records[-1][1] + 1}, member)
            if commit:
                producer.commit()
            else:
                producer.abort()
            place.settled(name)
            assert place.committed(group) == {tp: [5, 5, 15][number]}
    finally:
        member.close()
    expected = [b"0:%d" % n for n in range(5)] + [b"2:%d" % n for n in range(10, 15)]
    for read in READERS.values():
        assert read(place, [out], True) == {out: expected}
    # Another client continues where the group stands.
    successor = MEMBERS["semel" if client != "semel" else "confluent"](place, group, source)
    try:
        assert [value for _, _, value in successor.take(5)] == [b"%d" % n for n in range(15, 20)]
    finally:
        successor.close()


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "semel"])
def test_O4_offsets_of_a_generation_that_is_over_are_refused(
    place: Place, writer: Callable[..., Writer], client: str
) -> None:
    """With KIP-447 the group fences; aiokafka sends the group's name alone, and can't be."""
    source, group, name = place.topic(), place.name(), place.name()
    writer("semel").send(source, [b"x"])
    producer = writer(client, name)
    member = MEMBERS[client](place, group, source)
    member.take(1)

    class Stale:
        def __init__(self) -> None:
            self._metadata = member.metadata()

        def metadata(self) -> Any:
            return self._metadata

    stale = Stale()
    member.close()
    producer.begin()
    successor = MEMBERS["confluent"](place, group, source)
    try:
        successor.take(1)
        with pytest.raises(FailedError) as refused:
            producer.offsets({TopicPartition(source, 0): 1}, stale)
        assert not refused.value.fenced
        producer.abort()
    finally:
        successor.close()
    place.settled(name)
    assert place.committed(group) == {}


# --- Operators --------------------------------------------------------------------------------------------------------


def test_an_operator_lists_describes_and_aborts_transactions(place: Place, writer: Callable[..., Writer]) -> None:
    topic, names = place.topic(2), [place.name() for _ in range(3)]
    tp = KafkaPartition(topic, 0)
    admin = kafka.KafkaAdminClient(bootstrap_servers=place.kafka)
    try:
        opened, done, empty = (writer(client, name) for client, name in zip(FOREIGN, names, strict=True))
        for producer in (opened, done):
            producer.begin()
            producer.send(topic, [b"x"], 0)
        done.commit()
        place.settled(names[1])
        assert empty
        (listed,) = admin.list_transactions().values()
        states = {item.transactional_id: item.state for item in listed if item.transactional_id in names}
        expected = [TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT, TransactionState.EMPTY]
        assert states == dict(zip(names, expected, strict=True))
        (listed,) = admin.list_transactions(state_filters=["Ongoing"], transactional_id_pattern=names[0]).values()
        assert [item.transactional_id for item in listed] == names[:1]
        (listed,) = admin.list_transactions(duration_filter_ms=3_600_000).values()
        assert listed == []
        found = admin.describe_transactions(names)
        assert [found[name].state for name in names] == expected
        assert found[names[0]].topic_partitions == {tp}
        assert found[names[0]].transaction_start_time_ms > 0
        assert found[names[2]].transaction_start_time_ms == -1
        with pytest.raises(TransactionalIdNotFoundError):
            admin.describe_transactions(["nobody"])
        assert admin.find_hanging_transactions() == []
        producers = admin.describe_producers([tp])[tp].active_producers
        (hangs,) = [item for item in producers if item.current_transaction_start_offset >= 0]
        assert (hangs.producer_id, hangs.producer_epoch) == (found[names[0]].producer_id, 0)
        admin.abort_transaction(AbortTransactionSpec(tp, hangs.producer_id, hangs.producer_epoch))
        assert place.partition(TopicPartition(topic, 0)).last_stable_offset == 4
    finally:
        admin.close()


def test_transactions_of_several_clients_on_one_partition_do_not_touch_each_other(
    place: Place, writer: Callable[..., Writer]
) -> None:
    topic = place.topic()
    tp = TopicPartition(topic, 0)
    names = {client: place.name() for client in WRITERS}
    writers = {client: writer(client, name) for client, name in names.items()}
    expected = []
    for round_ in range(4):
        for client, producer in writers.items():
            producer.begin()
            producer.send(topic, [b"%s %d" % (client.encode(), round_)])
        for number, (client, producer) in enumerate(reversed(list(writers.items()))):
            if (number + round_) % 2:
                producer.commit()
            else:
                producer.abort()
            place.settled(names[client])
        kept = [client for number, client in enumerate(reversed(list(writers))) if (number + round_) % 2]
        expected += [b"%s %d" % (client.encode(), round_) for client in writers if client in kept]
    for reader, read in READERS.items():
        assert read(place, [tp], True) == {tp: expected}, reader


def test_a_transaction_without_data_ends_and_an_empty_one_too(place: Place) -> None:
    name = place.name()
    producer = confluent_kafka.Producer({"bootstrap.servers": place.kafka, "transactional.id": name}, logger=QUIET)
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction) * 2:
        producer.begin_transaction()
        end(30)
        place.settled(name)
