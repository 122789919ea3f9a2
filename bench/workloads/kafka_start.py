"""Starts and memory beside Apache Kafka."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

import apache_kafka
import dataplane
import harness

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProduceResponse
from workloads.kafka_peers import KAFKA, OS, SEMEL, TIMEOUT_S, Peers, Row, Scale, new_topic


def start(peers: Peers, scale: Scale) -> list[Row]:
    """Process start to the first acknowledged record, on a folder with a topic; memory then; what a partition adds."""
    seconds: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    cpu: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    memory: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    partition: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    with ExitStack() as stack:
        starters = {KAFKA: KafkaStarter(stack), SEMEL: SemelStarter(stack)}
        for _ in range(max(1, scale.rounds // 2) + 1):
            for name, starter in starters.items():
                begin = time.perf_counter()
                peer = starter.start()
                wait_for_first_record(peer.address)
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(peer.cpu_s())
                memory[name].append(peer.memory_mb())
                peer.stop()
        for name, starter in starters.items():
            peer = starter.start()
            wait_for_first_record(peer.address)
            new_topic(peer, "few", 10)
            before = peer.memory_mb()
            new_topic(peer, "many", scale.idle_partitions)
            partition[name].append((peer.memory_mb() - before) / scale.idle_partitions * 1e3)
            peer.stop()
    for taken in (seconds, cpu, memory):
        for values in taken.values():
            del values[0]  # the first start reads its files from the disk
    costs = {name: f"{statistics.median(values):.2f} s" for name, values in cpu.items()}
    return [
        Row("start to the first acknowledged record", OS, "s", seconds, True, costs, "imports"),
        Row("resident memory after it", OS, "MB", memory, True, bound="modules"),
        Row(f"an idle partition, of {scale.idle_partitions}", OS, "KB", partition, True, bound="objects"),
        Row(
            "resident memory after this run's other workloads",
            OS,
            "MB",
            {name: [peer.memory_mb()] for name, peer in peers[OS].items()},
            True,
            bound="buffers of connections",
        ),
    ]


class KafkaStarter:
    def __init__(self, stack: ExitStack) -> None:
        self._folder = stack.enter_context(harness.data_folder())
        self._address = apache_kafka.prepare(self._folder)
        kafka = self.start()
        apache_kafka.wait_started(kafka)
        new_topic(kafka, "first")
        kafka.stop()

    def start(self) -> apache_kafka.KafkaProcess:
        return apache_kafka.start_prepared(self._folder, self._address)


class SemelStarter:
    def __init__(self, stack: ExitStack) -> None:
        self._folder = stack.enter_context(harness.data_folder())
        node = self.start()
        new_topic(node, "first")
        node.stop()

    def start(self) -> harness.NodeProcess:
        return harness.start_node(self._folder, {"durability": OS})


def wait_for_first_record(address: tuple[str, int]) -> None:
    """Try every few milliseconds until a record is acknowledged."""
    frame = dataplane.produce_frame("first", 0, dataplane.batch_of(100), -1)
    buffer = bytearray(1 << 16)
    deadline = time.perf_counter() + TIMEOUT_S
    while time.perf_counter() < deadline:
        try:
            with dataplane.connect(address) as sock:
                sock.settimeout(10)
                sock.sendall(frame)
                size = dataplane.read_frame(sock, buffer)
            if ProduceResponse.parse(memoryview(buffer)[:size], 9, 5).partitions[0].error is ErrorCode.NONE:
                return
        except OSError:
            pass
        time.sleep(0.005)
    raise TimeoutError(f"no record was acknowledged by {address}")
