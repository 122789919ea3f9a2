"""Runs sinks or relays as processes while they, their node and their database are killed at seeded random points."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from database_servers import DatabaseServer
from node_processes import NodeProcesses
from sql_worker import DEAD, SOURCE

import semel
from semel.cli.demo.processes import NodeProcess

SUPPORT = Path(__file__).parent
PARTITIONS = 3
KEYS = 7
PATIENCE_S = 90.0


class OneNode:
    """The log that is one node, which is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._node = NodeProcess(
            folder / "data", settings=["offsets.topic.num.partitions=2", "transaction.state.log.num.partitions=2"]
        )
        self.bootstrap = self._node.bootstrap

    def start(self) -> None:
        self._node.start()

    def strike(self, fault: str, draw: random.Random) -> None:
        assert fault == "node"
        self._node.kill()
        time.sleep(draw.uniform(0.0, 0.5))
        self._node.start()

    def stop(self) -> None:
        self._node.stop()


class ManyNodes:
    """The log that is a cluster: any of its nodes is killed, frozen or stopped until others lead what it led."""

    def __init__(self, nodes: NodeProcesses) -> None:
        self._nodes = nodes
        self.bootstrap = nodes.bootstrap

    def start(self) -> None:
        """They run already."""

    def strike(self, fault: str, draw: random.Random) -> None:
        """`fault` is "node", for killing one, or "node-freeze" or "node-stop"."""
        victim = draw.choice(sorted(self._nodes.grpc))
        getattr(self._nodes, fault.removeprefix("node-") if fault != "node" else "kill")(victim)
        self._nodes.wait_replaced(victim)
        self._nodes.have_back(victim)

    def stop(self) -> None:
        """Whoever has started them ends them."""


class Cast:
    """One node or a cluster, its topics, and two instances of `sql_worker.py`. Ends what it started."""

    def __init__(
        self,
        folder: Path,
        what: str,
        url: str,
        server: DatabaseServer | None,
        *,
        nodes: NodeProcesses | None = None,
        static: bool = True,
        fault: str | None = None,
    ) -> None:
        """`nodes` are a cluster; None: one node of its own. `fault` is one that the workers plant in themselves.

        static: whether a worker that is started again has the name in the group, and the partitions, of the one before
        """
        self._log_of_records = OneNode(folder) if nodes is None else ManyNodes(nodes)
        self.bootstrap = self._log_of_records.bootstrap
        self.server = server
        self.url = url
        self._what = what
        self._static = static
        self._more = () if fault is None else ("--fault", fault, "--killed", str(folder / "killed"))
        self._log = (folder / "workers.log").open("ab")
        self.log_path = folder / "workers.log"
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._log_of_records.start()
        with semel.Admin(self.bootstrap) as admin:
            admin.create_topic(SOURCE, partitions=PARTITIONS)
            admin.create_topic(DEAD, partitions=1)
        return self

    def start_workers(self) -> None:
        """Start those of the two that do not run."""
        for number in range(2):
            process = self._running.get(number)
            if process is None or process.poll() is not None:
                command = [sys.executable, "-P", str(SUPPORT / "sql_worker.py"), self._what, "--url", self.url]
                command += ["--bootstrap", self.bootstrap]
                command += ["--instance", f"i{number}"] if self._static else []
                self._running[number] = subprocess.Popen([*command, *self._more], stdout=self._log, stderr=self._log)

    def strike(self, seed: int, faults: list[str], pause_s: tuple[float, float] = (0.7, 2.2)) -> None:
        """Do each of `faults`, in an order and at moments that `seed` draws."""
        draw = random.Random(seed)
        draw.shuffle(faults)
        for fault in faults:
            time.sleep(draw.uniform(*pause_s))
            self.start_workers()
            if fault == "worker":
                process = self._running[draw.randrange(2)]
                process.kill()
                process.wait(20)
            elif fault == "freeze":  # who is started in its place has the same static id: this is a zombie now
                number = draw.randrange(2)
                process = self._running.pop(number)
                process.send_signal(signal.SIGSTOP)
                self._frozen.append(process)
            elif fault == "database":
                assert self.server is not None
                self.server.kill()
                time.sleep(draw.uniform(0.0, 0.5))
                self.server.start()
            else:
                self._log_of_records.strike(fault, draw)
        self.start_workers()

    def thaw(self) -> None:
        """Wake the zombies up."""
        for process in self._frozen:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}:\n{self.log_tail()}"
            self.start_workers()
            time.sleep(0.2)

    def zombies_end(self) -> list[int]:
        """Wait for the end of those that were woken up, and return how they ended."""
        return [process.wait(60) for process in self._frozen]

    def log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-60:])

    def stop_workers(self) -> None:
        """As a person would: SIGTERM. One that was only starting dies of it."""
        running = [process for process in self._running.values() if process.poll() is None]
        for process in running:
            process.terminate()
        for process in running:
            assert process.wait(60) in (0, -signal.SIGTERM), self.log_tail()

    def __exit__(self, *_: object) -> None:
        for process in [*self._running.values(), *self._frozen]:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait(20)
        self._log.close()
        self._log_of_records.stop()


class Feeder(threading.Thread):
    """Sends numbered values, by key, until `finish`; some are no JSON, and some the database refuses."""

    def __init__(self, bootstrap: str, *, with_poison: bool) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self._with_poison = with_poison
        self._stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with semel.Producer(self._address, linger_ms=1, connect_timeout_ms=60_000) as producer:
                number = 0
                while not self._stopping.wait(0.002):
                    value = json.dumps({"n": number})
                    if self._with_poison and number % 50 == 7:
                        value = f"poison {number}"
                    if self._with_poison and number % 50 == 9:
                        value = json.dumps({"n": -number})  # the table has a CHECK
                    producer.send(SOURCE, value, key=f"k{number % KEYS}")
                    number += 1
                producer.flush(60)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._stopping.set()
        self.join(90)
        assert not self.is_alive(), "the feeder's flush did not end"
        if self.error is not None:
            raise self.error


def read_all(bootstrap: str, topic: str, partitions: int) -> list[semel.Record]:
    """Return every committed record of a topic."""
    tps = [semel.TopicPartition(topic, number) for number in range(partitions)]
    records: list[semel.Record] = []
    with semel.Consumer(bootstrap, connect_timeout_ms=60_000) as reader:
        reader.assign(tps)
        ends = reader.end_offsets(tps)
        while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
            records += reader.poll(0.2) or ()
    return records
