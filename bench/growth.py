"""What grows with what: a node's memory, its work at rest, a request and a start, against partitions, groups and so on.

    python -P bench/growth.py                        about ten minutes
    python -P bench/growth.py groups connections     some of the kinds
    python -P bench/growth.py --quick                everything once and small: does it still run?

One node for each kind; it is grown step by step and measured at each. Costs are to grow with bytes and requests, never
with what is idle: the request that is measured always goes to the same other topic, and its cost should stay the same.
CPU is the node's; nothing here depends on how fast the machine's disk is. The last lines say what one more of each kind
costs, between the second and the last step.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import dataplane
import harness
from harness import Figure, NodeProcess, data_folder, machine, number, start_node, write_json

sys.path.insert(0, str(harness.ROOT / "tests" / "support" / "clients"))

from clusters.calls import Calls

import semel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey, join_parts
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest, ProduceResponse
from semel.runtime.disk_storage import raise_open_files_limit

ASKED: Final = "asked"
"""The topic of the request that is measured."""
GROWN: Final = "grown"
"""The topic of what is grown."""
AT_ONCE: Final = 100
"""Requests in flight while something is grown."""
TOPIC_PARTITIONS: Final = 1_000
CONNECTIONS_ASKING: Final = 4
ANSWER_S: Final = 60.0
TRANSACTION_TIMEOUT_MS: Final = 900_000
PRODUCE_VERSION, OFFSET_COMMIT_VERSION, INIT_VERSION = 12, 8, 4
SEGMENT_BYTES: Final = 16 << 10
FIRST_PRODUCER_ID: Final = 1 << 40
"""Far behind all that the node gives out."""


@dataclass(frozen=True)
class Scale:
    """How long is measured, in seconds, and how often a node starts."""

    rest_s: float
    asking_s: float
    starts: int


FULL = Scale(4.0, 1.5, 3)
QUICK = Scale(0.3, 0.2, 1)


class Point(NamedTuple):
    """A node that holds `count` of something."""

    count: int
    memory_mb: float
    rest_ms: float
    """CPU in a second at rest."""
    produce_us: float
    fetch_us: float
    start_s: float | None
    """CPU from the process to the ready line, after a clean stop; None where nothing of it survives a stop."""
    memory_after_start_mb: float | None


@dataclass
class Grown:
    """What a kind keeps while it grows."""

    count: int = 0
    sockets: list[socket.socket] = field(default_factory=list)


Grow = Callable[[NodeProcess, Grown, int], None]
"""Lets the node hold so many, from the count that `Grown` has."""


class Kind(NamedTuple):
    """Something that a node may hold much of. The first count is none of it."""

    what: str
    counts: Sequence[int]
    quick: Sequence[int]
    grow: Grow
    survives_stop: bool = True
    settles_s: float = 0.0
    """How long after growing it is at rest: connections keep their buffer for some seconds."""
    settings: Mapping[str, object] = {}


# --- What grows -------------------------------------------------------------------------------------------------------


def grow_partitions(node: NodeProcess, grown: Grown, count: int) -> None:
    with semel.Admin(node.grpc) as admin:
        while grown.count < count:
            more = min(TOPIC_PARTITIONS, count - grown.count)
            admin.create_topic(f"{GROWN}-{grown.count}", partitions=more)
            grown.count += more


def grow_segments(node: NodeProcess, grown: Grown, count: int) -> None:
    """A batch that fills more than half a segment begins a new one."""
    if not grown.count:
        with semel.Admin(node.grpc) as admin:
            admin.create_topic(GROWN, partitions=1, configs={"segment.bytes": str(SEGMENT_BYTES)})
    batch = dataplane.batch_of(SEGMENT_BYTES * 2 // 3)
    frame = dataplane.produce_frame(GROWN, 0, batch, -1)
    _in_flight(node, (frame for _ in range(count - grown.count)), 9)
    grown.count = count


def grow_groups(node: NodeProcess, grown: Grown, count: int) -> None:
    """Groups without members, each with one offset."""
    with closing(Calls(node.address, ANSWER_S)) as calls:
        while grown.count < count:
            partition = {
                "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "",
            }  # fmt: skip
            answer = calls.call(
                ApiKey.OFFSET_COMMIT,
                OFFSET_COMMIT_VERSION,
                group_id=f"group-{grown.count}",
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                topics=[{"name": ASKED, "partitions": [partition]}],
            )
            _check(answer.topics[0].partitions[0].error_code, "OffsetCommit")
            grown.count += 1


def grow_transactions(node: NodeProcess, grown: Grown, count: int) -> None:
    """Transactions that stay open, each with one record."""
    _make_grown_topic(node, grown)
    with closing(Calls(node.address, ANSWER_S)) as calls:
        while grown.count < count:
            id_ = f"open-{grown.count}"
            answer = _once_loaded(
                lambda id_=id_: calls.call(
                    ApiKey.INIT_PRODUCER_ID,
                    INIT_VERSION,
                    transactional_id=id_,
                    transaction_timeout=TRANSACTION_TIMEOUT_MS,
                    producer_id=-1,
                    producer_epoch=-1,
                )
            )
            batch = _batch_of(int(answer.producer_id), int(answer.producer_epoch), transactional=True)
            request = ProduceRequest([ProducePartition(GROWN, grown.count % 10, batch)], id_, -1, 30_000)
            answered = calls.exchange(join_parts(request.frame(PRODUCE_VERSION, 1, "b")))
            _check(ProduceResponse.parse(answered, PRODUCE_VERSION, 5).partitions[0].error, "Produce")
            grown.count += 1


def grow_producers(node: NodeProcess, grown: Grown, count: int) -> None:
    """Idempotent producers that each have sent one record."""
    _make_grown_topic(node, grown)

    def frames() -> Iterator[bytes]:
        for n in range(grown.count, count):
            batch = _batch_of(FIRST_PRODUCER_ID + n, 0, transactional=False)
            request = ProduceRequest([ProducePartition(GROWN, n % 10, batch)], None, -1, 30_000)
            yield join_parts(request.frame(PRODUCE_VERSION, 1, "b"))

    _in_flight(node, frames(), PRODUCE_VERSION)
    grown.count = count


def grow_connections(node: NodeProcess, grown: Grown, count: int) -> None:
    """Connections that have asked once, and then for nothing."""
    buffer = bytearray(1 << 16)
    frame = dataplane.produce_frame(ASKED, 0, dataplane.batch_of(100), -1)
    while grown.count < count:
        sock = socket.create_connection(node.address)
        sock.sendall(frame)
        dataplane.read_frame(sock, buffer)
        grown.sockets.append(sock)
        grown.count += 1


def _make_grown_topic(node: NodeProcess, grown: Grown) -> None:
    if not grown.count:
        with semel.Admin(node.grpc) as admin:
            admin.create_topic(GROWN, partitions=10)


def _batch_of(producer_id: int, epoch: int, *, transactional: bool) -> bytes:
    return encode_batch(
        [(int(time.time() * 1000), None, bytes(100), ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=transactional,
    )


def _once_loaded(call: Callable[[], Any]) -> Any:
    """Ask again while the coordinator's topic is being made."""
    deadline = time.monotonic() + ANSWER_S
    while (answer := call()).error_code:
        error = ErrorCode(answer.error_code)
        if error not in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            _check(error, "InitProducerId")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the coordinator answers {error.name}")
        time.sleep(0.01)
    return answer


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what}: {ErrorCode(code).name}")


def _in_flight(node: NodeProcess, frames: Iterator[bytes], version: int) -> None:
    """Send Produce requests, some at once, and check each answer."""
    buffer = bytearray(1 << 16)
    with dataplane.connect(node.address) as sock:
        waiting = 0

        def read_one() -> None:
            size = dataplane.read_frame(sock, buffer)
            answer = ProduceResponse.parse(memoryview(buffer)[:size], version, 5)
            _check(answer.partitions[0].error, "Produce")

        for frame in frames:
            sock.sendall(frame)
            waiting += 1
            if waiting == AT_ONCE:
                read_one()
                waiting -= 1
        for _ in range(waiting):
            read_one()


KINDS: Final[Mapping[str, Kind]] = {
    "partitions": Kind("idle partitions", (0, 100, 1_000, 10_000), (0, 100), grow_partitions),
    "segments": Kind("segments of one partition", (0, 100, 1_000, 10_000), (0, 20), grow_segments),
    "groups": Kind("groups with an offset", (0, 100, 1_000, 10_000), (0, 20), grow_groups),
    "transactions": Kind("open transactions", (0, 100, 1_000, 10_000), (0, 20), grow_transactions),
    "producers": Kind(
        "producer ids of a day", (0, 10_000, 100_000, 1_000_000), (0, 100), grow_producers,
        settings={"producer.ids.max": 2_000_000, "producer.ids.per.partition.max": 1_000_000},
    ),
    "connections": Kind("idle connections", (0, 100, 1_000, 5_000), (0, 20), grow_connections, False, 25.0),
}  # fmt: skip


# --- Measuring --------------------------------------------------------------------------------------------------------


def measure_kind(name: str, counts: Sequence[int], scale: Scale) -> list[Point]:
    """Grow a node step by step, and measure it at each."""
    kind = KINDS[name]
    points: list[Point] = []
    settings = {"durability": "os", **kind.settings}
    with data_folder() as folder:
        node = start_node(folder, settings)
        grown = Grown()
        try:
            with semel.Admin(node.grpc) as admin:
                admin.create_topic(ASKED, partitions=1)
            dataplane.fill(node, ASKED, 0, 4_000, 1 << 20)
            produce_us(node, scale)  # warms up
            for count in counts:
                if count:
                    kind.grow(node, grown, count)
                    time.sleep(kind.settles_s if scale is FULL else 0.0)
                memory_mb, rest_ms = node.memory_mb(), at_rest_ms(node, scale)
                produce, fetch = produce_us(node, scale), fetch_us(node, scale)
                start_s = after_start_mb = None
                if kind.survives_stop:
                    taken = []
                    for _ in range(scale.starts):
                        node.stop()
                        node = start_node(folder, settings)
                        taken.append(node.start_cpu_s)
                    start_s, after_start_mb = statistics.median(taken), node.memory_mb()
                points.append(Point(count, memory_mb, rest_ms, produce, fetch, start_s, after_start_mb))
                print(f"{name} {count:,}", file=sys.stderr, flush=True)
        finally:
            for sock in grown.sockets:
                sock.close()
            node.kill()
    return points


def at_rest_ms(node: NodeProcess, scale: Scale) -> float:
    """Return the CPU of a node that nobody asks for anything, in milliseconds a second."""
    cpu_s, begin = node.cpu_s(), time.perf_counter()
    time.sleep(scale.rest_s)
    return (node.cpu_s() - cpu_s) / (time.perf_counter() - begin) * 1e3


def produce_us(node: NodeProcess, scale: Scale) -> float:
    """Return the CPU of a Produce of one 100 B record."""
    frame = dataplane.produce_frame(ASKED, 0, dataplane.batch_of(100), -1)
    cpu_s = node.cpu_s()
    count = dataplane.unpipelined(node, [frame] * CONNECTIONS_ASKING, scale.asking_s)
    return (node.cpu_s() - cpu_s) / count * 1e6


def fetch_us(node: NodeProcess, scale: Scale) -> float:
    """Return the CPU of a Fetch of 4 KB from the beginning of a log."""
    cpu_s = node.cpu_s()
    total = dataplane.fetches(node, ASKED, 0, 4_096, scale.asking_s, CONNECTIONS_ASKING)
    return (node.cpu_s() - cpu_s) / max(total / 4_096, 1) * 1e6


def print_points(kind: Kind, points: Sequence[Point]) -> None:
    print(
        f"\n| {kind.what} | memory | CPU at rest | a Produce | a Fetch of 4 KB | a start's CPU | memory after it |\n"
        "|---:|---:|---:|---:|---:|---:|---:|"
    )
    for point in points:
        start = "" if point.start_s is None else f"{point.start_s:.2f} s"
        after = "" if point.memory_after_start_mb is None else f"{point.memory_after_start_mb:,.1f} MB"
        rest = f"{point.rest_ms:.1f} ms a second | {point.produce_us:.1f} us | {point.fetch_us:.1f} us"
        print(f"| {point.count:,} | {point.memory_mb:,.1f} MB | {rest} | {start} | {after} |", flush=True)


def slope(points: Sequence[Point], value: Callable[[Point], float | None]) -> float | None:
    """Return by how much a figure grows for each one more, between the second point and the last one."""
    first, last = points[1], points[-1]
    before, after = value(first), value(last)
    if before is None or after is None or last.count == first.count:
        return None
    return (after - before) / (last.count - first.count)


def figures_of(name: str, points: Sequence[Point]) -> list[Figure]:
    """Return the slopes: what one more costs."""
    columns: Mapping[str, tuple[Callable[[Point], float | None], float, str]] = {
        "memory": (lambda point: point.memory_mb, 1e6, "B"),
        "memory after a start": (lambda point: point.memory_after_start_mb, 1e6, "B"),
        "CPU at rest": (lambda point: point.rest_ms, 1e3, "us a second"),
        "CPU of a Produce": (lambda point: point.produce_us, 1e3, "ns"),
        "CPU of a Fetch": (lambda point: point.fetch_us, 1e3, "ns"),
        "CPU of a start": (lambda point: point.start_s, 1e6, "us"),
    }
    found = []
    for column, (value, factor, unit) in columns.items():
        if (one_more := slope(points, value)) is not None:
            found.append(Figure("growth", f"{name}: {column}, for one more", one_more * factor, unit))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small and short: to see that it runs")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.kinds if name not in KINDS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(KINDS)}")
    raise_open_files_limit()
    scale = QUICK if arguments.quick else FULL
    print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
    figures: list[Figure] = []
    taken: dict[str, list[Point]] = {}
    for name in arguments.kinds or KINDS:
        kind = KINDS[name]
        taken[name] = measure_kind(name, kind.quick if arguments.quick else kind.counts, scale)
        print_points(kind, taken[name])
        figures += figures_of(name, taken[name])
    print("\n| what one more costs | |\n|---|---:|")
    for figure in figures:
        print(f"| {figure.name} | {number(figure.value)} {figure.unit} |")
    path = write_json("growth", figures, {"points": {name: [p._asdict() for p in of] for name, of in taken.items()}})
    print(f"load at the end {os.getloadavg()[0]:.1f}; written to {path}")


if __name__ == "__main__":
    main()
