"""A program with a log of its own (`semel.open`), which is killed: `embedded_worker.py DIR`.

It writes transactions of a line of numbers, each with its number as its token and its sequence, into both partitions of
`numbers`. Each begins behind the last that is decided, as the log itself says. Standard output has a line for each that
was acknowledged. A group reads them and writes their sums to `sums`, offsets with them.
"""

from __future__ import annotations

import sys
import threading

import semel

RECORDS = 3
"""How many records of a transaction each partition gets."""
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "disk.min.free.bytes": 0,
    "journal.file.bytes": 1 << 20,
    "journal.flush.bytes": 1 << 20,
    "log.segment.bytes": 100_000,
}
"""Small files, so that kills meet rolls, flushes and cuts of the journal."""


def open_log(folder: str) -> semel.EmbeddedLog:
    return semel.open(folder, settings=SETTINGS)


def make_topics(log: semel.EmbeddedLog) -> None:
    there = {topic.name for topic in log.topics()}
    for name in {"numbers", "sums"} - there:
        log.create_topic(name, partitions=2)


def write(log: semel.EmbeddedLog) -> None:
    with log.producer(transactional_id="writer") as producer:
        producer.init_transactions()
        last = producer.last_commit()
        number = 0 if last is None else last.sequence + 1
        while True:
            with producer.transaction(token=f"number {number}", sequence=number) as transaction:
                for record in range(RECORDS):
                    for partition in (0, 1):
                        producer.send("numbers", f"{number}.{record}", partition=partition)
            assert not transaction.already_committed, "it began behind the last commit"
            print(number, flush=True)
            number += 1


def add_up(log: semel.EmbeddedLog) -> None:
    with (
        log.producer(transactional_id="adder") as producer,
        log.consumer(group="adders", topics=["numbers"]) as consumer,
    ):
        for batch in consumer.batches():
            with producer.transaction(commits=batch):
                for record in batch:
                    producer.send("sums", f"{record.partition}:{record.value.decode()}", partition=record.partition)


def main() -> None:
    with open_log(sys.argv[1]) as log:
        make_topics(log)
        threading.Thread(target=add_up, args=(log,), daemon=True).start()
        write(log)


if __name__ == "__main__":
    main()
