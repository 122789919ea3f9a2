"""`semel.testing.Broker`: a broker in the test process, with Semel's own clients and with librdkafka."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import aiokafka
import confluent_kafka
import leaves_nothing_behind
import pytest
from impatience import impatient

import semel
from semel.protocol.errors import ErrorCode
from semel.runtime.setting import ConfigError
from semel.testing import AioBroker, Broker, Unsynced


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def values(records: list[semel.Record]) -> list[bytes | None]:
    return [record.value for record in records]


def librdkafka(broker: Broker, **options: Any) -> confluent_kafka.Producer:
    quick = {"linger.ms": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
    given = {key.replace("_", "."): value for key, value in options.items()}
    return confluent_kafka.Producer({"bootstrap.servers": broker.kafka, **quick, **given})


def send(broker: Broker, topic: str, *sent: bytes) -> None:
    with semel.Producer(broker.bootstrap) as producer:
        for value in sent:
            producer.send(topic, value)


def commit(broker: Broker, transactional_id: str, topic: str, *sent: bytes) -> None:
    with semel.Producer(broker.bootstrap, transactional_id=transactional_id) as producer, producer.transaction() as txn:
        for value in sent:
            txn.send(topic, value)


# --- Life -------------------------------------------------------------------------------------------------------------


def test_importing_semel_imports_neither_the_test_kit_nor_a_broker() -> None:
    program = (
        "import sys, semel; semel.Producer; semel.testing; import semel.testing; "
        "assert not [name for name in sys.modules if name.startswith(('semel.broker', 'semel.sdk.testing'))]"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)


def test_both_protocols_see_one_log(broker: Broker) -> None:
    topic = broker.create_topic("orders", partitions=2)
    with semel.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"of Semel", partition=0)
    foreign = librdkafka(broker)
    foreign.produce(topic, b"of Kafka", partition=1)
    assert foreign.flush(30) == 0
    assert values(broker.records(topic, at_least=2)) == [b"of Semel", b"of Kafka"]
    assert values(broker.records(topic, partition=1)) == [b"of Kafka"]
    assert broker.topics() == ["orders"]


def test_nothing_is_left_behind() -> None:
    # In a process of its own: clients of other tests open and close files here while this test looks.
    subprocess.run([sys.executable, "-P", leaves_nothing_behind.__file__], check=True, timeout=120)


def test_a_broker_that_does_not_run_says_so() -> None:
    broker = Broker()
    for call in (broker.stop, broker.kill, broker.topics, broker.fail_disk):
        with pytest.raises(semel.UsageError, match="does not run: start"):
            call()
    with pytest.raises(semel.UsageError, match="no address before it is started"):
        _ = broker.bootstrap
    broker.start()
    with pytest.raises(semel.UsageError, match="runs already"):
        broker.start()
    broker.close()
    broker.close()
    with pytest.raises(semel.UsageError, match="was closed"):
        broker.start()


@pytest.mark.parametrize("method", ["kill", "restart"])
def test_how_a_broker_is_killed_is_one_of_the_three(broker: Broker, method: str) -> None:
    """Any other value was taken for LOST."""
    with pytest.raises(semel.UsageError, match=r"Unsynced\.LOST, Unsynced\.KEPT or Unsynced\.TORN, not 'bogus'"):
        getattr(broker, method)("bogus")
    assert broker.is_running


@pytest.mark.parametrize("seconds", ["x", None, True, float("nan"), -1, 1e12])
def test_time_moves_by_seconds_alone(broker: Broker, seconds: Any) -> None:
    with pytest.raises(semel.UsageError, match="by seconds"):
        broker.advance(seconds)


def test_settings_are_the_nodes_and_wrong_ones_are_refused() -> None:
    with Broker(num_partitions=3, auto_create_topics_enable=False) as broker:
        with semel.Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
            assert len(admin.topic("t").partitions) == 3
        with semel.Producer(broker.bootstrap) as producer, pytest.raises(semel.FatalError):
            producer.send("missing", b"").result(30)
    with pytest.raises(ConfigError, match=r"Broker\(num_partition=\.\.\.\): there is no setting"):
        Broker(num_partition=3)
    with pytest.raises(ConfigError, match="out of range"):
        Broker(num_partitions=0)
    with pytest.raises(semel.UsageError, match="keeps everything in memory"):
        Broker(data_dir="/elsewhere")


def test_a_topic_that_there_is_not_is_named(broker: Broker) -> None:
    with pytest.raises(semel.SemelError, match="has no missing") as refusal:
        broker.records("missing")
    assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = broker.create_topic()
    with pytest.raises(semel.SemelError, match=f"{topic}-7"):
        broker.records(topic, partition=7)
    with pytest.raises(semel.SemelError, match="exists"):
        broker.create_topic(topic)
    broker.delete_topic(topic)
    assert broker.topics() == []
    with pytest.raises(semel.SemelError):
        broker.delete_topic(topic)


def test_records_that_do_not_come_are_waited_for_no_longer_than_said(broker: Broker) -> None:
    topic = broker.create_topic()
    send(broker, topic, b"1")
    with pytest.raises(TimeoutError, match="has 1 read_committed records"):
        broker.records(topic, at_least=2, timeout_s=0.05)


def test_a_reset_broker_is_empty_at_the_same_address(broker: Broker) -> None:
    commit(broker, "x", broker.create_topic("t"), b"1")
    broker.drop_commit_answer()
    before = broker.bootstrap, broker.kafka
    broker.reset()
    assert (broker.bootstrap, broker.kafka) == before
    assert broker.topics() == []
    with pytest.raises(semel.SemelError, match="x"):
        broker.fence_producer("x")
    broker.create_topic("t")
    commit(broker, "x", "t", b"2")
    assert values(broker.records("t", at_least=1)) == [b"2"]


def test_stopped_broker_has_its_data_when_it_starts_again(broker: Broker) -> None:
    topic = broker.create_topic()
    send(broker, topic, b"1")
    broker.stop()
    assert not broker.is_running
    broker.start()
    assert values(broker.records(topic, at_least=1)) == [b"1"]


def test_coroutines_have_it_too() -> None:
    async def main() -> None:
        async with Broker() as broker:
            assert isinstance(broker, AioBroker)
            topic = await broker.create_topic(partitions=2)
            async with semel.aio.Producer(broker.bootstrap, transactional_id="x") as producer:
                with broker.sync.drop_commit_answer("x") as dropped:
                    async with producer.transaction() as txn:
                        await txn.send(topic, b"1")
                assert dropped.count == 1
            assert values(await broker.records(topic, at_least=1)) == [b"1"]
            await broker.restart()
            await broker.disconnect()
            await broker.advance(1)
            assert values(await broker.records(topic, at_least=1)) == [b"1"]
            await broker.fence_producer("x")
            assert await broker.committed_offsets("nobody") == {}
            await broker.delete_topic(topic)
            await broker.reset()
            assert broker.sync.topics() == []

    asyncio.run(main())


def test_calls_from_the_brokers_own_loop_are_refused(broker: Broker) -> None:
    told: list[Exception] = []

    async def inside(_: object) -> None:
        try:
            broker.topics()
        except Exception as error:
            told.append(error)

    broker._run(inside)
    assert "its own event loop" in str(told)


@pytest.mark.parametrize("way", [["mode=memory&cache=shared"], ["vfs=of-the-future", "vfs=memdb"]])
def test_older_sqlites_share_databases_in_memory_in_another_way(
    way: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.sdk.testing.memory_data.MEMORY_DATABASES", way)
    with Broker() as broker:
        topic = broker.create_topic(partitions=2)
        commit(broker, "x", topic, b"1")
        broker.restart()
        assert broker.topics() == [topic]
        assert values(broker.records(topic, at_least=1)) == [b"1"]


def test_without_databases_in_memory_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.sdk.testing.memory_data.MEMORY_DATABASES", ["vfs=of-the-future"])
    with pytest.raises(semel.FatalError, match="no databases in memory"):
        Broker().start()


def test_asyncio_clients_of_kafka_find_it() -> None:
    async def main() -> None:
        async with Broker() as broker:
            topic = await broker.create_topic()
            writer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.kafka, transactional_id="x")
            async with writer as producer, producer.transaction():
                await producer.send(topic, b"1")
            consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=broker.kafka, auto_offset_reset="earliest")
            async with consumer:
                assert (await consumer.getone()).value == b"1"
            assert values(await broker.records(topic, at_least=1)) == [b"1"]

    asyncio.run(main())


# --- Transactions -----------------------------------------------------------------------------------------------------


def test_uncommitted_records_are_seen_by_those_alone_who_ask_for_them(broker: Broker) -> None:
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send(topic, b"committed")
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.flush()
        assert values(broker.records(topic, at_least=1)) == [b"committed"]
        assert values(broker.records(topic, uncommitted=True)) == [b"aborted", b"committed", b"open"]
        producer.abort_transaction()


def test_T7_a_commit_whose_answer_is_lost_took_effect_and_the_client_learns_of_it(broker: Broker) -> None:
    topic = broker.create_topic()
    with broker.drop_commit_answer("another") as another, broker.drop_commit_answer("x", times=2) as dropped:
        commit(broker, "x", topic, b"1")
        assert (dropped.count, another.count, dropped.is_planted) == (2, 0, False)
    assert values(broker.records(topic, at_least=1)) == [b"1"]


def test_T7_librdkafka_asks_again_for_a_commit_whose_answer_is_lost(broker: Broker) -> None:
    topic = broker.create_topic()
    producer = librdkafka(broker, transactional_id="x")
    producer.init_transactions(30)
    with broker.drop_commit_answer("x") as dropped:
        producer.begin_transaction()
        producer.produce(topic, b"1")
        producer.commit_transaction(30)
    assert dropped.count == 1
    assert values(broker.records(topic, at_least=1)) == [b"1"]


@pytest.mark.parametrize("client", ["semel", "librdkafka"])
def test_a_commit_whose_request_is_lost_is_sent_again(broker: Broker, client: str) -> None:
    topic = broker.create_topic()
    with broker.drop_commit_request("x") as dropped:
        if client == "semel":
            with semel.Producer(broker.bootstrap, transactional_id="x") as ours, ours.transaction() as txn:
                txn.send(topic, b"1")
        else:
            producer = librdkafka(broker, transactional_id="x")
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce(topic, b"1")
            producer.commit_transaction(30)
    assert dropped.count == 1
    assert values(broker.records(topic, at_least=1)) == [b"1"]


def test_E5_a_commit_whose_answers_are_all_lost_counts_and_can_be_asked_about(broker: Broker) -> None:
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer:
        producer.begin_transaction()
        producer.send(topic, b"1")
        with broker.drop_commit_answer("x", times=1_000_000):
            with impatient(producer, "EndTransaction"), pytest.raises(semel.RetriableError):
                producer.commit_transaction(token="monday")
            assert values(broker.records(topic, at_least=1)) == [b"1"]
        decision = producer.last_commit()
        assert decision is not None
        assert decision.token == "monday"
        assert producer.commit_transaction()


def test_a_lost_request_to_commit_decides_nothing(broker: Broker) -> None:
    topic = broker.create_topic()
    fault = broker.drop_commit_request("x", times=1_000_000)
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer:
        producer.begin_transaction()
        producer.send(topic, b"1")
        with impatient(producer, "EndTransaction"), pytest.raises(semel.RetriableError):
            producer.commit_transaction()
        fault.wait()
        assert broker.records(topic) == []
        fault.remove()
        assert producer.commit_transaction()
    assert values(broker.records(topic, at_least=1)) == [b"1"]


def test_T12_the_answer_to_a_shared_commit_can_be_lost(broker: Broker) -> None:
    topic = broker.create_topic()
    with semel.SharedTransaction.open(broker.bootstrap, "daily", token="monday") as shared:
        with shared.join() as writer:
            writer.send(topic, b"1")
            member = writer.finish()
        with broker.drop_commit_answer("daily") as dropped:
            assert not shared.commit([member]).already_committed
        assert dropped.count == 1
    assert values(broker.records(topic, at_least=1)) == [b"1"]


@pytest.mark.parametrize("client", ["semel", "librdkafka"])
def test_T5_fenced_producer_is_told_and_what_it_had_open_is_aborted(broker: Broker, client: str) -> None:
    topic = broker.create_topic()
    if client == "semel":
        ours = semel.Producer(broker.bootstrap, transactional_id="x")
        ours.begin_transaction()
        ours.send(topic, b"zombie").result(30)
        broker.fence_producer("x")
        with pytest.raises(semel.FencedError):
            ours.commit_transaction()
        ours.close()
    else:
        producer = librdkafka(broker, transactional_id="x")
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"zombie")
        producer.flush(30)
        broker.fence_producer("x")
        with pytest.raises(confluent_kafka.KafkaException) as refusal:
            producer.commit_transaction(30)
        assert refusal.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert values(broker.records(topic, uncommitted=True)) == [b"zombie"]
    assert broker.records(topic) == []


def test_fencing_whom_nobody_knows_is_refused(broker: Broker) -> None:
    with pytest.raises(semel.SemelError) as refusal:
        broker.fence_producer("nobody")
    assert refusal.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("client", ["semel", "librdkafka"])
def test_P1_batches_whose_answers_are_lost_are_appended_once(broker: Broker, client: str) -> None:
    topic = broker.create_topic()
    with broker.drop_produce_answer(topic, times=2) as dropped:
        if client == "semel":
            send(broker, topic, b"1")
        else:
            producer = librdkafka(broker, enable_idempotence=True)
            producer.produce(topic, b"1")
            assert producer.flush(30) == 0
        assert dropped.count == 2
    assert values(broker.records(topic)) == [b"1"]


# --- Time -------------------------------------------------------------------------------------------------------------


def test_T9_a_transaction_times_out_when_the_test_says(broker: Broker) -> None:
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap, transactional_id="x", transaction_timeout_ms=600_000) as producer:
        producer.begin_transaction()
        producer.send(topic, b"late").result(30)
        broker.advance(599)
        send(broker, topic, b"after it")
        assert broker.records(topic) == []
        broker.advance(2)
        assert values(broker.records(topic)) == [b"after it"]
        with pytest.raises(semel.AbortTransactionError, match="longer than its timeout"):
            producer.commit_transaction()


def test_retention_deletes_when_the_test_says(broker: Broker) -> None:
    topic = broker.create_topic(configs={"retention.ms": "3600000"})
    send(broker, topic, b"old")
    broker.advance(3_000)
    assert values(broker.records(topic)) == [b"old"]
    broker.advance(1_000)
    assert broker.records(topic) == []


def test_O3_a_groups_offsets_expire_when_the_test_says(broker: Broker) -> None:
    topic = broker.create_topic()
    send(broker, topic, b"1")
    with semel.Consumer(broker.bootstrap, group="g", topics=[topic]) as consumer:
        assert len(next(consumer.batches())) == 1
        consumer.commit()
    assert broker.committed_offsets("g") == {semel.TopicPartition(topic, 0): 1}
    broker.advance(6 * 86_400)
    assert broker.committed_offsets("g") == {semel.TopicPartition(topic, 0): 1}
    broker.advance(2 * 86_400)
    assert broker.committed_offsets("g") == {}


def test_frozen_clock_stands_still_but_for_the_test() -> None:
    with Broker(frozen_clock=True) as broker:
        topic = broker.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
        begin = broker.now_ms
        send(broker, topic, b"1")
        broker.advance(0.25)
        send(broker, topic, b"2")
        broker.restart()
        assert [record.timestamp_ms - begin for record in broker.records(topic)] == [0, 250]
        with pytest.raises(semel.UsageError, match="forward"):
            broker.advance(-1)


# --- Partitions, connections, kills, disks ----------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["1", "all"])
def test_who_produces_to_a_paused_partition_waits(broker: Broker, acks: str) -> None:
    topic = broker.create_topic(partitions=2)
    told: list[object] = []
    producer = librdkafka(broker, acks=acks)
    with broker.pause_partition(topic, 0):
        producer.produce(topic, b"0", partition=0, on_delivery=lambda error, _: told.append(error))
        producer.produce(topic, b"1", partition=1)
        assert values(broker.records(topic, at_least=1)) == [b"1"]
        producer.poll(0.05)
        assert told == []
    assert producer.flush(30) == 0
    assert told == [None]
    assert values(broker.records(topic)) == [b"0", b"1"]


@pytest.mark.parametrize("client", ["semel", "librdkafka"])
def test_who_reads_a_paused_partition_gets_nothing_until_it_goes_on(broker: Broker, client: str) -> None:
    topic = broker.create_topic()
    send(broker, topic, b"1")
    if client == "semel":
        with semel.Consumer(broker.bootstrap) as ours:
            ours.assign([semel.TopicPartition(topic, 0)])
            with broker.pause_partition(topic):
                assert not ours.poll(0.1)
            assert values(list(ours.poll(30))) == [b"1"]
        return
    options = {"bootstrap.servers": broker.kafka, "group.id": "g", "auto.offset.reset": "earliest"}
    with closing(confluent_kafka.Consumer(options)) as foreign:
        foreign.assign([confluent_kafka.TopicPartition(topic, 0)])
        with broker.pause_partition(topic):
            assert foreign.poll(0.5) is None
        message = foreign.poll(30)
        assert message is not None
        assert message.value() == b"1"


def test_L1_a_committed_transaction_shows_when_its_paused_partition_goes_on(broker: Broker) -> None:
    """Committed is what is decided: the answer does not wait for markers, readers do."""
    slow, quick = broker.create_topic(), broker.create_topic()
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer:
        producer.begin_transaction()
        producer.send(slow, b"1").result(30)
        producer.send(quick, b"2").result(30)
        with broker.pause_partition(slow):
            producer.commit_transaction()
            assert values(broker.records(quick, at_least=1)) == [b"2"]
            assert broker.records(slow) == []
        assert values(broker.records(slow, at_least=1)) == [b"1"]


@pytest.mark.parametrize("client", ["semel", "librdkafka"])
def test_clients_outlive_refused_connections(broker: Broker, client: str) -> None:
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap) as ours:
        foreign = librdkafka(broker)
        ours.send(topic, b"before").result(30)
        foreign.produce(topic, b"before")
        assert foreign.flush(30) == 0
        with broker.refuse_connections():
            if client == "semel":
                delivery = ours.send(topic, b"after")
                assert not delivery.done()
            else:
                foreign.produce(topic, b"after")
                assert foreign.flush(0.05) == 1
            assert values(broker.records(topic)) == [b"before", b"before"]
        if client == "semel":
            delivery.result(30)
        else:
            assert foreign.flush(30) == 0
    assert values(broker.records(topic, at_least=3))[2] == b"after"


def test_refused_means_refused_on_both_listeners(broker: Broker) -> None:
    with broker.refuse_connections():
        for address in (broker.bootstrap, broker.kafka):
            host, _, port = address.rpartition(":")

            async def connect(host: str = host, port: int = int(port)) -> None:
                await asyncio.open_connection(host, port)

            with pytest.raises(ConnectionRefusedError):
                asyncio.run(connect())


def test_disconnected_clients_come_back(broker: Broker) -> None:
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer:
        for number in range(3):
            with producer.transaction() as txn:
                txn.send(topic, b"%d" % number).result(30)
                broker.disconnect()
    assert values(broker.records(topic, at_least=3)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("unsynced", list(Unsynced))
@pytest.mark.parametrize("client", ["semel", "librdkafka"])
def test_D1_what_was_acknowledged_survives_a_kill_and_clients_go_on(
    broker: Broker, client: str, unsynced: Unsynced
) -> None:
    topic = broker.create_topic()
    if client == "semel":
        with semel.Producer(broker.bootstrap, transactional_id="x") as ours:
            for number in range(3):
                with ours.transaction() as txn:
                    txn.send(topic, b"%d" % number)
                broker.restart(unsynced)
    else:
        foreign = librdkafka(broker, acks="all")
        for number in range(3):
            foreign.produce(topic, b"%d" % number)
            assert foreign.flush(30) == 0
            if number < 2:
                broker.restart(unsynced)
    assert values(broker.records(topic, at_least=3)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(("unsynced", "left"), [(Unsynced.LOST, 0), (Unsynced.KEPT, 1)])
def test_D1_a_kill_takes_what_was_not_synced_and_a_killed_process_keeps_it(unsynced: Unsynced, left: int) -> None:
    """With durability "os" an acknowledgement promises to survive a killed process, and no power cut."""
    with Broker(durability="os") as broker:
        topic = broker.create_topic()
        send(broker, topic, b"1")
        assert len(broker.records(topic)) == 1
        broker.restart(unsynced)
        assert len(broker.records(topic)) == left


def test_an_open_transaction_outlives_a_kill(broker: Broker) -> None:
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer, producer.transaction() as txn:
        txn.send(topic, b"1").result(30)
        broker.restart()
        assert broker.records(topic) == []
        txn.send(topic, b"2")
    assert values(broker.records(topic, at_least=2)) == [b"1", b"2"]


def test_planned_losses_outlive_a_kill_and_broken_networks_do_not(broker: Broker) -> None:
    topic = broker.create_topic()
    dropped = broker.drop_commit_answer("x")
    ending = [broker.pause_partition(topic), broker.refuse_connections(), broker.limit_disk(0), broker.fail_disk()]
    broker.restart()
    assert dropped.is_planted
    assert [fault.is_planted for fault in ending] == [False] * len(ending)
    send(broker, topic, b"1")
    commit(broker, "x", topic, b"2")
    assert dropped.count == 1
    assert values(broker.records(topic, at_least=2)) == [b"1", b"2"]


def test_cleared_faults_do_not_happen(broker: Broker) -> None:
    topic = broker.create_topic()
    planted = [
        broker.drop_commit_answer(times=1_000_000),
        broker.drop_commit_request(times=1_000_000),
        broker.drop_produce_answer(times=1_000_000),
        broker.pause_partition(topic),
        broker.limit_disk(0),
        broker.fail_disk(),
        broker.refuse_connections(),
    ]
    broker.clear_faults()
    commit(broker, "x", topic, b"1")
    assert values(broker.records(topic, at_least=1)) == [b"1"]
    assert [(fault.is_planted, fault.count) for fault in planted] == [(False, 0)] * len(planted)


def test_full_disk_refuses_producers_until_there_is_room(broker: Broker) -> None:
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap) as producer:
        with broker.limit_disk(0):
            delivery = producer.send(topic, b"1" * 10_000)
            with pytest.raises(semel.RetriableError, match="no acknowledgement"):
                delivery.result(0.2)
            assert broker.records(topic) == []
        delivery.result(30)
    assert len(broker.records(topic)) == 1


def test_D1_failed_disk_acknowledges_nothing_until_the_broker_is_restarted(broker: Broker) -> None:
    topic = broker.create_topic()
    assert broker.failure is None
    with semel.Producer(broker.bootstrap) as producer:
        broker.fail_disk()
        delivery = producer.send(topic, b"1")
        with pytest.raises(semel.RetriableError, match="no acknowledgement"):
            delivery.result(0.2)
        failure = broker.failure
        assert failure is not None
        assert failure.code is ErrorCode.KAFKA_STORAGE_ERROR
        broker.restart()
        delivery.result(30)
    assert values(broker.records(topic)) == [b"1"]


def test_faults_say_what_they_are_and_wait_to_happen(broker: Broker) -> None:
    topic = broker.create_topic()
    fault = broker.drop_produce_answer(topic)
    assert repr(fault) == f"<Fault the answer to produce of {topic} is lost: planted>"
    with pytest.raises(TimeoutError, match="happened 0 times"):
        fault.wait(timeout_s=0.01)
    send(broker, topic, b"1")
    fault.wait()
    fault.remove()
    assert repr(fault) == f"<Fault the answer to produce of {topic} is lost: over, happened 1 times>"
    with pytest.raises(semel.UsageError, match="times=0"):
        broker.drop_produce_answer(times=0)
    with pytest.raises(semel.UsageError, match="0 free bytes"):
        broker.limit_disk(-1)


def test_a_connection_that_was_half_accepted_when_the_broker_was_killed_stayed_open(broker: Broker) -> None:
    """A kill found it between the accept and the protocol's first call, and its socket was left to the collector."""
    host, _, port = broker.kafka.rpartition(":")
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(socket.create_connection((host, int(port))))
            broker.kill()
        gc.collect()  # a socket that was left open is an error of this test, as any warning is
        broker.start()
