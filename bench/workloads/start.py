"""How long a start takes, and what memory a node needs."""

from __future__ import annotations

import statistics
import time

import dataplane
from harness import (
    Figure,
    NodeProcess,
    data_folder,
    start_node,
)

import semel
from workloads.common import TOPIC, Scale, batch_of_records, new_topic


def start(scale: Scale) -> list[Figure]:
    """Process start to ready line: empty folder, many partitions after a clean stop, and after SIGKILL by log size."""
    figures = []

    def add(name: str, values: list[float], unit: str = "s", goal: str = "", cost: str = "", bound: str = "") -> None:
        figures.append(Figure("start", name, statistics.median(values), unit, values, goal, cost, bound))

    begins, costs, stops = [], [], []
    for _ in range(scale.rounds):
        with data_folder() as folder:
            node = start_node(folder)
            begins.append(node.start_s)
            costs.append(node.start_cpu_s)
            stops.append(node.stop())
    imports = "imports: a third SQLAlchemy, the rest gRPC and our own modules"
    add("start, empty folder", begins, "s", "0.5 s (Kafka 6.7 s)", f"{statistics.median(costs):.2f} s", imports)
    add("stop, empty", stops)
    with data_folder() as folder:
        count = scale.partitions
        node = start_node(folder)
        begin = time.perf_counter()
        new_topic(node, "many", count)
        created = time.perf_counter() - begin
        add(f"create a topic of {count} partitions", [created], "s", "1 s for 1,000", "", "files, folders, syncs")
        add(f"first stop with {count} new partitions", [node.stop()], "s", "", "", "syncs")
        begins, costs, stops = [], [], []
        for _ in range(scale.rounds):
            node = start_node(folder)
            begins.append(node.start_s)
            costs.append(node.start_cpu_s)
            stops.append(node.stop())
        add(f"start, {count} idle partitions, clean", begins, "s", "", f"{statistics.median(costs):.2f} s", imports)
        add(f"stop, {count} idle partitions", stops)
    for megabytes in scale.log_megabytes:
        for what, size in (("16 KiB batches of 100 B records", 16 << 10), ("batches of one 100 B record", 0)):
            total = (megabytes << 20) if size else (megabytes << 20) // 10
            begins, costs = [], []
            for _ in range(max(1, scale.rounds // 2)):
                with data_folder() as folder:
                    node = start_node(folder)
                    new_topic(node)
                    frame = dataplane.produce_frame(
                        TOPIC, 0, batch_of_records(100, size) if size else dataplane.batch_of(100), -1
                    )
                    pump(node, frame, total // (size or 176))
                    node.kill()
                    node = start_node(folder)
                    begins.append(node.start_s)
                    costs.append(node.start_cpu_s)
                    node.kill()
            add(
                f"start after SIGKILL, {total >> 20} MiB of {what}",
                begins,
                "s",
                "",
                f"{statistics.median(costs):.2f} s",
                "reading and checking what was not flushed, at most 256 MB of the journal and the logs behind it",
            )
    return figures


def pump(node: NodeProcess, frame: bytes, count: int) -> None:
    """Send a request many times over, up to 100 in flight, and read all answers."""
    with dataplane.connect(node.address) as sock:
        buffer = bytearray(1 << 20)
        sock.sendall(frame)
        answer = 4 + dataplane.read_frame(sock, buffer)
        window = max(1, min(100, (4 << 20) // len(frame)))
        sent = answered = received = 0
        while answered < count:
            more = min(window - (sent - answered), count - sent)
            if more > 0:
                sock.sendall(frame * more)
                sent += more
            received += sock.recv_into(buffer)
            done, received = divmod(received, answer)
            answered += done


def memory(scale: Scale) -> list[Figure]:
    """Resident memory at rest, and how much each idle partition adds: as made, and after a start."""
    rest, made, loaded = [], [], []
    for _ in range(max(1, scale.rounds // 2)):
        with data_folder() as folder:
            node = start_node(folder)
            with semel.Admin(node.grpc) as admin:
                admin.topics()
                rest.append(node.memory_mb())
                admin.create_topic("many", partitions=scale.partitions)
            made.append((node.memory_mb() - rest[-1]) / scale.partitions * 1e3)
            node.stop()
            node = start_node(folder)
            with semel.Admin(node.grpc) as admin:
                admin.topics()
                loaded.append((node.memory_mb() - rest[-1]) / scale.partitions * 1e3)
            node.stop()
    median = statistics.median
    modules = "the modules of Python, gRPC, SQLAlchemy, protobuf"
    return [
        Figure("memory", "resident memory at rest", median(rest), "MB", rest, "100 MB (Kafka 1,000)", "", modules),
        Figure("memory", "an idle partition, just made", median(made), "KB", made, "10 KB (Kafka 270)", "", "objects"),
        Figure("memory", "an idle partition, after a start", median(loaded), "KB", loaded, "10 KB", "", "objects"),
    ]
