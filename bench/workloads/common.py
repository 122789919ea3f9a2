"""What the workloads of a node's benchmark share: how long they run, their topics, records and nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import dataplane
from harness import (
    NodeProcess,
    running_node,
)

import semel
from semel.protocol.batch_builder import encode_batch

TOPIC, PARTITIONS = "bench", 32
SIZES = (100, 1024)
DURABILITIES = ("disk", "os")
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


def fill(node: NodeProcess, topic: str, batch: bytes, total_bytes: int) -> None:
    """Append batches until the partition has about so many bytes."""
    frame = dataplane.produce_frame(topic, 0, batch, 1)
    buffer = bytearray(1 << 16)
    with dataplane.connect(node.address) as sock:
        for _ in range(max(1, total_bytes // len(batch))):
            sock.sendall(frame)
            dataplane.read_frame(sock, buffer)


TRANSACTIONS = {
    "1 record": (1, 1, False),
    "100 records": (100, 1, False),
    "10 partitions": (10, 10, False),
    "1 record and offsets": (1, 1, True),
}
