"""How a failure is told: the fewest clients, and what was tried of which something is wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from history import Anomaly, Outcome, Send

from simulation import shrinking
from simulation.ledger import Ledger
from simulation.nemesis import Fault
from simulation.scenario import Verdict


def test_what_an_anomaly_is_about_is_told_with_its_times() -> None:
    now = 0.5
    ledger = Ledger(lambda: now)
    first = ledger.intend("writer.1", Send("out", 0, "v-1"), Send("out", 0, "v-2"))
    ledger.intend("writer.2", Send("out", 0, "v-10"))
    now = 2.25
    ledger.settle(first, Outcome.COMMITTED)
    third = ledger.intend("writer.3", Send("out", 0, "other"))
    ledger.settle(third, Outcome.ABORTED)
    assert ledger.about([Anomaly("lost", "'v-2' of writer.1 is not there"), Anomaly("torn", "'v-10'")]) == [
        "writer.1 tried v-2 at 0.500 s: committed at 2.250 s",
        "writer.2 tried v-10 at 0.500 s: nobody was told what became of it",
    ]


def test_clients_are_left_out_that_are_needed_by_each_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of the pair the world goes another way; without both it fails as before."""
    clients = ("x", "a", "b", "c")

    def run(seed: int, plan: Sequence[Fault] | None, world: str, without: Collection[str]) -> Verdict:
        fails = "x" not in without and ("a" in without) == ("b" in without)
        left = tuple(name for name in clients if name not in without)
        return Verdict(seed, (), [Anomaly("torn", "")] if fails else [], clients=left, without=tuple(without))

    monkeypatch.setattr(shrinking, "run", run)
    shortest = shrinking.shrink(run(1, None, "node", ()))
    assert shortest.clients == ("x",)
