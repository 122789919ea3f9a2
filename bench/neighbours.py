"""Noisy neighbours: how long a quiet client waits alone, beside two noisy ones, and beside these under client quotas.

    python -P bench/neighbours.py [--seconds 4] [--rounds 2]

The quiet client produces 500 records of 100 B a second, one at a time, on one connection and waits for each on another.
A noisy client is a process of its own: it produces batches of 64 KiB, eight in flight, and reads 1 MiB again and again,
both as fast as the node lets it. On two cores it takes processor time from the quiet one too, which no quota gives back
while it may run; under quotas it mostly waits. The variants take turns, medians count. The goal is a p99 under quotas
of at most twice that alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import dataplane
from harness import NodeProcess, Sample, in_turns, running_node
from workloads.latency import end_offset, paced_raw

import semel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.api import join_parts
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.protocol.quotas import QuotaAlteration, QuotaEntity

QUIET, NOISY = "quiet", "noisy"
CLIENT_ID = "noisy"
BATCH_BYTES, FETCH_BYTES, IN_FLIGHT = 64 << 10, 1 << 20, 8
QUOTAS = {"producer_byte_rate": 2_000_000.0, "consumer_byte_rate": 4_000_000.0, "request_percentage": 5.0}
"""Of all that say this client id, together."""
GOAL = 2.0
_CALM_S = 2.0
"""How long there is noise before anything is measured, and it is calm after it."""
_SETTINGS = {
    "durability": "os",
    "quota.window.num": 2,
    "log.retention.check.interval.ms": 1_000,
    "log.segment.delete.delay.ms": 0,
}


def make_noise(address: tuple[str, int], over: Event) -> None:
    """Produce and read as fast as it goes, until it is over. In a process of its own."""
    batch = encode_batch([(int(time.time() * 1000), None, bytes(1024), ())] * (BATCH_BYTES // 1024))
    produce = ProduceRequest([ProducePartition(NOISY, 0, batch)], None, 1, 30_000).frame(9, 1, CLIENT_ID)
    partition = FetchPartition(NOISY, ZERO_TOPIC_ID, 1, 0, FETCH_BYTES)
    fetch = join_parts(FetchRequest([partition], 0, 1, FETCH_BYTES).frame(12, 1, CLIENT_ID))
    buffer = bytearray(4 << 20)
    frame = join_parts(produce)
    # A throttled client may wait for minutes: it is ended by its parent.
    with dataplane.connect(address) as producing, dataplane.connect(address) as fetching:
        producing.sendall(frame * IN_FLIGHT)
        fetching.sendall(fetch)
        producing.setblocking(True)
        for sock in (producing, fetching):
            sock.settimeout(0.05)
        while not over.is_set():
            for sock, again in ((producing, frame), (fetching, fetch)):
                with suppress(TimeoutError):
                    sock.recv(1, 2)  # MSG_PEEK: whether an answer begins
                    sock.settimeout(10)
                    dataplane.read_frame(sock, buffer)
                    sock.sendall(again)
                sock.settimeout(0.05 if sock is producing else 0.001)


@contextmanager
def noise(node: NodeProcess, count: int) -> Iterator[None]:
    over = multiprocessing.Event()
    makers = [multiprocessing.Process(target=make_noise, args=(node.address, over), daemon=True) for _ in range(count)]
    for maker in makers:
        maker.start()
    try:
        time.sleep(_CALM_S if count else 0)
        yield
    finally:
        over.set()
        for maker in makers:
            maker.join(0.5)
            maker.kill()
            maker.join()
        time.sleep(_CALM_S if count else 0)


def set_quotas(node: NodeProcess, *, are_set: bool) -> None:
    with semel.Admin(node.grpc) as admin:
        values = {name: value if are_set else None for name, value in QUOTAS.items()}
        admin.alter_client_quotas([QuotaAlteration(QuotaEntity(client_id=CLIENT_ID), values)])


def measure(node: NodeProcess, seconds: float, noisy: int, *, quotas: bool) -> Sample:
    set_quotas(node, are_set=quotas)
    with noise(node, noisy):
        return paced_raw(node, QUIET, seconds, end_offset(node, QUIET))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="for one run of one variant")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()}")
    with running_node(_SETTINGS) as node:
        with semel.Admin(node.grpc) as admin:
            admin.create_topic(QUIET, partitions=1)
            bounded = {"retention.bytes": str(64 << 20), "segment.bytes": str(16 << 20)}
            admin.create_topic(NOISY, partitions=2, configs=bounded)
        dataplane.fill(node, NOISY, 1, 1024, 8 << 20)
        variants = {
            "alone": lambda: measure(node, arguments.seconds, 0, quotas=False),
            "beside two noisy clients": lambda: measure(node, arguments.seconds, 2, quotas=False),
            "the same under quotas": lambda: measure(node, arguments.seconds, 2, quotas=True),
        }
        found = in_turns(variants, arguments.rounds)
    print(f"load after: {os.getloadavg()}")
    print(f"\nquotas of the noisy ones together: {', '.join(f'{name} = {value:g}' for name, value in QUOTAS.items())}")
    print("\n| what the quiet client waits for | alone, us | noisy, us | ratio | under quotas, us | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    worst = 0.0
    for what in found["alone"][0].rates:
        alone, noisy, bounded_ = (
            statistics.median(sample.rates[what] for sample in samples) for samples in found.values()
        )
        if what.endswith("p99"):
            worst = max(worst, bounded_ / alone)
        print(
            f"| {what} | {alone:,.0f} | {noisy:,.0f} | {noisy / alone:.1f} | {bounded_:,.0f} | {bounded_ / alone:.1f} |"
        )
    print(f"\nthe worst p99 under quotas is {worst:.1f} times that alone; the goal is {GOAL:g}")


if __name__ == "__main__":
    main()
