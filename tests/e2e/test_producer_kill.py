"""A node is killed under a producer: nothing that was acknowledged is lost, and nothing is there twice (P1, D1)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from committed_values import decided

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import AbortTransactionError

PARTITIONS = 3
KILLS = 4
WAIT_S = 90


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("orders", partitions=PARTITIONS)
    yield node
    if node.is_running:
        node.stop()


def read_everything(bootstrap: str) -> list[list[bytes | None]]:
    """Every committed value, by partition."""
    tps = [semel.TopicPartition("orders", number) for number in range(PARTITIONS)]
    values: list[list[bytes | None]] = [[] for _ in tps]
    decided(bootstrap, tps)
    with semel.Consumer(bootstrap) as reader:
        reader.assign(tps)
        ends = reader.end_offsets(tps)
        while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
            for record in reader.poll(1.0) or ():
                values[record.partition].append(record.value)
    return values


class Killer(threading.Thread):
    """Kills and restarts the node, each time after some more was acknowledged."""

    def __init__(self, node: NodeProcess, seed: int) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._random = random.Random(seed)
        self._progress = threading.Semaphore(0)
        self.finished = threading.Event()

    def tick(self, *_: object) -> None:
        self._progress.release()

    def run(self) -> None:
        for _ in range(KILLS):
            for _ in range(self._random.randrange(1, 40)):
                if not self._progress.acquire(timeout=WAIT_S):
                    return
            self._node.kill()
            self._node.start()
        self.finished.set()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_P1_D1_idempotent_records_survive_kills_once_and_in_order(node: NodeProcess, seed: int) -> None:
    killer = Killer(node, seed)
    killer.start()
    deliveries = []
    with semel.Producer(node.bootstrap, linger_ms=1, batch_size_bytes=2_000) as producer:
        while not killer.finished.is_set():
            number = len(deliveries)
            deliveries.append(
                producer.send("orders", b"%d" % number, partition=number % PARTITIONS, on_delivery=killer.tick)
            )
            if number % 200 == 199:
                deliveries[-1].result(WAIT_S)  # continues while the node is down, but not without end
        producer.flush(WAIT_S)
    assert all(delivery.exception(0) is None for delivery in deliveries)
    for partition, values in enumerate(read_everything(node.bootstrap)):
        assert values == [b"%d" % number for number in range(partition, len(deliveries), PARTITIONS)]


def test_E1_transactions_survive_kills_whole_or_not_at_all(node: NodeProcess) -> None:
    killer = Killer(node, 3)
    killer.start()
    committed = 0
    with semel.Producer(node.bootstrap, transactional_id="writer", linger_ms=0, max_block_ms=WAIT_S * 1000) as producer:
        while not killer.finished.is_set() or committed < 20:
            try:
                with producer.transaction() as txn:
                    for partition in range(PARTITIONS):
                        txn.send("orders", b"%d" % committed, partition=partition)
            except AbortTransactionError:
                continue
            committed += 1
            killer.tick()
    for values in read_everything(node.bootstrap):
        assert values == [b"%d" % number for number in range(committed)]
