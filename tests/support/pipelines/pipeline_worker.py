"""One instance of the pipeline under test, a process of its own, which writes down all that it tried and was told.

Every value names the source offset it was made from and the attempt that made it, so it is unique, and a source offset
that was transformed twice shows as two values.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from history import HistoryWriter, Outcome, Send

import semel
from semel.protocol.errors import AbortTransactionError, FencedError, SemelError


class ChangeOfMindError(Exception):
    """The application changes its mind."""


def main() -> int:
    arguments = parse()
    name = f"w{arguments.instance}.{os.getpid()}"
    draw = random.Random(f"{arguments.seed}/{name}")
    writer = HistoryWriter(Path(arguments.history) / f"{name}.jsonl", name)
    producer = semel.Producer(
        arguments.bootstrap,
        transactional_id=f"{arguments.group}-{arguments.instance}",
        transaction_timeout_ms=5_000,
        connect_timeout_ms=60_000,
    )
    consumer = semel.Consumer(
        arguments.bootstrap,
        group=arguments.group,
        topics=[arguments.source],
        instance_id=f"i{arguments.instance}" if arguments.static else None,
        session_timeout_ms=6_000,
        max_poll_interval_ms=10_000,
        connect_timeout_ms=60_000,
    )
    print("started", flush=True)
    try:
        for attempt, batch in enumerate(consumer.batches(max_records=arguments.batch)):
            transform(arguments, name, attempt, batch, producer, writer, draw)
    except FencedError as error:
        print(f"fenced: {error}", flush=True)
        return 4
    except SemelError as error:
        print(f"ended: {error!r}", flush=True)
        return 5
    return 0


def transform(
    arguments: argparse.Namespace,
    name: str,
    attempt: int,
    batch: semel.Batch,
    producer: semel.Producer,
    writer: HistoryWriter,
    draw: random.Random,
) -> None:
    sends = sends_of(arguments, name, attempt, batch)
    number = writer.intend(sends)
    try:
        with producer.transaction(commits=batch) as txn:
            for send in sends:
                txn.send(send.topic, send.value.encode(), partition=send.partition)
            if draw.random() < arguments.abort_rate:
                producer.flush()
                raise ChangeOfMindError
    except (ChangeOfMindError, AbortTransactionError):
        writer.settle(number, Outcome.ABORTED)
    else:
        writer.settle(number, Outcome.COMMITTED)


class SourceRecord(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


def sends_of(arguments: argparse.Namespace, name: str, attempt: int, records: Iterable[SourceRecord]) -> list[Send]:
    """What one attempt makes of records of the source."""
    return [
        Send(
            arguments.target,
            (record.offset + record.partition) % arguments.partitions,
            f"{record.partition}@{record.offset}/{name}/{attempt}",
            (record.topic, record.partition, record.offset),
        )
        for record in records
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--instance", type=int, required=True)
    parser.add_argument("--group", default="pipeline")
    parser.add_argument("--source", default="source")
    parser.add_argument("--target", default="target")
    parser.add_argument("--partitions", type=int, default=3, help="of the target")
    parser.add_argument("--history", required=True, help="the directory to write to")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--abort-rate", type=float, default=0.1)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--static", action="store_true", help="be a static member")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
