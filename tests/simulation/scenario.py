"""What the worlds of all seeds have in common: clients, faults, healing, and what comes of it."""

from __future__ import annotations

import itertools
import math
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar
from zlib import crc32

from history import Anomaly

from semel.runtime.simulated_storage import SimulatedCrash
from simulation.actors import Actor
from simulation.group_watch import SETTLE_S, GroupWatch
from simulation.ledger import Ledger
from simulation.loop import StuckError
from simulation.nemesis import Fault, Stage
from simulation.world import World

BUSY_S = 15.0
"""For how long there are faults."""
WAIT_STEPS = 16
"""After how many steps it is looked whether what is waited for has come."""
HEAL_S = 300.0
"""How long everybody may take to finish after that."""


@dataclass(slots=True)
class Verdict:
    """What came of one seed."""

    seed: int
    plan: tuple[Fault, ...]
    anomalies: list[Anomaly]
    story: list[tuple[float, str]] = field(default_factory=list)
    asked: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """What each client has asked last, and what it was answered."""
    seconds: float = 0.0
    steps: int = 0
    digest: int = 0
    """Equal for two runs that did the same."""
    batches: int = 0
    clients: tuple[str, ...] = ()
    """The clients that took part."""
    without: tuple[str, ...] = ()
    """Those that were left out."""
    about: list[str] = field(default_factory=list)
    """What was tried that the anomalies are about."""

    @property
    def is_clean(self) -> bool:
        return not self.anomalies


class Scenario(ABC):
    """One seed from its beginning to the verdict.

    heal_s:      how long one thing may take after everything has healed, such as that some programs finish
    end_s:       how long all of it may take
    look_steps:  after how many steps is checked what must hold at any time
    state_steps: after how many steps what a node holds is compared with what is stored
    """

    heal_s: ClassVar = HEAL_S
    end_s: ClassVar = HEAL_S
    look_steps: ClassVar = 16
    state_steps: ClassVar = 64 * 16

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.chance = random.Random(world.chance.getrandbits(64))
        self.ledger = Ledger(lambda: world.scheduler.now)
        self.plan: tuple[Fault, ...] = ()
        self.actors: list[Actor] = []
        self._ends_at = math.inf
        """When everything has to be over."""
        self.members: GroupWatch | None = None
        """Watches over the group of those whose only job is membership, where there are any."""

    def run(self, without: Collection[str] = ()) -> Verdict:
        """Run it to its verdict. The clients named in `without` do nothing."""
        world = self.world
        for actor in self.actors:
            actor.is_done = actor.name in without
        try:
            self._live()
        except StuckError as error:
            left = [actor.name for actor in self.actors if not actor.is_done]
            self.ledger.wrong("stuck", f"{error}; not done: {left}")
        except (Exception, SystemExit) as error:  # nothing in a world may end the process that it is in
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.ledger.wrong(
                "checker", f"{type(error).__name__}: {error}, in {where.name} ({where.filename}:{where.lineno})"
            )
        finally:
            verdict = Verdict(
                world.seed,
                self.plan,
                [*self.ledger.anomalies, *(Anomaly("callback", error) for error in world.scheduler.errors)],
                world.story,
                {
                    actor.name: list(world.network.asked[actor.name])
                    for actor in self.actors
                    if actor.name not in without
                },
                world.scheduler.now,
                world.scheduler.steps,
                crc32(repr((world.digest(), world.story)).encode(), self.ledger.digest()),
                self.batches,
                tuple(actor.name for actor in self.actors if actor.name not in without),
                tuple(without),
                self.ledger.about(self.ledger.anomalies),
            )
            self.close()
        return verdict

    def close(self) -> None:
        self.world.close()

    @property
    @abstractmethod
    def batches(self) -> int:
        """How many batches were followed."""

    @abstractmethod
    def _begin(self) -> bool:
        """Start the nodes and prepare them for the clients. Returns whether that was done."""

    @abstractmethod
    def _stage(self) -> Stage:
        """Return where the faults happen."""

    @abstractmethod
    def _finish(self) -> None:
        """Let everybody come to an end, and judge."""

    @abstractmethod
    def _look(self) -> None:
        """Check what must hold at any time."""

    def _look_closely(self) -> None:  # noqa: B027  # a look may be enough
        """Check what takes longer."""

    def _live(self) -> None:
        world = self.world
        if not self._begin():
            return
        begun = world.scheduler.now
        for actor in self.actors:
            actor.start()
        stage = self._stage()
        stage.carry_out([replace(fault, at_s=fault.at_s + begun) for fault in self.plan])
        world.run_until(lambda: bool(self.ledger.anomalies), BUSY_S + 1.0, self._after_step)
        if self.ledger.anomalies:
            return
        world.told("everything heals")
        self._ends_at = world.scheduler.now + self.end_s
        stage.heal()
        self._finish()

    def _settle_group(self) -> bool:
        """Let the group of those whose only job is membership come to rest. Returns whether it did."""
        watch = self.members
        if watch is None:
            return True
        watch.is_calm = True
        return self._wait(
            watch.is_settled,
            SETTLE_S,
            lambda: f"the group of members is stable ({watch.what_is_unsettled()})",
        )

    def _after_step(self) -> None:
        steps = self.world.scheduler.steps
        if steps % self.look_steps:
            return
        with suppress(SimulatedCrash):  # a file that is opened to look counts as the write at which the disk crashes
            self._look()
            if steps % self.state_steps == 0:
                self._look_closely()

    def _wait(self, condition: Callable[[], object], within_s: float, what: str | Callable[[], str]) -> bool:
        calls = itertools.count()
        within_s = min(within_s, self._ends_at - self.world.scheduler.now)

        def is_over() -> bool:
            # Nodes never rest, so what holds after some steps is seen a few later. Each look costs more than a step.
            return bool(self.ledger.anomalies) or (next(calls) % WAIT_STEPS == 0 and bool(condition()))

        done = self.world.run_until(is_over, within_s, self._after_step)
        if not done:
            what = what if isinstance(what, str) else what()
            self.ledger.wrong("not finished", f"{what} within {within_s:.0f} virtual seconds")
        return done and not self.ledger.anomalies

    def _all_have_committed(self, actors: Iterable[Actor]) -> bool:
        """Wait until each of these programs has committed something. Returns whether they all did."""
        actors, committed = list(actors), self.ledger.committed
        return self._wait(
            lambda: all(actor.is_done or actor.name in committed for actor in actors),
            self.heal_s,
            lambda: f"{[actor.name for actor in actors if actor.name not in committed]} commit something",
        )

    def _stop_all(self, actors: Iterable[Actor]) -> bool:
        """Let programs come to an end. Returns whether they did."""
        actors = list(actors)
        for actor in actors:
            actor.stop()
        return self._wait(
            lambda: all(actor.is_at_rest for actor in actors),
            self.heal_s,
            lambda: f"{[actor.name for actor in actors if not actor.is_at_rest]} come to an end",
        )
