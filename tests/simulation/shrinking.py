"""Finds the shortest plan of faults with which a seed still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulation.nemesis import Fault
from simulation.runs import ONE_NODE, run
from simulation.scenario import Verdict


def shrink(
    failed: Verdict, said: Callable[[str], object] = lambda _: None, tries_max: int = 60, world: str = ONE_NODE
) -> Verdict:
    """Leave faults out, halves first and then one at a time, as long as the seed fails in the same way.

    Without a fault everything after it goes another way, so now and then a shorter plan fails where a longer one did
    not: that is as good.
    """
    kinds = {anomaly.kind for anomaly in failed.anomalies}
    best, tries = failed, 0

    def fails(plan: Sequence[Fault]) -> bool:
        nonlocal best, tries
        tries += 1
        verdict = run(failed.seed, plan, world)
        if kinds.isdisjoint(anomaly.kind for anomaly in verdict.anomalies):
            return False
        best = verdict
        said(f"still fails with {len(plan)} faults")
        return True

    size = max(1, len(best.plan) // 2)
    while best.plan and tries < tries_max:
        for start in range(0, len(best.plan), size):
            if tries < tries_max and fails(best.plan[:start] + best.plan[start + size :]):
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return best
