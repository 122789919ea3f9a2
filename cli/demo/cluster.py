"""The demo's cluster: three nodes, and what is done to them while the pipeline runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.cli.demo.bill import Bill, Meter
from semel.cli.demo.database import DemoDatabase
from semel.cli.demo.interrupted_link import InterruptedLink, Link
from semel.cli.demo.object_store import DemoStore
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import SemelError
from semel.runtime.ports import free_ports
from semel.sdk.admin.api import Admin
from semel.sdk.producer.api import Producer

NODES: Final = 3
PROBE_TOPIC: Final = "probe"
_DOWN_S: Final = 2.5
"""So long a node stays away: its session is over by then."""
_FROZEN_S: Final = 4.0
_CUT_S: Final = 4.0
_AWAY_S: Final = 3.0
_ALONE_S: Final = 9.0
"""Longer than a node without the database may lead on: three sessions."""
_HEAL_S: Final = 60.0
STRIKES: Final = ("kill", "freeze", "cut", "unhook", "database", "lose")
DISKLESS_STRIKES: Final = ("lose",)
"""What is done to nodes that have nothing of their own."""
SAYS: Final = {
    "kill": "one is ended by SIGKILL",
    "freeze": f"one is frozen for {_FROZEN_S:g} s",
    "cut": f"one is cut off from the others for {_CUT_S:g} s",
    "unhook": f"one is cut off from the database for {_ALONE_S:g} s",
    "database": f"the database is killed, for all, for {_AWAY_S:g} s",
    "lose": "one is ended by SIGKILL and starts again empty",
}


class DemoNode(NodeProcess):
    """One node of the cluster, whom the others reach by a link that can be cut.

    to_database: the link by which it reaches the database; None: the database is a file
    """

    def __init__(self, folder: Path, node_id: int, url: str, to_database: Link | None, secret: Path) -> None:
        (peer_port,) = free_ports(1)
        self.node_id = node_id
        self.metadata_url = url
        self.to_database = to_database
        self.link = InterruptedLink(peer_port)
        super().__init__(
            folder / f"node-{node_id}",
            settings=(
                f"node.id={node_id}",
                f"metadata.url={url}",
                f"cluster.secret.file={secret}",
                f"peer.listen=127.0.0.1:{peer_port}",
                f"peer.advertised=127.0.0.1:{self.link.port}",
            ),
            environment=DemoStore.ENVIRONMENT,
        )
        self._log_path = folder / f"node-{node_id}.log"

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


@dataclass(frozen=True, slots=True)
class Strike:
    """What was done to a node, or to all: one of `STRIKES`.

    begun_s, ended_s: by the monotonic clock, until all replicas were in sync again
    """

    what: str
    begun_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Probed:
    """When a record was sent, by the monotonic clock, and how long its acknowledgement took."""

    at_s: float
    took_s: float


class DemoCluster:
    """Three nodes as the demo sees them. What was broken is repaired in the background, before the next fault."""

    def __init__(self, folder: Path, store: DemoStore | None = None) -> None:
        """`store` has the records of all topics, which are diskless then. None: nodes have them, all three of them."""
        folder.mkdir(parents=True, exist_ok=True)
        self.store = store
        self._meter = Meter()
        binaries = DemoDatabase.find()
        self.database = None if binaries is None else DemoDatabase(binaries)
        file_url = f"sqlite:///{folder}/metadata.sqlite"
        secret = folder / "cluster.secret"
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(24).hex())
        self.nodes = []
        for number in range(1, NODES + 1):
            url, link = (file_url, None) if self.database is None else self.database.link()
            self.nodes.append(DemoNode(folder, number, url, link, secret))
        self.strikes: list[Strike] = []
        self._repairing: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        if self.database is not None:
            self.database.make()
        if self.store is not None:
            self.store.start()
        for node in self.nodes:
            for setting in self._topic_settings():
                node.add_setting(setting)
        starts = [threading.Thread(target=self._start_one, args=(node,)) for node in self.nodes]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        self._raise_failure()

    def _topic_settings(self) -> tuple[str, ...]:
        if self.store is None:
            return f"default.replication.factor={NODES}", f"min.insync.replicas={NODES - 1}"
        # Nodes that are back lead something at the next look: here that is not in five minutes.
        quick = "leader.imbalance.check.interval.seconds=1"
        return f"remote.storage.url={self.store.url}", "log.diskless.enable=true", quick

    def _start_one(self, node: NodeProcess) -> None:
        try:
            node.start()
        except (SemelError, OSError) as error:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def is_whole(self) -> bool:
        """Whether all nodes are well now."""
        return self._repairing is None or not self._repairing.is_alive()

    def strike(self, what: str, number: int) -> bool:
        """Do one of `STRIKES` to a node, unless another is still on its way. Returns whether it was done."""
        self._raise_failure()
        if not self.is_whole:
            return False
        if what in ("database", "unhook") and self.database is None:
            what = "freeze"
        node = self.nodes[number % NODES]
        self._repairing = threading.Thread(target=self._strike, args=(what, node), daemon=True)
        self._repairing.start()
        return True

    def _strike(self, what: str, node: DemoNode) -> None:
        begun = time.monotonic()
        try:
            if what in ("kill", "lose"):
                if self.store is not None:
                    self._meter.read(self.bootstrap, node.node_id)
                node.kill()
                if what == "lose":
                    shutil.rmtree(node.data_dir)
                time.sleep(_DOWN_S)
                node.start()
            elif what == "freeze":
                node.signal(signal.SIGSTOP)
                time.sleep(_FROZEN_S)
                node.signal(signal.SIGCONT)
            elif what == "cut":
                node.link.cut()
                time.sleep(_CUT_S)
                node.link.heal()
            elif what == "unhook" and node.to_database is not None:
                node.to_database.cut()
                time.sleep(_ALONE_S)
                node.to_database.heal()
            elif self.database is not None:
                self.database.kill()
                time.sleep(_AWAY_S)
                self.database.start()
            self._wait_until_in_sync()
            self.strikes.append(Strike(what, begun, time.monotonic()))
        except (SemelError, OSError, subprocess.SubprocessError) as error:
            self._failure = error

    def _wait_until_in_sync(self) -> None:
        """Let all replicas be in sync again: two nodes at once are more than three can lose. Diskless partitions have
        one replica, which has to have a leader; so that the next one that is killed leads something, all of them do.
        """
        deadline = time.monotonic() + _HEAL_S
        with Admin(self.bootstrap, api_timeout_ms=2_000) as admin:
            while time.monotonic() < deadline:
                with suppress(SemelError):
                    partitions = [
                        one
                        for topic in admin.topics(include_internal=self.store is not None)
                        for one in topic.partitions
                    ]
                    are_in_sync = all(len(one.isr) == len(one.replicas) for one in partitions)
                    leaders = {one.leader_id for one in partitions}
                    if are_in_sync and (self.store is None or leaders == {node.node_id for node in self.nodes}):
                        return
                time.sleep(0.2)

    def bill(self) -> Bill | None:
        """Return what was asked of the store until now; None where there is none. Raises `SemelError`."""
        if self.store is None:
            return None
        return self._meter.bill(self.bootstrap, {node.node_id for node in self.nodes}, self.nodes[0].metadata_url)

    def log_tail(self) -> str:
        return "\n".join(f"node {number}:\n{node.log_tail(8)}" for number, node in enumerate(self.nodes, start=1))

    def stop(self) -> None:
        if self._repairing is not None:
            self._repairing.join(_HEAL_S)
        stops = [threading.Thread(target=node.stop) for node in self.nodes]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        for node in self.nodes:
            node.link.close()
        if self.store is not None:
            self.store.stop()
        if self.database is not None:
            self.database.remove()


class Probe:
    """Sends a record every so often, acknowledged by all replicas in sync, and notes how long each took."""

    EVERY_S: Final = 0.05

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.probed: list[Probed] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join(_HEAL_S)

    def _run(self) -> None:
        with Producer(self._bootstrap, linger_ms=0) as producer:
            while not self._stops.wait(self.EVERY_S):
                begun = time.monotonic()
                with suppress(SemelError):
                    producer.send(PROBE_TOPIC, b"probe").result()
                self.probed.append(Probed(begun, time.monotonic() - begun))


def pauses(strikes: Iterable[Strike], probed: Iterable[Probed]) -> dict[str, list[float]]:
    """Return how long acknowledgements took at most during each strike, in seconds, by what was done."""
    found: dict[str, list[float]] = {}
    known = list(probed)
    for strike in strikes:
        meanwhile = [
            one.took_s for one in known if one.at_s < strike.ended_s and one.at_s + one.took_s > strike.begun_s
        ]
        found.setdefault(strike.what, []).append(max(meanwhile, default=0.0))
    return found
