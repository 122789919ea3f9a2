"""The clients of a world. Each has a life that it begins again when its process has died, as under a supervisor.

What an actor keeps on itself is what a program would have stored, or what the judge needs; the rest dies with it.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.protocol.errors import (
    SemelError,
    UsageError,
)
from simulation.ledger import Ledger
from simulation.loop import Process

if TYPE_CHECKING:
    from simulation.world import World

INPUT, OUTPUT = "in", "out"


class Actor(ABC):
    """One client program. `is_done` once it has nothing left to do; then nobody starts it again."""

    restart_s = 0.5

    def __init__(self, world: World, ledger: Ledger, name: str) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.chance = random.Random(world.chance.getrandbits(64))
        self.is_done = False
        self.is_stopping = False
        self.lives = 0
        self.process: Process | None = None
        self._begun: set[Process] = set()
        """The processes of lives that have not come to their end; some of them may have been killed."""
        self.bootstrap = ""
        own = random.Random(f"patience of {name} of {world.seed}")
        self.patience: dict[str, Any] = {"max_block_ms": own.choice((1_000, 3_000))} if own.random() < 0.3 else {}
        """For how long one call of the SDK may take: some programs are told that nothing is known, and ask again."""
        self.on_commit: list[Callable[[], object]] = []
        """Called when it is about to ask for a commit."""

    @property
    def is_at_rest(self) -> bool:
        """Whether it writes nothing any more. An older life may go on where the next one has fenced it."""
        return self.is_done

    @property
    def has_older_lives(self) -> bool:
        """Whether an older life, or what is left of it, still runs beside the present one."""
        return not all(process.is_dead for process in self._begun)

    def start(self) -> None:
        """Begin a life. An older one that was not killed continues beside it."""
        if self.is_done:
            return
        self.lives += 1
        self.process = process = self.world.client(f"{self.name}#{self.lives}")
        self._begun.add(process)
        nodes = list(self.world.nodes)
        self.bootstrap = self.world.address(self.name, self.chance.choice(nodes) if len(nodes) > 1 else nodes[0])
        process.start(self._live(process, f"{self.name}.{self.lives}"))

    def kill(self) -> None:
        """Kill the present life, and begin another."""
        if self.process is not None and not self.process.is_dead and not self.is_done:
            self.process.kill()
            self.world.network.gone(self.process, silently=False)
            self.start_later()

    def _tell_of_commit(self) -> None:
        for tell in self.on_commit:
            tell()

    def transaction_aborted_by_operator(self) -> None:  # noqa: B027  # most clients need not know
        """An operator aborts what this client has open, now or a little later."""

    def start_later(self) -> None:
        self.world.later(self.restart_s * (0.2 + self.chance.random()), self.start)

    async def _live(self, process: Process, worker: str) -> None:
        try:
            await self.live(worker)
        except UsageError as error:
            self.ledger.wrong("crash", f"{process.name}: {error.message}")
            self.is_done = True
        except SemelError as error:
            self.world.told(f"{process.name} ended: {type(error).__name__}: {error.message}")
            self.judge_end(worker, error)
            if process is self.process:
                self.world.scheduler.world.post(self.kill)
        except Exception as error:
            import traceback

            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            self.ledger.wrong("crash", f"{process.name}: {type(error).__name__}: {error}\n{where}")
            self.is_done = True
        else:
            if process is self.process:
                self.is_done = True
        self._begun.discard(process)

    def is_current(self, worker: str) -> bool:
        """Whether a life is the present one, and not an older one beside it."""
        return worker == f"{self.name}.{self.lives}"

    def judge_end(self, worker: str, error: SemelError) -> None:  # noqa: B027  # most may be told anything
        """Say what is wrong with the error that a life ended by."""

    @abstractmethod
    async def live(self, worker: str) -> None:
        """Do the work; `worker` names this life in the ledger."""

    async def think(self, longest_s: float) -> None:
        await asyncio.sleep(longest_s * self.chance.random())

    def stop(self) -> None:
        """Come to an end: what was begun is finished."""
        self.is_stopping = True
