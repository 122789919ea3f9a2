"""The pipeline's instance as `pipeline_worker.py`, written with confluent-kafka, the way its users write it."""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from history import HistoryWriter, Outcome
from pipeline_worker import parse, sends_of

PATIENCE_S = 60
HANGS_S = 30
"""librdkafka can wait for good for a group's coordinator that was away when it sent a transaction's offsets
(confluentinc/librdkafka#5456, #5511). Then this process ends, and its supervisor starts another.
"""

FAST = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}
"""So that a run's short time is not spent on waiting after each fault."""


class SourceRecord(NamedTuple):
    topic: str
    partition: int
    offset: int


class Source:
    """The group's member. What was taken before a rebalance is dropped: it may be another member's by now."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        options: dict[str, Any] = {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "max.poll.interval.ms": 10_000,
            "fetch.wait.max.ms": 100,
            **FAST,
        }
        if arguments.static:
            options["group.instance.id"] = f"i{arguments.instance}"
        self._batch = arguments.batch
        self._taken: list[SourceRecord] = []
        self.consumer = confluent_kafka.Consumer(options)
        self.consumer.subscribe([arguments.source], on_assign=self._drop, on_revoke=self._drop, on_lost=self._drop)

    def _drop(self, *_: object) -> None:
        self._taken = []

    def take(self) -> list[SourceRecord]:
        """Wait for some records, and take what is there, up to a batch."""
        self._taken = []
        while len(self._taken) < self._batch:
            message = self.consumer.poll(0.0 if self._taken else 1.0)
            if message is None:
                if self._taken:
                    break
                continue
            error = message.error()
            if error is None:
                self._taken.append(SourceRecord(message.topic(), message.partition(), message.offset()))
            elif error.fatal():
                raise confluent_kafka.KafkaException(error)
        return self._taken

    def rewind(self, records: list[SourceRecord]) -> None:
        """Go back to the first of these records, where they are still this member's."""
        places: dict[tuple[str, int], int] = {}
        for record in records:
            places.setdefault((record.topic, record.partition), record.offset)
        for (topic, partition), offset in places.items():
            with suppress(confluent_kafka.KafkaException):
                self.consumer.seek(confluent_kafka.TopicPartition(topic, partition, offset))


def main() -> int:
    arguments = parse()
    name = f"w{arguments.instance}.{os.getpid()}"
    draw = random.Random(f"{arguments.seed}/{name}")
    writer = HistoryWriter(Path(arguments.history) / f"{name}.jsonl", name)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "transactional.id": f"{arguments.group}-{arguments.instance}",
            "transaction.timeout.ms": 5_000,
            "linger.ms": 1,
            **FAST,
        }
    )
    retried(producer.init_transactions)
    source = Source(arguments)
    print("started", flush=True)
    attempt = 0
    try:
        while True:
            records = source.take()
            if records:
                attempt += 1
                faulthandler.dump_traceback_later(HANGS_S, exit=True)
                transform(arguments, name, attempt, records, source, producer, writer, draw)
                faulthandler.cancel_dump_traceback_later()
    except confluent_kafka.KafkaException as error:
        fenced = error.args[0].code() == confluent_kafka.KafkaError._FENCED
        print(f"{'fenced' if fenced else 'ended'}: {error!r}", flush=True)
        return 4 if fenced else 5


def transform(
    arguments: argparse.Namespace,
    name: str,
    attempt: int,
    records: list[SourceRecord],
    source: Source,
    producer: Any,
    writer: HistoryWriter,
    draw: random.Random,
) -> None:
    sends = sends_of(arguments, name, attempt, records)
    number = writer.intend(sends)
    places = {(record.topic, record.partition): record.offset + 1 for record in records}
    producer.begin_transaction()
    try:
        for send in sends:
            producer.produce(send.topic, send.value.encode(), partition=send.partition)
        if draw.random() < arguments.abort_rate:
            producer.flush(PATIENCE_S)
            abort(producer, writer, number, source, records)
            return
        offsets = [confluent_kafka.TopicPartition(topic, part, offset) for (topic, part), offset in places.items()]
        retried(lambda: producer.send_offsets_to_transaction(offsets, source.consumer.consumer_group_metadata()))
        retried(producer.commit_transaction)
    except confluent_kafka.KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        abort(producer, writer, number, source, records)
    else:
        writer.settle(number, Outcome.COMMITTED)


def abort(producer: Any, writer: HistoryWriter, number: int, source: Source, records: list[SourceRecord]) -> None:
    retried(producer.abort_transaction)
    writer.settle(number, Outcome.ABORTED)
    source.rewind(records)


def retried(call: Any) -> None:
    """Repeat what librdkafka says may be repeated: its own wait is over, its work continues."""
    while True:
        try:
            call()
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
