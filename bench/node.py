"""A whole node: `semel serve` in a process of its own, driven by raw sockets and by the SDK's clients.

    python -P bench/node.py                      all workloads
    python -P bench/node.py transactions start   those alone
    python -P bench/node.py --quick --list

Raw sockets show what the node can do: their driver sends ready-made requests and throws the answers away. The SDK's
figures are of one client process beside the node, so that both share the machine's cores. confluent-kafka and aiokafka
can only be peers once the Kafka listener speaks Metadata, FindCoordinator and the rest; bench/producer.py lends the
node as much of it as librdkafka's producer needs.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import dataplane
from harness import (
    Figure,
    NodeProcess,
    Peer,
    Sample,
    cpu_us_each,
    data_folder,
    in_turns,
    measured,
    percentile,
    print_table,
    rate,
    rate_figure,
    running_node,
    start_node,
    touch_memory,
    write_json,
)

import semel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.api import join_parts
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest, FetchResponse

TOPIC, PARTITIONS = "bench", 32
SIZES = (100, 1024)
DURABILITIES = {"disk": -1, "os": -1}
"""Every produce is acks=all: with "disk" that waits for the journal's sync, with "os" for the page cache."""
BATCH_BYTES = 256 << 10


@dataclass(frozen=True)
class Scale:
    """How long and how often. `seconds` is for one run of one variant."""

    seconds: float
    rounds: int
    records: int
    partitions: int
    log_megabytes: tuple[int, ...]


FULL = Scale(2.0, 5, 500_000, 1000, (100, 1000))
QUICK = Scale(0.5, 1, 50_000, 200, (50,))


def scale_of(quick: bool, rounds: int) -> Scale:
    return QUICK if quick else replace(FULL, rounds=rounds)


def batch_of_records(size: int, total: int) -> bytes:
    return encode_batch([(int(time.time() * 1000), None, b"v" * size, ()) for _ in range(total // size)])


def new_topic(node: NodeProcess, name: str = TOPIC, partitions: int = PARTITIONS) -> None:
    with semel.Admin(node.grpc) as admin:
        admin.create_topic(name, partitions=partitions)


class Nodes:
    """One node for each durability, both running, so that they can take turns."""

    def __init__(self, stack: ExitStack) -> None:
        self.by_durability = {name: stack.enter_context(running_node({"durability": name})) for name in DURABILITIES}
        for node in self.by_durability.values():
            new_topic(node)

    def __iter__(self) -> Iterator[tuple[str, NodeProcess]]:
        return iter(self.by_durability.items())


# --- Produce ----------------------------------------------------------------------------------------------------------


def produce(scale: Scale) -> list[Figure]:
    """Bulk: batches of 256 KiB from raw sockets, and the SDK's producer."""
    figures = []
    with ExitStack() as stack:
        nodes = Nodes(stack)
        for size in SIZES:
            variants = _produce_variants(nodes, size, scale)
            for name, samples in in_turns(variants, scale.rounds).items():
                records, _ = rate(samples)
                raw = name.startswith("raw")
                figures.append(
                    rate_figure(
                        "produce",
                        f"produce {size} B records, {name}",
                        samples,
                        "M records/s",
                        per=1e6,
                        goal="0.67 ms a MB (Kafka's 1.5 x 0.45)" if raw else "",
                        cost=f"{records * size / 1e6:,.0f} MB/s, {cpu_us_each(samples) * 1e3 / size:.2f} ms a MB",
                        bound="copying into the page cache, twice with the journal"
                        if raw
                        else "the client: see producer.py",
                    )
                )
    return figures


def _produce_variants(nodes: Nodes, size: int, scale: Scale) -> dict[str, Callable[[], Sample]]:
    frame = dataplane.produce_frame(TOPIC, 1, batch_of_records(size, BATCH_BYTES), -1)

    def raw(node: NodeProcess) -> float:
        return dataplane.pipelined(node, frame, scale.seconds, 5) * (BATCH_BYTES // size)

    def sdk(node: NodeProcess) -> float:
        return send_many(node.grpc, size, scale.records * 100 // size)

    return {
        f"{name}, {durability}": partial(measured, node, partial(run, node))
        for durability, node in nodes
        for name, run in (("raw", raw), ("SDK", sdk))
    }


def send_many(grpc: str, size: int, records: int) -> float:
    value = b"v" * size
    with semel.Producer(grpc, linger_ms=5, batch_size_bytes=BATCH_BYTES) as producer:
        send = producer.send
        for _ in range(records):
            send(TOPIC, value)
        producer.flush()
    return records


# --- Fetch ------------------------------------------------------------------------------------------------------------


def fetch(scale: Scale) -> list[Figure]:
    """Ranges of 1 MB by raw sockets, one and four connections; the SDK's consumer from the beginning of the log."""
    figures = []
    with running_node({"durability": "os"}) as node:
        for size in SIZES:
            topic = f"fetch-{size}"
            new_topic(node, topic, 1)
            fill(node, topic, batch_of_records(size, BATCH_BYTES), scale.records * 100)
            variants = _fetch_variants(node, topic, size, scale)
            for name, samples in in_turns(variants, scale.rounds).items():
                records, _ = rate(samples)
                raw = name.startswith("raw")
                figures.append(
                    rate_figure(
                        "fetch",
                        f"fetch {size} B records, {name}",
                        samples,
                        "M records/s",
                        per=1e6,
                        goal="3,750 MB/s (Kafka's 2,500 x 1.5)" if name.startswith("raw, 4") else "",
                        cost=f"{records * size / 1e6:,.0f} MB/s, {cpu_us_each(samples) * 1e3 / size:.2f} ms a MB",
                        bound="the loopback's copy out of the page cache"
                        if raw
                        else "the client: a Python object for each record",
                    )
                )
    return figures


def _fetch_variants(node: NodeProcess, topic: str, size: int, scale: Scale) -> dict[str, Callable[[], Sample]]:
    def raw(connections: int) -> float:
        return dataplane.fetches(node, topic, 0, 1_000_000, scale.seconds, connections) / size

    return {
        "raw, 1 connection": partial(measured, node, partial(raw, 1)),
        "raw, 4 connections": partial(measured, node, partial(raw, 4)),
        "SDK": partial(read_many, node, topic),
    }


def fill(node: NodeProcess, topic: str, batch: bytes, total_bytes: int) -> None:
    """Append batches until the partition has about so many bytes."""
    frame = dataplane.produce_frame(topic, 0, batch, 1)
    buffer = bytearray(1 << 16)
    with dataplane.connect(node.address) as sock:
        for _ in range(max(1, total_bytes // len(batch))):
            sock.sendall(frame)
            dataplane.read_frame(sock, buffer)


def read_many(node: NodeProcess, topic: str) -> Sample:
    """Read a partition from its beginning to its end, from the first record handed out on."""
    tp = TopicPartition(topic, 0)
    with semel.Consumer(node.grpc, offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        consumer.poll(10, 1)
        count, cpu_s, begin = 1, node.cpu_s(), time.perf_counter()
        while count < end:
            found = consumer.poll(10, 10_000)
            assert found is not None
            count += len(found)
        return Sample(count, time.perf_counter() - begin, node.cpu_s() - cpu_s)


# --- Tiny requests ----------------------------------------------------------------------------------------------------


def tiny(scale: Scale) -> list[Figure]:
    """One record of 100 B a request: 1, 8 and 32 connections with one request in flight, and 100 in flight on one."""
    figures = []
    batch = dataplane.batch_of(100)
    with ExitStack() as stack:
        nodes = Nodes(stack)
        variants: dict[str, Callable[[], Sample]] = {}
        for durability, node in nodes:
            for connections in (1, 8, 32):
                frames = [dataplane.produce_frame(TOPIC, n % PARTITIONS, batch, -1) for n in range(connections)]
                variants[f"{connections} connection{'s' * (connections > 1)}, {durability}"] = (
                    lambda node=node, frames=frames: measured(
                        node, lambda: dataplane.unpipelined(node, frames, scale.seconds)
                    )
                )
            variants[f"100 in flight on 1 connection, {durability}"] = lambda node=node: measured(
                node,
                lambda: dataplane.pipelined(node, dataplane.produce_frame(TOPIC, 0, batch, -1), scale.seconds, 100),
            )
        goals = {
            "1 connection, os": "10 k (Kafka's 9.1 k x 1.1)",
            "32 connections, os": "40 k (Kafka's 50 k x 0.8)",
            "100 in flight on 1 connection, os": "25 k (Kafka's 12.5 k x 2)",
            "32 connections, disk": "27 k (Kafka's 9.0 k, fsync, x 3)",
        }
        for name, samples in in_turns(variants, scale.rounds).items():
            figures.append(
                rate_figure(
                    "tiny",
                    f"requests of one 100 B record, {name}",
                    samples,
                    "requests/s",
                    goal=goals.get(name, ""),
                    cost=f"{cpu_us_each(samples):.1f} us a request",
                    bound="the journal's sync, one for each group" if "disk" in name else "Python and system calls",
                )
            )
    return figures


# --- Latency ----------------------------------------------------------------------------------------------------------


def latency(scale: Scale) -> list[Figure]:
    """500 records of 100 B a second: until the acknowledgement, and until a waiting consumer has them."""
    figures = []
    with ExitStack() as stack:
        nodes = Nodes(stack)
        variants: dict[str, Callable[[], Sample]] = {}
        for durability, node in nodes:
            topic = f"latency-{durability}"
            new_topic(node, topic, 1)
            variants[f"raw, {durability}"] = lambda node=node, topic=topic: paced_raw(
                node, topic, scale.seconds * 2, end_offset(node, topic)
            )
            variants[f"SDK, {durability}"] = lambda node=node, topic=topic: paced_sdk(node, topic, scale.seconds * 2)
        goals = {
            "acknowledged p50, raw, os": "134 us (Kafka's 191 x 0.7)",
            "acknowledged p99, raw, os": "580 us (Kafka's 829 x 0.7)",
            "end to end p50, raw, os": "187 us (Kafka's 267 x 0.7)",
            "end to end p99, raw, os": "1,948 us (Kafka's 2,783 x 0.7)",
        }
        for name, samples in in_turns(variants, scale.rounds).items():
            for what in samples[0].rates:
                values = [sample.rates[what] for sample in samples]
                label = f"{what}, {name}"
                figures.append(
                    Figure(
                        "latency",
                        f"{label}, at 500/s",
                        statistics.median(values),
                        "us",
                        values,
                        goals.get(label, ""),
                        f"{cpu_us_each(samples):.0f} us a record",
                        "wake-ups of two processes" + (", and a sync of the journal" if "disk" in name else ""),
                    )
                )
    return figures


def _percentiles(acknowledged: list[float], arrived: list[float]) -> dict[str, float]:
    return {
        f"{what} p{share:.0f}": percentile(times, share / 100) * 1e6
        for what, times in (("acknowledged", acknowledged), ("end to end", arrived))
        for share in (50.0, 99.0)
    }


def paced_raw(node: Peer, topic: str, seconds: float, offset: int) -> Sample:
    """Produce on one connection, with a fetch always waiting on another, from the partition's end on."""
    frame = dataplane.produce_frame(topic, 0, dataplane.batch_of(100), -1)
    producing, fetching = dataplane.connect(node.address), dataplane.connect(node.address)
    buffer = bytearray(1 << 20)
    acknowledged: list[float] = []
    arrived: list[float] = []
    cpu_s, begin = node.cpu_s(), time.perf_counter()
    with producing, fetching, selectors.DefaultSelector() as selector:
        selector.register(producing, selectors.EVENT_READ)
        selector.register(fetching, selectors.EVENT_READ)
        fetching.sendall(_long_poll(topic, offset))
        for n in range(int(seconds * 500)):
            while (wait := begin + n / 500 - time.perf_counter()) > 0:
                time.sleep(wait)
            sent = time.perf_counter()
            producing.sendall(frame)
            waiting: set[socket.socket] = {producing, fetching}
            while waiting:
                for key, _ in selector.select(10):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    size = dataplane.read_frame(sock, buffer)
                    (acknowledged if sock is producing else arrived).append(time.perf_counter() - sent)
                    if sock is fetching:
                        answer = FetchResponse.parse(memoryview(buffer)[:size], 12, 5)
                        assert answer.partitions[0].error is ErrorCode.NONE
                        offset += 1
                        fetching.sendall(_long_poll(topic, offset))
                    waiting.discard(sock)
    return Sample(len(arrived), time.perf_counter() - begin, node.cpu_s() - cpu_s, _percentiles(acknowledged, arrived))


def _long_poll(topic: str, offset: int) -> bytes:
    partition = FetchPartition(topic, ZERO_TOPIC_ID, 0, offset, 1 << 20)
    return join_parts(FetchRequest([partition], 10_000, 1, 1 << 20).frame(12, 1, "b"))


def end_offset(node: NodeProcess, topic: str) -> int:
    with semel.Consumer(node.grpc) as consumer:
        tp = TopicPartition(topic, 0)
        return consumer.end_offsets([tp])[tp]


def paced_sdk(node: NodeProcess, topic: str, seconds: float) -> Sample:
    """A producer that sends without lingering and a consumer that waits, in one process."""
    count = int(seconds * 500)
    sent, acknowledged, arrived = [0.0] * count, [0.0] * count, [0.0] * count
    read_all = threading.Event()

    def consume() -> None:
        seen = 0
        while seen < count:
            found = consumer.poll(10, 100)
            now = time.perf_counter()
            assert found is not None, "nothing came for 10 s"
            for record in found:
                assert record.value is not None
                arrived[int(record.value[:10])] = now
                seen += 1
        read_all.set()

    with semel.Consumer(node.grpc) as consumer, semel.Producer(node.grpc, linger_ms=0) as producer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, consumer.end_offsets([tp])[tp])
        producer.send(topic, b"-" * 100).result(10)  # connects
        consumer.poll(10, 100)
        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        cpu_s, begin = node.cpu_s(), time.perf_counter()
        for n in range(count):
            while (wait := begin + n / 500 - time.perf_counter()) > 0:
                time.sleep(wait)
            value = b"%010d" % n + b"-" * 90
            sent[n] = time.perf_counter()
            producer.send(topic, value).result(10)
            acknowledged[n] = time.perf_counter()
        read_all.wait(10)
        elapsed, used = time.perf_counter() - begin, node.cpu_s() - cpu_s
        thread.join()

    def since_sent(times: list[float]) -> list[float]:
        return [at - start for at, start in zip(times, sent, strict=True)]

    return Sample(count, elapsed, used, _percentiles(since_sent(acknowledged), since_sent(arrived)))


# --- Transactions -----------------------------------------------------------------------------------------------------

TRANSACTIONS = {
    "1 record": (1, 1, False),
    "100 records": (100, 1, False),
    "10 partitions": (10, 10, False),
    "1 record and offsets": (1, 1, True),
}


def transactions(scale: Scale) -> list[Figure]:
    """Commits a second by what is in a transaction, by one producer after the other and by 8 at once."""
    figures = []
    with ExitStack() as stack:
        nodes = Nodes(stack)
        variants: dict[str, Callable[[], Sample]] = {}
        for durability, node in nodes:
            for producers in (1, 8):
                clients = [
                    stack.enter_context(semel.Producer(node.grpc, transactional_id=f"bench-{producers}-{n}"))
                    for n in range(producers)
                ]
                for what, shape in TRANSACTIONS.items():
                    name = f"{what}, {producers} producer{'s' * (producers > 1)}, {durability}"
                    variants[name] = lambda node=node, clients=clients, shape=shape: measured(
                        node, lambda: commit_for(clients, scale.seconds, *shape)
                    )
        for name, samples in in_turns(variants, scale.rounds).items():
            waits = "1 producer," in name and "disk" in name
            figures.append(
                rate_figure(
                    "transactions",
                    f"transactions of {name}",
                    samples,
                    "commits/s",
                    cost=f"{cpu_us_each(samples) / 1e3:.2f} ms a commit",
                    bound="five steps, each waits for a sync"
                    if waits
                    else "Python: a gRPC call and five appends, and as much in the client",
                )
            )
    return figures


def commit_for(clients: list[semel.Producer], seconds: float, records: int, partitions: int, offsets: bool) -> int:
    """Let each producer commit one transaction after the other. Returns how many were committed."""
    end = time.perf_counter() + seconds
    counts = [0] * len(clients)
    value = b"v" * 100

    def run(number: int, producer: semel.Producer) -> None:
        group = semel.GroupMetadata(f"bench-{number}")
        position = {TopicPartition(TOPIC, number): 1}
        while time.perf_counter() < end:
            with producer.transaction() as txn:
                for n in range(records):
                    txn.send(TOPIC, value, partition=(number + n) % partitions)
                if offsets:
                    txn.send_offsets(position, group)
            counts[number] += 1

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def pipeline(scale: Scale) -> list[Figure]:
    """Consume, transform, produce: batches of up to 1,000 records, each in a transaction with its offsets."""
    figures = []
    records = scale.records // 5
    with ExitStack() as stack:
        nodes = Nodes(stack)
        number = iter(range(1_000_000))
        for _, node in nodes:
            new_topic(node, "input", 1)
            new_topic(node, "output", 1)
            fill(node, "input", batch_of_records(100, 64 << 10), records * 100)

        def transform(node: NodeProcess) -> Sample:
            name = f"pipeline-{next(number)}"
            total = end_offset(node, "input")
            done = 0
            with (
                semel.Producer(node.grpc, transactional_id=name) as producer,
                semel.Consumer(node.grpc, group=name, topics=["input"], max_partition_bytes=256 << 10) as consumer,
            ):
                cpu_s, begin = node.cpu_s(), time.perf_counter()
                for found in consumer.batches(1_000, timeout_s=10):
                    if done == 0:  # without the time to join the group
                        cpu_s, begin = node.cpu_s(), time.perf_counter()
                    with producer.transaction(commits=found) as txn:
                        for record in found:
                            txn.send("output", record.value, key=record.key)
                    done += len(found)
                    if done >= total:
                        break
                return Sample(done, time.perf_counter() - begin, node.cpu_s() - cpu_s)

        variants = {durability: (lambda node=node: transform(node)) for durability, node in nodes}
        for name, samples in in_turns(variants, scale.rounds).items():
            figures.append(
                rate_figure(
                    "pipeline",
                    f"consume, transform, produce, one instance, {name}",
                    samples,
                    "k records/s",
                    per=1e3,
                    cost=f"{cpu_us_each(samples):.1f} us a record",
                    bound="the client's Python for each record, then the commit's steps one after the other",
                )
            )
    return figures


# --- Starts, memory ---------------------------------------------------------------------------------------------------


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


WORKLOADS: dict[str, Callable[[Scale], list[Figure]]] = {
    "produce": produce,
    "fetch": fetch,
    "tiny": tiny,
    "latency": latency,
    "transactions": transactions,
    "pipeline": pipeline,
    "start": start,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"rounds of which the median counts (default {FULL.rounds})")
    parser.add_argument("--list", action="store_true", help="list the workloads and exit")
    arguments = parser.parse_args()
    if arguments.list:
        for name, workload in WORKLOADS.items():
            print(f"{name:14}{workload.__doc__}")
        return
    unknown = set(arguments.workloads) - WORKLOADS.keys()
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    scale = scale_of(arguments.quick, arguments.rounds or FULL.rounds)
    touch_memory(256 if arguments.quick else 1024)
    figures: list[Figure] = []
    for name in arguments.workloads or WORKLOADS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures += WORKLOADS[name](scale)
    print_table(figures)
    print(f"\nwritten to {write_json('node', figures)}", file=sys.stderr)


if __name__ == "__main__":
    main()
