"""`Consumer.run` in real processes: they and the node are killed, and each record takes effect once (E1)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import semel
from semel.cli.demo.processes import NodeProcess

PARTITIONS = 3
RECORDS = 900
KILLS = 6
WAIT_S = 120.0
WORKER = """
import sys, time
import semel

bootstrap, instance = sys.argv[1:]

def handler(order):
    time.sleep(0.002)
    if int(order.value) % 100 == 7:
        raise ValueError("never")
    return semel.ProducerRecord("enriched", order.value, key=order.key)

options = {"group": "enrich", "topics": ["orders"], "instance_id": instance, "session_timeout_ms": 6_000}
with semel.Consumer(bootstrap, **options) as consumer:
    consumer.run(handler, retries=1, retry_backoff_ms=20, dead_letter_topic="orders-dead", commit_interval_ms=100)
"""


def start(bootstrap: str, instance: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", "-c", WORKER, bootstrap, instance])


def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    tps = [semel.TopicPartition(topic, number) for number in range(PARTITIONS)]
    values: list[bytes] = []
    with semel.Consumer(bootstrap) as reader:
        reader.assign(tps)
        ends = reader.end_offsets(tps)
        while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
            values += [record.value for record in reader.poll(1.0) or ()]
    return values


@pytest.mark.slow
def test_E1_workers_of_run_and_the_node_are_killed_and_each_record_takes_effect_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    node = NodeProcess(tmp_path / "data")
    node.start()
    workers: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with semel.Admin(node.bootstrap) as admin:
            for topic in ("orders", "enriched", "orders-dead"):
                admin.create_topic(topic, partitions=PARTITIONS)
        with semel.Producer(node.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"%d" % number, key=b"%d" % number)
        workers = {name: start(node.bootstrap, name) for name in ("w0", "w1")}
        for kill in range(KILLS):
            reach(node.bootstrap, (kill + 1) * RECORDS // (KILLS + 2), workers)
            if kill % 3 == 2:
                node.kill()
                node.start()
            else:
                name = chance.choice(sorted(workers))
                workers[name].kill()
                workers[name].wait()
                workers[name] = start(node.bootstrap, name)
        reach(node.bootstrap, RECORDS, workers)
        for worker in workers.values():
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(WAIT_S) for worker in workers.values()] == [0, 0]
        good = Counter(committed_values(node.bootstrap, "enriched"))
        dead = Counter(committed_values(node.bootstrap, "orders-dead"))
        assert good == Counter(b"%d" % number for number in range(RECORDS) if number % 100 != 7)
        assert dead == Counter(b"%d" % number for number in range(RECORDS) if number % 100 == 7)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
        if node.is_running:
            node.stop()


def reach(bootstrap: str, count: int, workers: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Wait until the group has committed so many records. No worker may exit meanwhile."""
    deadline = time.monotonic() + WAIT_S
    done: int | str = 0
    while not isinstance(done, int) or done < count:
        ended = {name: worker.returncode for name, worker in workers.items() if worker.poll() is not None}
        assert not ended, f"workers have exited: {ended}; what they said is in the captured output"
        assert time.monotonic() < deadline, f"stands at {done} of {count}"
        time.sleep(0.05)
        with semel.Consumer(bootstrap, group="enrich", api_timeout_ms=10_000) as consumer:
            try:
                found = consumer.committed([semel.TopicPartition("orders", number) for number in range(PARTITIONS)])
            except semel.RetriableError as error:  # a killed worker's transaction holds the offsets
                done = str(error)
            else:
                done = sum(place.offset for place in found.values() if place is not None)
