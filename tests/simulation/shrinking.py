"""Finds the shortest history with which a seed still fails: fewer faults, fewer clients, shorter faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulation.command_line import counted
from simulation.nemesis import Fault
from simulation.runs import ONE_NODE, run
from simulation.scenario import Verdict

_LAST = frozenset({"not finished", "unread", "skipped"})
"""What also a world fails with that lacks the client who would have done the work."""


def shrink(
    failed: Verdict, said: Callable[[str], object] = lambda _: None, tries_max: int = 150, world: str = ONE_NODE
) -> Verdict:
    """Leave out faults that come too late, other faults, halves first and then one at a time, and clients, and shorten
    what is left, as long as the seed fails in the same way; and again, until nothing changes.

    Without a fault everything after it goes another way, so now and then a shorter plan fails where a longer one did
    not: that is as good.
    """
    return _Shrinking(failed, said, tries_max, world).shortest()


class _Shrinking:
    def __init__(self, failed: Verdict, said: Callable[[str], object], tries_max: int, world: str) -> None:
        self._kinds = {anomaly.kind for anomaly in failed.anomalies}
        self._best = failed
        self._said = said
        self._left = tries_max
        self._world = world

    def shortest(self) -> Verdict:
        try:
            self._shorten()
        except KeyboardInterrupt:
            self._said("interrupted; the shortest history until now:")
        return self._best

    def _shorten(self) -> None:
        before: Verdict | None = None
        while self._left and self._best is not before:
            before = self._best
            self._leave_out_late_faults()
            self._leave_out_faults()
            if self._kinds.isdisjoint(_LAST):
                self._leave_out_clients()
            self._shorten_faults()

    def _leave_out_late_faults(self) -> None:
        """What was to come after the world had failed says nothing."""
        plan = tuple(fault for fault in self._best.plan if fault.at_s < self._best.seconds)
        if len(plan) < len(self._best.plan):
            self._fails(plan, self._best.without, f"with {counted(len(plan), 'fault')}, before its end")

    def _shorten_faults(self) -> None:
        for number, fault in enumerate(self._best.plan):
            for shorter in _shorter(fault):
                plan = (*self._best.plan[:number], shorter, *self._best.plan[number + 1 :])
                if self._fails(plan, self._best.without, f"with {shorter}"):
                    break

    def _leave_out_faults(self) -> None:
        size = max(1, len(self._best.plan) // 2)
        while self._best.plan and self._left:
            plan = self._best.plan
            for start in range(0, len(plan), size):
                shorter = plan[:start] + plan[start + size :]
                if self._fails(shorter, self._best.without, f"with {counted(len(shorter), 'fault')}"):
                    break
            else:
                if size == 1:
                    break
                size = max(1, size // 2)

    def _leave_out_clients(self) -> None:
        """Several at a time, too: some are needed only as long as another one is there."""
        while self._leaves_out_some():
            pass

    def _leaves_out_some(self) -> bool:
        clients = self._best.clients
        for size in sorted({len(clients) // 2, 2, 1} & set(range(1, len(clients))), reverse=True):
            for start in range(len(clients) - size + 1):
                names = clients[start : start + size]
                if self._fails(self._best.plan, (*self._best.without, *names), f"without {', '.join(names)}"):
                    return True
        return False

    def _fails(self, plan: Sequence[Fault], without: tuple[str, ...], what: str) -> bool:
        if not self._left:
            return False
        self._left -= 1
        verdict = run(self._best.seed, plan, self._world, without)
        if self._kinds.isdisjoint(anomaly.kind for anomaly in verdict.anomalies):
            return False
        self._best = verdict
        self._said(f"still fails {what}")
        return True


def _shorter(fault: Fault) -> Iterator[Fault]:
    """Yield the fault as it would be more plainly told, the plainest first."""
    if fault.for_s > 0.1:
        yield replace(fault, for_s=0.1)
        yield replace(fault, for_s=round(fault.for_s / 3, 3))
