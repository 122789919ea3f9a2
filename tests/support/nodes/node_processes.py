"""A cluster of `semel serve` processes, by default on one SQLite file of metadata, to be killed, frozen and started."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from everything_diskless import diskless_settings
from sound_data import CLUSTER_METADATA
from two_nodes import secret_file

import semel
from semel.broker.metadata.store import sqlite_url
from semel.protocol.ids import TRANSACTIONS_TOPIC
from semel.runtime.keys import partition_for_key
from semel.runtime.ports import lasting_address

READY = re.compile(r"ready: kafka (?P<kafka>[\d.]+:\d+) grpc (?P<grpc>[\d.]+:\d+) ")
SETTINGS: dict[str, Any] = {
    "broker.session.timeout.ms": 5_000,
    "broker.heartbeat.interval.ms": 300,
    "controller.lease.ms": 5_000,
    "default.replication.factor": 3,
    "disk.min.free.bytes": 0,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    **diskless_settings(),
}
WITHIN_S = 180.0
UNLOCKED_S = 2.0
"""Longer than a node that runs keeps the file of metadata locked."""


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds, or fail the test."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def is_in_sync(partition: semel.PartitionDescription, node_ids: Collection[int]) -> bool:
    """Whether all these nodes are replicas in sync. Of a diskless partition, which has one: whether one leads it."""
    if len(partition.replicas) == 1:
        return partition.leader_id in node_ids
    return set(partition.isr) == set(node_ids) and partition.leader_id > 0


class NodeProcesses:
    """Nodes by number. Each listens on the same ports after another start."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._settings = {
            **SETTINGS,
            "metadata.url": sqlite_url(str(folder / CLUSTER_METADATA)),
            **settings,
            "cluster.secret.file": secret_file(folder),
        }
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._frozen: set[int] = set()
        self.kafka: dict[int, str] = {}
        self.grpc: dict[int, str] = {}

    def start(self, *node_ids: int, options: Sequence[str] = ()) -> None:
        """Start nodes, all at once, and wait until they are ready. `options`: of the command, besides settings.

        Where one does not get ready, all are ended: a fixture that starts them as it is made is never closed.
        """
        try:
            for node_id in node_ids:
                self._spawn(node_id, *options)
            for node_id in node_ids:
                self._wait_ready(node_id)
        except BaseException:
            self.close()
            raise

    def start_in_vain(self, node_id: int, *options: str) -> tuple[int, str]:
        """Start a node that ends before it is ready. Returns its exit code, and what it has told."""
        before = len(self.log(node_id))
        self._spawn(node_id, *options)
        code = self.wait_ended(node_id)
        return code, self.log(node_id)[before:]

    def wait_ended(self, node_id: int) -> int:
        """Wait until a node has ended, and return its exit code."""
        process = self._processes.pop(node_id)
        told, _ = process.communicate(timeout=WITHIN_S)
        assert "ready" not in told
        return process.returncode

    def kill(self, *node_ids: int) -> None:
        """End nodes, all at once."""
        for node_id in node_ids:
            self._processes[node_id].send_signal(signal.SIGKILL)
        for node_id in node_ids:
            self._end(node_id, signal.SIGKILL)

    def stop(self, node_id: int) -> None:
        """End a node as an operator does, who lets it hand over what it leads."""
        self._end(node_id, signal.SIGTERM)

    def freeze(self, node_id: int) -> None:
        """Let it be silent: its connections stay, and nothing is answered.

        Not while it has the file of metadata locked: nobody could elect others, and that is no node's fault.
        """
        self._frozen.add(node_id)
        self._processes[node_id].send_signal(signal.SIGSTOP)
        while self._metadata_is_locked():
            self._processes[node_id].send_signal(signal.SIGCONT)
            time.sleep(0.05)
            self._processes[node_id].send_signal(signal.SIGSTOP)

    def thaw(self, node_id: int) -> None:
        self._processes[node_id].send_signal(signal.SIGCONT)
        self._frozen.discard(node_id)

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as programs get them; some may be away."""
        return ",".join(self.grpc.values())

    def leader(self, topic: str, partition: int) -> int:
        """Return who leads a partition, as those that answer know it; 0 or less: nobody."""
        return self.partition(topic, partition).leader_id

    def partition(self, topic: str, partition: int, *, but: int = 0) -> semel.PartitionDescription:
        """Return what is known of a partition by those that answer; the node `but` is not asked."""
        asked = [self.grpc[one] for one in self._processes if one not in self._frozen and one != but]
        with semel.Admin(asked) as admin:
            return admin.topic(topic).partitions[partition]

    def coordinator(self, key: str) -> int:
        """Return who coordinates the transactions of an id, or of a key of shared ones."""
        count = int(self._settings["transaction.state.log.num.partitions"])
        return self.leader(TRANSACTIONS_TOPIC, partition_for_key(key, count))

    def wait_replaced(self, node_id: int) -> None:
        """Wait until a node that was killed or frozen leads nothing any more, as each of the others knows.

        One of them may know later than another, and the next question may go to that one.
        """

        def is_replaced(admin: semel.Admin) -> bool:
            topics = admin.topics(include_internal=True)
            led = {one.leader_id for topic in topics for one in topic.partitions}
            return min(led, default=0) > 0 and node_id not in led

        for other in self._processes:
            if other not in self._frozen:
                with semel.Admin(self.grpc[other]) as admin:
                    wait_for(partial(is_replaced, admin), f"others lead for node {node_id}, as node {other} knows")

    def have_back(self, node_id: int) -> None:
        """Let a node continue that was frozen, or start it again."""
        if node_id in self._frozen:
            self.thaw(node_id)
        else:
            self.start(node_id)

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(self._processes)

    def log(self, node_id: int) -> str:
        return (self.folder / f"node-{node_id}.log").read_text()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.communicate(timeout=30)
        self._processes.clear()

    def chosen(self, *options: str) -> list[str]:
        """Return a `program` whose disk or clock is the tests' own (`chosen_node.py`)."""
        return [sys.executable, str(Path(__file__).with_name("chosen_node.py")), *options]

    def data_dir(self, node_id: int) -> Path:
        return self.folder / f"node{node_id}"

    def program(self, node_id: int) -> list[str]:
        """Return what runs a node, before `serve` and its settings."""
        return [sys.executable, "-P", "-m", "semel.cli"]

    def listens(self, node_id: int) -> dict[str, str]:
        """Return the settings of a node's addresses."""
        return {
            "kafka.listen": self.kafka.get(node_id) or lasting_address("127.0.0.1:0"),
            "grpc.listen": self.grpc.get(node_id) or lasting_address("127.0.0.1:0"),
            "peer.listen": "127.0.0.1:0",
        }

    def environment(self, node_id: int) -> dict[str, str]:
        """Return the variables that a node gets."""
        return {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}

    def options(self, node_id: int) -> list[str]:
        """Return what follows `serve`: a node's settings."""
        own = {"node.id": node_id, "data.dir": self.data_dir(node_id), **self.listens(node_id)}
        return [text for name, value in (self._settings | own).items() for text in ("--set", f"{name}={value}")]

    def _spawn(self, node_id: int, *options: str) -> None:
        with (self.folder / f"node-{node_id}.log").open("a") as log:
            self._processes[node_id] = subprocess.Popen(
                [*self.program(node_id), "serve", *options, *self.options(node_id)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment(node_id),
            )

    def _wait_ready(self, node_id: int) -> None:
        process = self._processes[node_id]
        assert process.stdout is not None
        line = process.stdout.readline()
        found = READY.match(line)
        assert found, line + self.log(node_id)
        self.kafka[node_id], self.grpc[node_id] = found["kafka"], found["grpc"]

    def _metadata_is_locked(self) -> bool:
        """Whether a process holds on to the file of metadata; without such a file, none does."""
        path = self.folder / CLUSTER_METADATA
        if not path.exists():
            return False
        with closing(sqlite3.connect(path, timeout=UNLOCKED_S, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False

    def _end(self, node_id: int, number: signal.Signals) -> None:
        process = self._processes.pop(node_id)
        self._frozen.discard(node_id)
        process.send_signal(number)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)


@contextmanager
def node_processes(folder: Path, count: int = 3, **settings: Any) -> Iterator[NodeProcesses]:
    """Run a cluster of `count` nodes, numbered from 1."""
    nodes = NodeProcesses(folder, **settings)
    try:
        nodes.start(*range(1, count + 1))
        yield nodes
    finally:
        nodes.close()
