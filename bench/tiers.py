"""A topic whose segments go to a remote storage, beside one that stays on the disk: producing, and reading all of it.

    python -P bench/tiers.py                  about three minutes
    python -P bench/tiers.py --quick          once and small: does it still run?

The store is a directory, so that nothing but the node's own work is measured: a real one adds its latency to what is
read first, and its bandwidth is shared with producers. The client is librdkafka. Old records of the tiered topic are
read by a node that was started again, so that nothing is in its memory, and then once more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import Figure, NodeProcess, Sample, data_folder, machine, measured, print_table, start_node, write_json

RECORD_BYTES: Final = 1_000
SEGMENT_BYTES: Final = 16 << 20
WITHIN_S: Final = 300.0
LOCAL, TIERED = "local", "tiered"


def settings_of(store: Path) -> dict[str, object]:
    return {
        "remote.storage.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": 200,
        "log.retention.check.interval.ms": 500,
        "log.flush.interval.ms": 1_000,
        "log.segment.delete.delay.ms": 1_000,
        "durability": "os",
        "offsets.topic.num.partitions": 1,
    }


def create(node: NodeProcess, topic: str) -> None:
    configs = {"segment.bytes": str(SEGMENT_BYTES)}
    if topic.startswith(TIERED):
        configs |= {"remote.storage.enable": "true", "local.retention.bytes": str(SEGMENT_BYTES)}
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1, config=configs)]).values():
        made.result()


def produce(node: NodeProcess, topic: str, megabytes: int) -> float:
    producer = Producer(
        {"bootstrap.servers": node.bootstrap, "linger.ms": 5, "queue.buffering.max.kbytes": 65_536, "acks": "all"}
    )
    value = bytes(RECORD_BYTES)
    count = megabytes * 1_000_000 // RECORD_BYTES
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(WITHIN_S) == 0
    return count * RECORD_BYTES / 1e6


def consume(node: NodeProcess, topic: str, megabytes: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4 << 20,
            "queued.min.messages": 10_000_000,  # else it pauses as soon as it is ahead of this program
            "queued.max.messages.kbytes": 1 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    left = megabytes * 1_000_000 // RECORD_BYTES
    deadline = time.monotonic() + WITHIN_S
    while left > 0 and time.monotonic() < deadline:
        left -= len(consumer.consume(min(10_000, left), 1.0))
    consumer.close()
    assert left == 0, f"{left} records of {topic} were not read"
    return float(megabytes)


def wait_until_only_the_last_segments_are_local(folder: str, topic: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while len(list(Path(folder).glob(f"{topic}-0/*.log"))) > 3:
        assert time.monotonic() < deadline, f"{topic} stays on the disk"
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    megabytes, rounds = (64, 1) if arguments.quick else (arguments.megabytes, arguments.rounds)
    harness.touch_memory()
    taken: dict[str, list[Sample]] = {}

    def take(name: str, sample: Sample) -> None:
        taken.setdefault(name, []).append(sample)

    with data_folder() as folder:
        settings = settings_of(Path(folder).with_name("objects"))
        node = start_node(folder, settings)
        for number in range(rounds):
            for kind in (LOCAL, TIERED):
                topic = f"{kind}{number}"
                create(node, topic)
                take(f"produce to a {kind} topic", measured(node, partial(produce, node, topic, megabytes)))
                begun = node.cpu_s(), time.perf_counter()
                if kind == TIERED:
                    wait_until_only_the_last_segments_are_local(folder, topic)
                    cpu_s, seconds = node.cpu_s() - begun[0], time.perf_counter() - begun[1]
                    take("until it has left the disk, after that", Sample(megabytes, seconds, cpu_s))
            node.stop()
            node = start_node(folder, settings)
            consume(node, f"{LOCAL}{number}", 1)  # what a node does for its first reader is none of theirs
            for kind, times in ((LOCAL, ("", ", again")), (TIERED, (", from the store", ", from memory"))):
                for which in times:
                    name = f"read a {kind} topic{which}"
                    take(name, measured(node, partial(consume, node, f"{kind}{number}", megabytes)))
        node.stop()
    figures = []
    for name, samples in taken.items():
        rates = [sample.count / sample.seconds for sample in samples]
        cost = statistics.median(sample.cpu_s / sample.count * 1_000 for sample in samples)
        figures.append(Figure("tiers", name, statistics.median(rates), "MB/s", rates, cost=f"{cost:.2f} s a GB"))
    print(machine())
    print_table(figures)
    print(write_json("tiers", figures))


if __name__ == "__main__":
    main()
