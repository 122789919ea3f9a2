"""Programming errors that the product only logs are anomalies, and clients hear what they were told."""

from __future__ import annotations

import logging

from history import Outcome

from semel.protocol.errors import RetriableError
from simulation.actors import Feeder
from simulation.logged_errors import unexpected_errors
from simulation.node_scenario import NodeScenario


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


def test_what_a_producer_of_the_sdk_was_answered_counts_as_committed() -> None:
    scenario = next(
        one
        for one in (NodeScenario(seed, ()) for seed in range(20))
        if any(type(each) is Feeder for each in one.actors)
    )
    verdict = scenario.run()
    assert verdict.is_clean, verdict.anomalies
    ledger = scenario.ledger
    fed = [number for number, (worker, _, _) in enumerate(ledger._tried) if worker.startswith("feeder")]
    assert len(fed) > 5
    assert all(ledger.outcome(number) is Outcome.COMMITTED for number in fed), "nothing went wrong in that world"
