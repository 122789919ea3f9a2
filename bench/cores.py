"""What a second core gives: one process of Semel, two (`semel serve --nodes 2`), and Apache Kafka with its threads.

    python -P bench/cores.py                     about four minutes, on two cores
    python -P bench/cores.py produce --rounds 7  one of the workloads
    python -P bench/cores.py --quick             everything once and short: does it still run?

A process of Semel uses one core. More processes on a machine are a cluster with one metadata file, and a partition is
served by the process that leads it: here each has every second one, with one replica. The workloads are the two that a
single core bounds: small requests on many connections, and large fetches. All take turns on the same cores, with the
client beside them; nobody syncs before it answers.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import apache_kafka
import dataplane
import harness
from harness import (
    ROOT,
    Figure,
    Peer,
    Sample,
    cpu_us_each,
    data_folder,
    in_turns,
    machine,
    measured,
    number,
    process_cpu_s,
    process_memory_mb,
    rate,
    write_json,
)

sys.path.insert(0, str(ROOT / "tests" / "support" / "clients"))

import kafka_jars
from workloads.kafka_peers import BATCH_BYTES, KAFKA, delete_topic, new_topic, warm

from semel.runtime.ports import free_ports

ONE: Final = "1 process"
FETCH_BYTES: Final = 1_000_000
FILLED_BYTES: Final = 4 << 20
CONNECTIONS: Final = {"produce": 32, "fetch": 4}
STOP_S: Final = 30.0


class Place(NamedTuple):
    """Where a process listens."""

    address: tuple[str, int]


@dataclass
class Processes:
    """The nodes of one `semel serve --nodes N`, as one `Peer`."""

    supervisor: subprocess.Popen[str]
    addresses: Sequence[tuple[str, int]]
    """By the node's number, from 1 on."""

    @property
    def address(self) -> tuple[str, int]:
        return self.addresses[0]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    def pids(self) -> list[int]:
        pid = self.supervisor.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def cpu_s(self) -> float:
        return sum(process_cpu_s(pid) for pid in self.pids())

    def memory_mb(self) -> float:
        return sum(process_memory_mb(pid) for pid in self.pids())


@contextmanager
def running_processes(count: int) -> Iterator[Processes]:
    """Run nodes of one machine on an empty directory, which goes away with them."""
    with data_folder() as folder:
        (port,) = free_ports(1)
        command = [sys.executable, "-P", "-m", "semel.cli", "serve", "--nodes", str(count), "--data-dir", folder]
        command += ["--kafka", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0", "--set", "durability=os"]
        with open(f"{folder}.log", "a") as log:
            supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
        try:
            yield Processes(supervisor, _ready(supervisor, count, f"{folder}.log"))
        finally:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait(STOP_S)


def _ready(supervisor: subprocess.Popen[str], count: int, log: str) -> list[tuple[str, int]]:
    """Wait for the ready lines of all nodes; return where they listen, from node 1 on."""
    assert supervisor.stdout is not None
    found: dict[int, tuple[str, int]] = {}
    for line in supervisor.stdout:
        words = line.split()
        if words[:2] == ["ready:", "node"]:
            host, _, port = words[4].rpartition(":")
            found[int(words[2])] = host, int(port)
        if len(found) == count:
            return [found[node] for node in sorted(found)]
    raise RuntimeError(f"the nodes did not start; their log says:\n{Path(log).read_text()[-2000:]}")


def leaders_of(peer: Peer, partitions: int) -> list[Place]:
    """Return who leads each partition of a topic that `make_topic` made."""
    addresses = peer.addresses if isinstance(peer, Processes) else [peer.address]
    return [Place(addresses[n % len(addresses)]) for n in range(partitions)]


def make_topic(peer: Peer, name: str, partitions: int) -> None:
    """Make a topic with one replica a partition, in turn on each process."""
    if isinstance(peer, Processes):
        new_topic(peer, name, replicas=[[n % len(peer.addresses) + 1] for n in range(partitions)])
    else:
        new_topic(peer, name, partitions)


def small_requests(peer: Peer, topic: str, seconds: float) -> float:
    batch, count = dataplane.batch_of(100), CONNECTIONS["produce"]
    frames = [dataplane.produce_frame(topic, n, batch, -1) for n in range(count)]
    return dataplane.unpipelined(peer, frames, seconds, leaders_of(peer, count))


def large_fetches(peer: Peer, topic: str, seconds: float) -> float:
    """Returns megabytes."""
    sources = [(leader, n) for n, leader in enumerate(leaders_of(peer, CONNECTIONS["fetch"]))]
    return dataplane.fetches_of(sources, topic, FETCH_BYTES, seconds) / 1e6


def fill(peer: Peer, topic: str) -> None:
    for n, leader in enumerate(leaders_of(peer, CONNECTIONS["fetch"])):
        dataplane.fill(leader, topic, n, BATCH_BYTES, FILLED_BYTES)


WORKLOADS: Final[Mapping[str, tuple[str, str, Callable[[Peer, str, float], float]]]] = {
    "produce": ("one 100 B record a request, 32 connections, 32 partitions", "requests", small_requests),
    "fetch": ("fetches of 1 MB, 4 connections, 4 partitions", "MB", large_fetches),
}


def take_turns(peers: Mapping[str, Peer], workload: str, seconds: float, rounds: int) -> dict[str, list[Sample]]:
    run = WORKLOADS[workload][2]
    for peer in peers.values():
        make_topic(peer, workload, CONNECTIONS[workload])
        if workload == "fetch":
            fill(peer, workload)
        warm(peer, partial(run, peer, workload, seconds))
    variants = {name: partial(measured, peer, partial(run, peer, workload, seconds)) for name, peer in peers.items()}
    samples = in_turns(variants, rounds)
    for peer in peers.values():
        delete_topic(peer, workload)
    return samples


def main() -> None:
    apache_kafka.end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it runs")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median counts (default 5)")
    parser.add_argument("--processes", type=int, default=2, help="how many processes beside one (default 2)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.workloads if name not in WORKLOADS]:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if arguments.rounds < 1 or arguments.processes < 2:
        parser.error("--rounds must be at least 1, and --processes at least 2")
    seconds, rounds = (0.3, 1) if arguments.quick else (2.0, arguments.rounds)
    harness.touch_memory(256 if arguments.quick else 2048)
    several = f"{arguments.processes} processes"
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        try:
            version = f"Apache Kafka {kafka_jars.jars().name}"
            peers[KAFKA] = stack.enter_context(apache_kafka.running_kafka())
        except kafka_jars.JavaMissingError as error:
            version = f"without Apache Kafka: {error}"
        peers[ONE] = stack.enter_context(harness.running_node({"durability": "os"}))
        peers[several] = stack.enter_context(running_processes(arguments.processes))
        print(f"{version}; " + ", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
        print("| workload | who | rate | lowest to highest | by Kafka's | CPU | cores in use |")
        print("|---|---|---:|---|---:|---:|---:|")
        figures = []
        for workload in arguments.workloads or WORKLOADS:
            label, unit, _ = WORKLOADS[workload]
            samples = take_turns(peers, workload, seconds, rounds)
            beside = rate(samples[KAFKA])[0] if KAFKA in samples else None
            for name, taken in samples.items():
                median, rates = rate(taken)
                ratio = "" if beside is None else f"{median / beside:.2f}x"
                cost = f"{number(cpu_us_each(taken))} us a {unit.removesuffix('s')}"
                cores = sum(one.cpu_s for one in taken) / sum(one.seconds for one in taken)
                print(
                    f"| {label} | {name} | {number(median)} {unit}/s | {number(min(rates))} to {number(max(rates))} "
                    f"| {ratio} | {cost} | {cores:.2f} |",
                    flush=True,
                )
                figures.append(Figure("cores", f"{label}, {name}", median, f"{unit}/s", list(rates), cost=cost))
    print(f"load at the end {os.getloadavg()[0]:.1f}; written to {write_json('cores', figures)}")


if __name__ == "__main__":
    main()
