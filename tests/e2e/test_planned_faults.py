"""A pipeline under the test kit's faults, one after the other as a seed says: each value arrives exactly once (E1)."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import confluent_kafka
import pytest
from longer_runs import given

import semel
from semel.testing import Broker, Unsynced

SEED = int(given("SEMEL_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
FAULTS = int(given("SEMEL_CHAOS_FAULTS", "12"))
INSTANCES = 2
VALUES_A_FAULT = 20
WAIT_S = 60.0


def feed(broker: Broker, first: int) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.kafka,
            "enable.idempotence": True,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
        }
    )
    for value in range(first, first + VALUES_A_FAULT):
        producer.produce("in", b"%d" % value, partition=value % 3)
    assert producer.flush(WAIT_S) == 0


def pipeline(broker: Broker, number: int, stop: threading.Event, failures: list[BaseException]) -> None:
    """An instance, started again when it is fenced, as a supervisor does."""
    while not stop.is_set():
        try:
            with (
                semel.Producer(broker.bootstrap, transactional_id=f"instance-{number}") as producer,
                semel.Consumer(broker.bootstrap, group="pipeline", topics=["in"]) as consumer,
            ):
                while not stop.is_set():
                    batch = consumer.poll(0.1)
                    if batch:
                        with suppress(semel.AbortTransactionError), producer.transaction(commits=batch) as txn:
                            for record in batch:
                                txn.send("out", record.value)
        except (semel.FencedError, semel.AbortTransactionError, semel.RetriableError):
            continue
        except BaseException as error:
            failures.append(error)
            raise


def fence(broker: Broker, chance: random.Random) -> None:
    with suppress(semel.FatalError):  # nobody has used it yet
        broker.fence_producer(f"instance-{chance.randrange(INSTANCES)}")


FAULTS_BY_NAME: dict[str, Callable[[Broker, random.Random], object]] = {
    "power cut": lambda broker, _: broker.restart(Unsynced.LOST),
    "torn writes": lambda broker, _: broker.restart(Unsynced.TORN),
    "killed process": lambda broker, _: broker.restart(Unsynced.KEPT),
    "failed disk": lambda broker, _: broker.fail_disk(),
    "commit not answered": lambda broker, _: broker.drop_commit_answer(),
    "commit not asked for": lambda broker, _: broker.drop_commit_request(),
    "produce not answered": lambda broker, _: broker.drop_produce_answer(),
    "fenced": fence,
    "disconnected": lambda broker, _: broker.disconnect(),
    "paused": lambda broker, chance: broker.pause_partition("out", chance.randrange(3)),
    "refused": lambda broker, _: broker.refuse_connections(),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_E1_a_pipeline_under_planned_faults_transforms_each_value_once() -> None:
    chance = random.Random(SEED)
    plan = [chance.choice(sorted(FAULTS_BY_NAME)) for _ in range(FAULTS)]
    print(f"SEMEL_CHAOS_SEED={SEED}: {plan}")
    stop, failures = threading.Event(), list[BaseException]()
    with Broker(seed=SEED) as broker:
        for topic in ("in", "out"):
            broker.create_topic(topic, partitions=3)
        instances = [
            threading.Thread(target=pipeline, args=(broker, number, stop, failures)) for number in range(INSTANCES)
        ]
        for instance in instances:
            instance.start()
        try:
            for done, name in enumerate(plan):
                feeding = threading.Thread(target=feed, args=(broker, done * VALUES_A_FAULT))
                feeding.start()
                broker.records(
                    "out", at_least=done * VALUES_A_FAULT + chance.randrange(VALUES_A_FAULT // 2), timeout_s=WAIT_S
                )
                FAULTS_BY_NAME[name](broker, chance)
                threading.Event().wait(chance.uniform(0, 0.3))
                broker.clear_faults()
                if broker.failure is not None:
                    broker.restart()
                feeding.join(WAIT_S)
                broker.records("out", at_least=(done + 1) * VALUES_A_FAULT, timeout_s=WAIT_S)
        finally:
            stop.set()
            for instance in instances:
                instance.join(WAIT_S)
        found = Counter(record.value for record in broker.records("out"))
    assert failures == []
    assert found == Counter(b"%d" % value for value in range(FAULTS * VALUES_A_FAULT))
