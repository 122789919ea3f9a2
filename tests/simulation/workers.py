"""Runs seeds in several processes, and says what became of each, also where a process dies or a seed has no end.

A fresh process after some seeds: what killed processes have left is not collected in between.
"""

from __future__ import annotations

import faulthandler
import itertools
import math
import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final

from history import Anomaly

from simulation.command_line import end_with
from simulation.runs import run
from simulation.scenario import Verdict

SEEDS_A_PROCESS: Final = 50
LONGEST_WAIT_S: Final = 3600.0
_CONTEXT: Final = multiprocessing.get_context("spawn")


def verdicts(seeds: range, workers: int, world: str, patience_s: float) -> Iterator[Verdict]:
    """Yield what came of each seed, in the order in which they end.

    patience_s: for how many real seconds a seed may run; after that its process is killed, and the seed has failed
    """
    left = iter(seeds)
    busy: list[_Worker] = []
    try:
        for seed in itertools.islice(left, workers):
            busy.append(_Worker(world))
            busy[-1].give(seed)
        while busy:
            first_end_s = min(one.began_s for one in busy) + patience_s
            rest_s = max(0.0, first_end_s - time.monotonic())
            ready = wait([one.pipe for one in busy], min(rest_s, LONGEST_WAIT_S))
            latest_s = time.monotonic() - patience_s
            for worker in [one for one in busy if one.pipe in ready or one.began_s < latest_s]:
                verdict = worker.answer() if worker.pipe in ready else worker.give_up(patience_s)
                if verdict is None:
                    continue
                seed_or_none = next(left, None)
                busy.remove(worker)
                if worker.is_spent or seed_or_none is None:
                    worker.end()
                if seed_or_none is not None:
                    busy.append(_Worker(world) if worker.is_spent else worker)
                    busy[-1].give(seed_or_none)
                yield verdict
    finally:
        for worker in busy:
            worker.kill()


@dataclass(slots=True, eq=False)
class _Worker:
    """A process that runs one seed after the other."""

    world: str
    pipe: Connection = field(init=False)
    process: BaseProcess = field(init=False)
    seed: int = 0
    given: int = 0
    began_s: float = math.inf
    """When it began with the seed: what it imports before takes a while."""
    is_dead: bool = False

    def __post_init__(self) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=work, args=(theirs, self.world), daemon=True)
        # Ctrl-C reaches all processes of a terminal, also one that has only begun: one of them says what was done.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    @property
    def is_spent(self) -> bool:
        return self.is_dead or self.given >= SEEDS_A_PROCESS

    def give(self, seed: int) -> None:
        self.seed, self.began_s = seed, math.inf
        self.given += 1
        with suppress(BrokenPipeError):  # it died before: its end of the pipe says so next
            self.pipe.send(seed)

    def answer(self) -> Verdict | None:
        """Return what came of the seed, or None when it has just begun with it."""
        try:
            verdict: Verdict | None = self.pipe.recv()
        except (EOFError, OSError):  # also in the midst of what it came to
            self.is_dead = True
            self.process.join()
            return self._failed("died", f"the process that ran it ended with {self.process.exitcode}")
        if verdict is None:
            self.began_s = time.monotonic()
        return verdict

    def give_up(self, patience_s: float) -> Verdict:
        """Kill the process. It says before where it was."""
        self.is_dead = True
        assert self.process.pid is not None
        self.process.terminate()
        self.process.join(5.0)
        self.kill()
        return self._failed("no end", f"it ran for more than {patience_s:.0f} s")

    def end(self) -> None:
        """Let it come to its end."""
        self.pipe.close()
        self.process.join(5.0)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def _failed(self, kind: str, detail: str) -> Verdict:
        return Verdict(self.seed, (), [Anomaly(kind, detail)])


def work(pipe: Connection, world: str) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with(parent.pid)
    faulthandler.register(signal.SIGTERM, chain=True)
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        pipe.send(None)
        pipe.send(run(seed, world=world))
