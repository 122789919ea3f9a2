"""One run of the demo: load flights, run the pipeline, kill what runs again and again, until all is worked off."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from semel.cli.demo.bill import Bill
from semel.cli.demo.cluster import DISKLESS_STRIKES, NODES, PROBE_TOPIC, STRIKES, DemoCluster, Probe, pauses
from semel.cli.demo.flights import Flight
from semel.cli.demo.judge import Verdict, judge
from semel.cli.demo.object_store import DemoStore
from semel.cli.demo.processes import Ensemble, NodeProcess
from semel.cli.demo.worker import ENRICHED, GROUP, INPUT, PER_CARRIER
from semel.protocol.errors import FatalError, SemelError
from semel.sdk.admin.api import Admin
from semel.sdk.producer.api import Producer

PARTITIONS = 6
LOOK_EVERY_S = 0.1
STALL_S = 90.0
THAW_AFTER_S = 1.5
CLUSTER_LOAD_S = 75.0
"""So long flights come while nodes of a cluster fail: each fault and its repair takes seconds."""


class Kind(Enum):
    """What the pipeline runs on: one node, three that replicate, or three whose records are in an object store."""

    NODE = "node"
    CLUSTER = "cluster"
    DISKLESS = "diskless"

    @property
    def node_kills(self) -> int:
        """How often something is done to a node, unless somebody says otherwise."""
        return {Kind.NODE: 5, Kind.CLUSTER: len(STRIKES), Kind.DISKLESS: 12}[self]

    @property
    def strikes(self) -> tuple[str, ...]:
        """What is done to the nodes of a cluster."""
        return DISKLESS_STRIKES if self is Kind.DISKLESS else STRIKES


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does. Kills are spread over the progress, so that a fast machine gets as many as a slow one.

    strikes: what is done to a cluster's nodes, one after the other and again from the first; empty: as its kind says
    load_s:  so long flights come to a cluster
    """

    mode: str
    instances: int
    instance_kills: int
    node_kills: int
    zombies: int
    batch: int
    seed: int
    kind: Kind = Kind.NODE
    strikes: tuple[str, ...] = ()
    load_s: float = CLUSTER_LOAD_S


@dataclass(slots=True)
class Outcome:
    """What came of a run.

    down_s:   how long a node that is alone was away, each time
    pauses_s: what was done to nodes of a cluster, by `cluster.STRIKES`, and how long clients waited each time at most
    probes_s: how long each record of a probe took to be acknowledged, with and without faults
    database: what has the nodes' metadata
    bill:     what was asked of the object store, where topics are diskless
    """

    verdict: Verdict
    events: Counter[str]
    node_kills: int
    instance_kills: int
    zombies: int
    load_s: float
    work_s: float
    down_s: list[float] = field(default_factory=list)
    pauses_s: dict[str, list[float]] = field(default_factory=dict)
    probes_s: list[float] = field(default_factory=list)
    database: str = ""
    bill: Bill | None = None


Progress = Callable[[str, int, int], None]
"""Called with what is being done, how far it is, and how far it has to go."""


def run(plan: Plan, flights: Sequence[Flight], folder: Path, progress: Progress) -> Outcome:
    """Do one run in `folder`, which must be empty. Raises `SemelError` where it can't be done."""
    if plan.kind is not Kind.NODE:
        return _run_on_cluster(plan, flights, folder, progress)
    node = NodeProcess(folder / "data")
    with Ensemble(node, folder, instances=plan.instances, mode=plan.mode, batch=plan.batch) as ensemble:
        progress("starting a node", 0, 1)
        node.start()
        began = time.monotonic()
        _create_topics(node.bootstrap)
        _load(node.bootstrap, flights, progress)
        load_s = time.monotonic() - began
        began = time.monotonic()
        down_s: list[float] = []

        def kill(_number: int) -> bool:
            began = time.monotonic()
            node.kill()
            node.start()
            down_s.append(time.monotonic() - began)
            return True

        chaos = _Chaos(plan, ensemble, kill)
        _work(plan, ensemble, chaos, len(flights), progress)
        work_s = time.monotonic() - began
        for instance in ensemble.instances:
            instance.stop()
        verdict = _judge(plan, node.bootstrap, flights, progress)
        return Outcome(
            verdict, ensemble.events, node.kills, chaos.instance_kills, chaos.zombies, load_s, work_s, down_s
        )


def _run_on_cluster(plan: Plan, flights: Sequence[Flight], folder: Path, progress: Progress) -> Outcome:
    """Do one run on several nodes. Flights come while the pipeline runs, so that it meets all that is done to them."""
    cluster = DemoCluster(folder, DemoStore(folder / "objects") if plan.kind is Kind.DISKLESS else None)
    with Ensemble(cluster, folder, instances=plan.instances, mode=plan.mode, batch=plan.batch) as ensemble:
        progress(f"starting {NODES} nodes", 0, 1)
        cluster.start()
        _create_topics(cluster.bootstrap)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(PROBE_TOPIC, partitions=NODES)
        began = time.monotonic()
        loading = threading.Thread(target=_load_slowly, args=(cluster.bootstrap, flights, plan.load_s), daemon=True)
        loading.start()
        probe = Probe(cluster.bootstrap)
        probe.start()
        kinds = itertools.cycle(plan.strikes or plan.kind.strikes)
        next_kind = next(kinds)

        def strike(number: int) -> bool:
            nonlocal next_kind
            if not cluster.strike(next_kind, number):
                return False
            next_kind = next(kinds)
            return True

        chaos = _Chaos(plan, ensemble, strike, lambda: cluster.is_whole)
        _work(plan, ensemble, chaos, len(flights), progress)
        work_s = time.monotonic() - began
        probe.stop()
        loading.join()
        for instance in ensemble.instances:
            instance.stop()
        verdict = _judge(plan, cluster.bootstrap, flights, progress)
        return Outcome(
            verdict,
            ensemble.events,
            sum(node.kills for node in cluster.nodes),
            chaos.instance_kills,
            chaos.zombies,
            0.0,
            work_s,
            pauses_s=pauses(cluster.strikes, probe.probed),
            probes_s=[one.took_s for one in probe.probed],
            database="SQLite" if cluster.database is None else "PostgreSQL",
            bill=cluster.bill(),
        )


def _judge(plan: Plan, bootstrap: str, flights: Sequence[Flight], progress: Progress) -> Verdict:
    return judge(
        bootstrap,
        flights,
        isolation="read_committed" if plan.mode == "exactly-once" else "read_uncommitted",
        progress=lambda count: progress("reading the output", count, len(flights)),
    )


def _create_topics(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        for topic in (INPUT, ENRICHED, PER_CARRIER):
            admin.create_topic(topic, partitions=PARTITIONS)


def _load_slowly(bootstrap: str, flights: Sequence[Flight], seconds: float) -> None:
    began = time.monotonic()
    with Producer(bootstrap, compression="lz4", linger_ms=5) as producer:
        for count, flight in enumerate(flights):
            producer.send(INPUT, key=flight.key, value=flight.value)
            if count % 100 == 0:
                time.sleep(max(0.0, began + seconds * count / len(flights) - time.monotonic()))
        producer.flush()


def _load(bootstrap: str, flights: Sequence[Flight], progress: Progress) -> None:
    with Producer(bootstrap, compression="lz4", linger_ms=5) as producer:
        for count, flight in enumerate(flights):
            producer.send(INPUT, key=flight.key, value=flight.value)
            if count % 5_000 == 0:
                progress("loading flights", count, len(flights))
        producer.flush()
    progress("loading flights", len(flights), len(flights))


def _work(plan: Plan, ensemble: Ensemble, chaos: _Chaos, total: int, progress: Progress) -> None:
    for instance in ensemble.instances:
        instance.start()
    doing = "working, with crashes" if plan.instance_kills or plan.node_kills else "working"
    done = 0
    moved_at = time.monotonic()
    with Admin(ensemble.node.bootstrap, api_timeout_ms=2_000) as admin:
        while done < total or chaos.is_unfinished:
            time.sleep(LOOK_EVERY_S)
            chaos.act(done / total)
            try:
                committed = sum(max(0, place.offset) for place in admin.group_offsets(GROUP).values())
            except SemelError:
                committed = done  # the node is just coming back
            if committed != done:
                done, moved_at = committed, time.monotonic()
            progress(doing, done, total)
            if done < total and time.monotonic() - moved_at > STALL_S:
                raise FatalError(
                    f"nothing has moved for {STALL_S:.0f} s at {done} of {total}; the end of the node's log:\n"
                    f"{ensemble.node.log_tail()}"
                )


class _Chaos:
    """Kills at points of the progress that its seed has drawn, and starts again what it killed."""

    def __init__(
        self,
        plan: Plan,
        ensemble: Ensemble,
        strike_node: Callable[[int], bool],
        is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """`strike_node` is given a random number, and returns whether it could; is_whole: whether that is over."""
        draw = random.Random(plan.seed)  # noqa: S311 (repeatable, not secret)
        self._ensemble = ensemble
        self._strike_node = strike_node
        self._is_whole = is_whole
        self._draw = draw
        spread = [(draw.uniform(0.02, 0.95), "instance") for _ in range(plan.instance_kills)]
        spread += [(draw.uniform(0.05, 0.9), "node") for _ in range(plan.node_kills)]
        spread += [(draw.uniform(0.1, 0.8), "zombie") for _ in range(plan.zombies)]
        self._points = sorted(spread, reverse=True)
        self._thaw_at: float | None = None
        self.instance_kills = 0
        self.zombies = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether something is still to be done, a zombie sleeps still, or a node is not back yet."""
        return bool(self._points) or self._thaw_at is not None or not self._is_whole()

    def act(self, progress: float) -> None:
        """Do what is due at this progress, and start again what lies dead."""
        if self._thaw_at is not None and time.monotonic() >= self._thaw_at:
            self._thaw_at = None
            for instance in self._ensemble.instances:
                instance.thaw()
        while self._points and self._points[-1][0] <= progress:
            at, what = self._points.pop()
            if not self._strike(what):
                self._points.append((at, what))
                break
        for instance in self._ensemble.instances:
            if not instance.is_running:
                instance.start()

    def _strike(self, what: str) -> bool:
        if what == "node":
            return self._strike_node(self._draw.randrange(1_000))
        victim = self._draw.choice(self._ensemble.instances)
        if not victim.is_running:
            victim.start()
        if what == "zombie":
            victim.freeze()
            self.zombies += 1
            self._thaw_at = time.monotonic() + THAW_AFTER_S
        else:
            victim.kill()
            self.instance_kills += 1
        return True
