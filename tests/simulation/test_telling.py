"""How a failure is told: the fewest clients, and what was tried of which something is wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from history import Anomaly, Outcome, Send

from simulation import shrinking
from simulation.__main__ import last_words
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


def test_faults_that_come_after_the_end_are_left_out_and_all_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second fault is needed while the first one lasts for long, and no more once that was shortened."""
    first, second, late = (Fault(at_s, "kill", for_s=1.0) for at_s in (1.0, 2.0, 9.0))

    def run(seed: int, plan: Sequence[Fault], world: str, without: Collection[str]) -> Verdict:
        fails = any(one.at_s == 1.0 and (one.for_s < 1.0 or second in plan) for one in plan)
        return Verdict(seed, tuple(plan), [Anomaly("torn", "")] if fails else [], seconds=5.0, clients=("x",))

    said: list[str] = []
    monkeypatch.setattr(shrinking, "run", run)
    shortest = shrinking.shrink(run(1, (first, second, late), "node", ()), said.append)
    assert [(one.at_s, one.for_s) for one in shortest.plan] == [(1.0, 0.1)]
    assert said[0] == "still fails with 2 faults, before its end"


def test_of_many_clients_those_are_told_of_that_an_anomaly_names() -> None:
    asked = {name: [(float(number), f"{name} {number}") for number in range(8)] for name in "abcdef"}
    named = [Anomaly("P2", "the batch of client-e is refused")]
    verdict = Verdict(1, (), named, asked={f"client-{name}": lines for name, lines in asked.items()})
    words = last_words(verdict)
    assert [(client, len(lines)) for client, lines in words] == [
        ("client-e", 8), ("client-a", 2), ("client-b", 2), ("client-c", 2), ("client-d", 2), ("client-f", 2)
    ]  # fmt: skip


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
