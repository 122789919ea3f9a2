"""Three nodes of Semel, and three brokers of Apache Kafka: started, killed, frozen, stopped, started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import apache_kafka
import confluent_kafka
from confluent_kafka.admin import AdminClient
from harness import ROOT, TICKS, process_cpu_s, process_memory_mb, spawn_node
from workloads.kafka_peers import DISK, KAFKA, SEMEL, client, new_topic

from clusters.calls import Calls, brokers, partitions
from semel.broker.metadata.store import sqlite_url
from semel.runtime.ports import free_ports

sys.path.insert(0, str(ROOT / "tests" / "support" / "sql"))

from postgresql_process import PostgresqlMissingError, RunningPostgresql, new_database, running_postgresql

NODES = (1, 2, 3)
DEFAULTS = "defaults"
"""Each as it comes: `durability = "disk"`, and no flush before an answer."""
REPLICATION: Mapping[str, object] = {"default.replication.factor": 3, "min.insync.replicas": 2}
KAFKA_SETTINGS: Mapping[str, object] = {
    **REPLICATION,
    "offsets.topic.num.partitions": 50,
    "transaction.state.log.num.partitions": 50,
}
FIRST = "first"
"""A topic that every cluster has: node N leads its partition N - 1."""
WITHIN_S = 120.0
POLL_S = 0.02
STOP_S = 30.0
PROBE_TIMEOUT_S = 10.0
LOG_CHARS_SHOWN = 2_000


class Cluster(ABC):
    """Processes by the number of their node. To the workloads it is a `Peer`; `address` is node 1's."""

    def __init__(self, name: str, folders: Mapping[int, str], addresses: Mapping[int, tuple[str, int]]) -> None:
        self.name = name
        self.addresses = addresses
        self._folders = folders
        self._processes: dict[int, subprocess.Popen[bytes] | subprocess.Popen[str]] = {}

    @abstractmethod
    def _spawn(self, node: int) -> subprocess.Popen[bytes] | subprocess.Popen[str]:
        """Start the process of a node."""

    @property
    def address(self) -> tuple[str, int]:
        return self.addresses[1]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses.values())

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes so far."""
        return sum(process_cpu_s(process.pid) for process in self._processes.values())

    def memory_mb(self) -> float:
        """Return the resident memory of all nodes."""
        return sum(process_memory_mb(process.pid) for process in self._processes.values())

    def more_memory_mb(self) -> float:
        """Return the memory of what the cluster needs beside its nodes."""
        return 0.0

    def start(self, *nodes: int) -> None:
        """Start nodes, and return at once."""
        for node in nodes:
            self._processes[node] = self._spawn(node)

    def kill(self, node: int) -> None:
        """SIGKILL; return when the process is gone."""
        process = self._processes.pop(node)
        process.kill()
        _reaped(process)

    def freeze(self, node: int) -> None:
        """SIGSTOP: its connections stay, and nothing is answered."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def thaw(self, node: int) -> None:
        self._processes[node].send_signal(signal.SIGCONT)

    def ask_to_stop(self, node: int) -> None:
        """SIGTERM; return at once."""
        self._processes[node].send_signal(signal.SIGTERM)

    def wait_stopped(self, node: int) -> None:
        """Wait for a node that was asked to stop. One that takes too long is killed."""
        process = self._processes[node]
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        self.kill(node)

    def stop(self) -> None:
        """Stop all nodes, all at once."""
        for node in self._processes:
            self.ask_to_stop(node)
        for node in list(self._processes):
            self.wait_stopped(node)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for node in list(self._processes):
            self.kill(node)

    def wait_until(self, condition: Callable[[], object], what: str, every_s: float = POLL_S) -> None:
        """Wait for something that the nodes do. Raises `RuntimeError` with the end of the log of one that ended."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            with suppress(OSError):
                if condition():
                    return
            for node, process in self._processes.items():
                if process.poll() is not None:
                    log = Path(f"{self._folders[node]}.log").read_text(errors="replace")[-LOG_CHARS_SHOWN:]
                    raise RuntimeError(f"node {node} of {self.name} ended with {process.returncode}; its log:\n{log}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: not within {WITHIN_S:.0f} s: {what}")
            time.sleep(every_s)

    def wait_met(self) -> None:
        """Wait until every node knows all of them."""
        for node, calls in self._each():
            self.wait_until(partial(_knows_all, calls), f"node {node} knows the others")

    def wait_whole(self) -> None:
        """Wait until every node knows that all replicas are in sync; then have the preferred leaders lead."""
        for is_elected in (False, True):
            for node, calls in self._each():
                self.wait_until(partial(_all_in_sync, calls), f"node {node}: replicas in sync")
            if not is_elected:
                self._elect_preferred()

    def _elect_preferred(self) -> None:
        admin = AdminClient(client(self))
        with suppress(confluent_kafka.KafkaException):  # where all lead already
            admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, None).result(WITHIN_S)

    def new_topic(self, name: str, leaders: Sequence[int]) -> None:
        """Make a topic with a partition for each of the leaders, and wait until all nodes know that they lead."""
        replicas = [[leader, *(node for node in NODES if node != leader)] for leader in leaders]
        new_topic(self, name, replicas=replicas)
        for node, calls in self._each():
            self.wait_until(partial(_are_led_by, calls, name, [*leaders]), f"node {node}: leaders of {name}")

    def _each(self) -> Iterator[tuple[int, Calls]]:
        for node, address in self.addresses.items():
            with closing(Calls(address, PROBE_TIMEOUT_S)) as calls:
                yield node, calls


def _knows_all(calls: Calls) -> bool:
    return brokers(calls) == set(NODES)


def _all_in_sync(calls: Calls) -> bool:
    return all(len(one.in_sync) == len(NODES) and one.leader > 0 for one in partitions(calls).values())


def _are_led_by(calls: Calls, topic: str, leaders: list[int]) -> bool:
    return [led.leader for led in partitions(calls, topic).values()] == leaders


def _reaped(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class KafkaCluster(Cluster):
    """Combined nodes (KRaft) as released, but for replication; with `fsync` they sync each append."""

    def __init__(self, root: str, *, fsync: bool) -> None:
        folders = {node: f"{root}/kafka-{node}" for node in NODES}
        found = apache_kafka.prepare_cluster([*folders.values()], fsync=fsync, settings=KAFKA_SETTINGS)
        super().__init__(KAFKA, folders, dict(zip(NODES, found, strict=True)))

    def _spawn(self, node: int) -> subprocess.Popen[bytes]:
        return apache_kafka.start_prepared(self._folders[node], self.addresses[node]).process


class SemelCluster(Cluster):
    """Nodes with their metadata in PostgreSQL, where that is installed; else in one SQLite file."""

    def __init__(self, root: str, database: RunningPostgresql | None, durability: str) -> None:
        ports = free_ports(3 * len(NODES))
        addresses = {node: ("127.0.0.1", ports.pop()) for node in NODES}
        super().__init__(SEMEL, {node: f"{root}/semel-{node}" for node in NODES}, addresses)
        self._own_ports = {node: (ports.pop(), ports.pop()) for node in NODES}
        self._database = database
        secret = Path(root, "secret")
        secret.write_bytes(os.urandom(48))
        secret.chmod(0o600)
        if database is None:
            url = sqlite_url(f"{root}/cluster.sqlite")
        else:
            name = f"bench_{os.urandom(6).hex()}"
            new_database(database.folder, name)
            url = f"postgresql+psycopg://semel@/{name}?host={database.folder}"
        self._settings = {
            **REPLICATION,
            **({} if durability == DEFAULTS else {"durability": durability}),
            "metadata.url": url,
            "cluster.secret.file": secret,
        }

    def _spawn(self, node: int) -> subprocess.Popen[str]:
        grpc, peer = self._own_ports[node]
        settings = {**self._settings, "node.id": node, "peer.listen": f"127.0.0.1:{peer}"}
        kafka = f"127.0.0.1:{self.addresses[node][1]}"
        return spawn_node(self._folders[node], settings, kafka=kafka, grpc=f"127.0.0.1:{grpc}")

    def cpu_s(self) -> float:
        return super().cpu_s() + (0.0 if self._database is None else _tree_cpu_s(self._database.pid))

    def more_memory_mb(self) -> float:
        """Return PostgreSQL's, with what its processes share counted once."""
        if self._database is None:
            return 0.0
        return sum(_proportional_mb(pid) for pid in [self._database.pid, *_children(self._database.pid)])


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _tree_cpu_s(pid: int) -> float:
    """Return the CPU of a process, of its children, and of those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = process_cpu_s(pid) + (int(fields[13]) + int(fields[14])) / TICKS
    for child in _children(pid):
        with suppress(OSError):
            total += process_cpu_s(child)
    return total


def _proportional_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    return 0.0


Pair = Mapping[str, Cluster]
"""Both clusters by name, in the order of their turns: Semel first."""


@contextmanager
def database() -> Iterator[RunningPostgresql | None]:
    """Run PostgreSQL with its own defaults; None where it is not installed."""
    with ExitStack() as stack:
        found: RunningPostgresql | None = None
        with suppress(PostgresqlMissingError):
            found = stack.enter_context(running_postgresql())
        yield found


@contextmanager
def running_pair(kind: str, postgresql: RunningPostgresql | None, names: Sequence[str]) -> Iterator[Pair]:
    """Run both clusters on empty directories, which go away with them.

    kind: OS or DISK, which both promise then, or DEFAULTS
    """
    root = tempfile.mkdtemp(prefix="semel-bench-", dir=os.environ.get("SEMEL_BENCH_DIR"))
    pair: dict[str, Cluster] = {}
    try:
        for name in names:
            if name == SEMEL:
                pair[name] = SemelCluster(root, postgresql, kind)
            else:
                pair[name] = KafkaCluster(root, fsync=kind == DISK)
        for cluster in pair.values():
            cluster.start(*NODES)
        for cluster in pair.values():
            cluster.wait_met()
            cluster.new_topic(FIRST, NODES)
        yield pair
    finally:
        for cluster in pair.values():
            cluster.close()
        shutil.rmtree(root, ignore_errors=True)
