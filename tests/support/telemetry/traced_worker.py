"""A process of a traced pipeline, which exports its spans: `traced_worker.py BOOTSTRAP produce|transform|consume ...`.

produce ID TARGET, transform ID SOURCE TARGET, consume ID SOURCE: one record each. ID names the producer and the group.
A transform says "sent" when all is sent, and continues to the commit when a line comes in.
"""

from __future__ import annotations

import sys

import semel
from semel.sdk.telemetry import setup as telemetry

WAIT_S = 60
CONNECT_MS = 60_000


def produce(bootstrap: str, name: str, target: str) -> None:
    producer = semel.Producer(bootstrap, transactional_id=name, client_id=name, connect_timeout_ms=CONNECT_MS)
    with producer, producer.transaction() as txn:
        txn.send(target, b"a record")


def transform(bootstrap: str, name: str, source: str, target: str) -> None:
    producer = semel.Producer(bootstrap, transactional_id=name, client_id=name, connect_timeout_ms=CONNECT_MS)
    with producer, consumer_of(bootstrap, name, source) as consumer:
        batch = next(consumer.batches(timeout_s=WAIT_S))
        with producer.transaction(commits=batch) as txn:
            for record in batch:
                with batch.processing(record):
                    txn.send(target, record.value)
            txn.send_offsets(batch.next_offsets, batch.group_metadata)
            producer.flush()
            print("sent", flush=True)
            sys.stdin.readline()


def consume(bootstrap: str, name: str, source: str) -> None:
    with consumer_of(bootstrap, name, source) as consumer:
        batch = next(consumer.batches(timeout_s=WAIT_S))
        with batch.processing(batch[0]):
            consumer.commit()


def consumer_of(bootstrap: str, name: str, source: str) -> semel.Consumer:
    return semel.Consumer(
        bootstrap,
        group=name,
        topics=[source],
        client_id=name,
        session_timeout_ms=2_000,
        connect_timeout_ms=CONNECT_MS,
    )


if __name__ == "__main__":
    assert telemetry.start_from_environment()
    {"produce": produce, "transform": transform, "consume": consume}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
    telemetry.flush()
    print("done", flush=True)
