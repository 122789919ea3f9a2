"""Mistakes of the product are anomalies wherever they come out, and clients hear what they were told."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from history import Outcome

from semel.protocol.errors import RetriableError
from semel.runtime.invariants import BrokenInvariantError
from simulation.logged_errors import programming_error, unexpected_errors
from simulation.loop import Process, Scheduler
from simulation.node_scenario import NodeScenario
from simulation.runs import run
from simulation.sdk_pipelines import Feeder
from simulation.world import World


def _log(error: Exception) -> None:
    try:
        raise error
    except Exception:
        logging.getLogger("semel.producer").exception("a callback failed")


def test_an_exception_that_nobody_expects_is_found_though_it_is_only_logged() -> None:
    with unexpected_errors() as found:
        _log(OSError(28, "no space left"))
        _log(RetriableError("try again"))
        assert found == []
        _log(TypeError("one argument too many"))
        logging.getLogger("semel.producer").error("no exception")
    assert found == ["semel.producer: a callback failed: TypeError: one argument too many"]
    _log(TypeError("outside"))
    assert len(found) == 1


def test_a_log_that_goes_offline_for_a_broken_invariant_is_found() -> None:
    """Its clients see no more than a failed disk, and everybody recovers."""
    with unexpected_errors() as found:
        logging.getLogger("semel.log").critical("%s goes offline: %s", "t-0", BrokenInvariantError("t-0", "a rule"))
    assert len(found) == 1
    assert "broken invariant: a rule" in found[0]


def test_a_mistake_is_found_in_what_it_caused() -> None:
    mistake = KeyError("x")
    refusal = RetriableError("try again")
    refusal.__cause__ = mistake
    assert programming_error(refusal) is mistake
    assert programming_error(ExceptionGroup("both", [OSError(), refusal])) is mistake
    assert programming_error(RetriableError("try again")) is None
    assert programming_error(ExceptionGroup("all", [OSError(), ConnectionError()])) is None
    assert programming_error(None) is None


def test_a_task_that_ends_by_a_mistake_is_found_though_somebody_keeps_it() -> None:
    scheduler = Scheduler(random.Random(1))
    process = Process(scheduler, "node")

    async def fail(error: Exception) -> None:
        await asyncio.sleep(0.1)
        raise error

    tasks = [process.start(fail(error), "duty") for error in (KeyError("x"), OSError("gone"))]
    scheduler.run_until(lambda: all(task.done() for task in tasks), 1.0, None)
    for _ in range(4):
        scheduler.step() if scheduler._active else None
    assert scheduler.errors == ["node: duty: KeyError: 'x'"]
    assert [type(task.exception()) for task in tasks] == [KeyError, OSError]


def test_a_start_or_stop_that_ends_by_a_mistake_is_found() -> None:
    world = World(1)
    world.unexpected("node#1 can't start", RetriableError("the disk is full"))
    assert world.scheduler.errors == []
    world.unexpected("node#1 stopped in disorder", TypeError("an argument"))
    assert world.scheduler.errors == ["node#1 stopped in disorder: TypeError: an argument"]
    world.close()


def test_an_exception_of_a_checker_is_an_anomaly_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: NodeScenario) -> None:
        raise KeyError("x")

    monkeypatch.setattr(NodeScenario, "_look", fail)
    verdict = run(3, ())
    assert [each.kind for each in verdict.anomalies] == ["checker"]
    assert "KeyError: 'x', in fail" in verdict.anomalies[0].detail


def test_what_a_producer_of_the_sdk_was_answered_counts_as_committed() -> None:
    scenario = NodeScenario(2, ())
    assert any(type(each) is Feeder for each in scenario.actors), "choose another seed"
    verdict = scenario.run()
    assert verdict.is_clean, verdict.anomalies
    ledger = scenario.ledger
    fed = [number for number, (worker, _, _) in enumerate(ledger._tried) if worker.startswith("feeder")]
    assert len(fed) > 5
    assert all(ledger.outcome(number) is Outcome.COMMITTED for number in fed), "nothing went wrong in that world"
