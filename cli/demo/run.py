"""One run of the demo: load flights, run the pipeline, kill what runs again and again, until all is worked off."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from semel.cli.demo.flights import Flight
from semel.cli.demo.judge import Verdict, judge
from semel.cli.demo.processes import Ensemble
from semel.cli.demo.worker import ENRICHED, GROUP, INPUT, PER_CARRIER
from semel.protocol.errors import FatalError, SemelError
from semel.sdk.admin.api import Admin
from semel.sdk.producer.api import Producer

PARTITIONS = 6
LOOK_EVERY_S = 0.1
STALL_S = 90.0
THAW_AFTER_S = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does. Kills are spread over the progress, so that a fast machine gets as many as a slow one."""

    mode: str
    instances: int
    instance_kills: int
    node_kills: int
    zombies: int
    batch: int
    seed: int


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    verdict: Verdict
    events: Counter[str]
    node_kills: int
    instance_kills: int
    zombies: int
    load_s: float
    work_s: float
    down_s: list[float] = field(default_factory=list)


Progress = Callable[[str, int, int], None]
"""Called with what is being done, how far it is, and how far it has to go."""


def run(plan: Plan, flights: Sequence[Flight], folder: Path, progress: Progress) -> Outcome:
    """Do one run in `folder`, which must be empty. Raises `SemelError` where it can't be done."""
    with Ensemble(folder, instances=plan.instances, mode=plan.mode, batch=plan.batch) as ensemble:
        progress("starting a node", 0, 1)
        ensemble.node.start()
        began = time.monotonic()
        _load(ensemble.node.bootstrap, flights, progress)
        load_s = time.monotonic() - began
        began = time.monotonic()
        chaos = _Chaos(plan, ensemble)
        _work(plan, ensemble, chaos, len(flights), progress)
        work_s = time.monotonic() - began
        for instance in ensemble.instances:
            instance.stop()
        isolation = "read_committed" if plan.mode == "exactly-once" else "read_uncommitted"
        verdict = judge(
            ensemble.node.bootstrap,
            flights,
            isolation=isolation,
            progress=lambda count: progress("reading the output", count, len(flights)),
        )
        return Outcome(
            verdict,
            ensemble.events,
            ensemble.node.kills,
            chaos.instance_kills,
            chaos.zombies,
            load_s,
            work_s,
            chaos.down_s,
        )


def _load(bootstrap: str, flights: Sequence[Flight], progress: Progress) -> None:
    with Admin(bootstrap) as admin:
        for topic in (INPUT, ENRICHED, PER_CARRIER):
            admin.create_topic(topic, partitions=PARTITIONS)
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
            if time.monotonic() - moved_at > STALL_S:
                raise FatalError(
                    f"nothing has moved for {STALL_S:.0f} s at {done} of {total}; the end of the node's log:\n"
                    f"{ensemble.node.log_tail()}"
                )


class _Chaos:
    """Kills at points of the progress that its seed has drawn, and starts again what it killed."""

    def __init__(self, plan: Plan, ensemble: Ensemble) -> None:
        draw = random.Random(plan.seed)  # noqa: S311 (repeatable, not secret)
        self._ensemble = ensemble
        self._draw = draw
        spread = [(draw.uniform(0.02, 0.95), "instance") for _ in range(plan.instance_kills)]
        spread += [(draw.uniform(0.05, 0.9), "node") for _ in range(plan.node_kills)]
        spread += [(draw.uniform(0.1, 0.8), "zombie") for _ in range(plan.zombies)]
        self._points = sorted(spread, reverse=True)
        self._thaw_at: float | None = None
        self.instance_kills = 0
        self.zombies = 0
        self.down_s: list[float] = []

    @property
    def is_unfinished(self) -> bool:
        """Whether a zombie sleeps still: it shall wake while others do its work."""
        return self._thaw_at is not None

    def act(self, progress: float) -> None:
        """Do what is due at this progress, and start again what lies dead."""
        if self._thaw_at is not None and time.monotonic() >= self._thaw_at:
            self._thaw_at = None
            for instance in self._ensemble.instances:
                instance.thaw()
        while self._points and self._points[-1][0] <= progress:
            _, what = self._points.pop()
            self._strike(what)
        for instance in self._ensemble.instances:
            if not instance.is_running:
                instance.start()

    def _strike(self, what: str) -> None:
        if what == "node":
            began = time.monotonic()
            self._ensemble.node.kill()
            self._ensemble.node.start()
            self.down_s.append(time.monotonic() - began)
            return
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
