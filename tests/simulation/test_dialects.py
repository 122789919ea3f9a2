"""The simulated dialects ask for what recorded clients ask for: the same APIs, in order, with the same fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest
from request_recorder import RECORDINGS, SCENARIOS, path_of, read
from request_story import LOOKUPS

from simulation.dialect_scenarios import simulated
from simulation.kafka_wire import DIALECTS, Dialect

CASES: Final = [
    pytest.param(dialect, scenario, id=f"{dialect.name}-{scenario}")
    for dialect in DIALECTS
    for scenario in SCENARIOS
    if path_of(dialect.name, scenario).exists()
]


def another_epoch_after_a_loss(lines: list[str]) -> list[str]:
    """Return what a client would send that takes another epoch after the first transaction."""
    end = next(place for place, line in enumerate(lines) if line.startswith("END_TXN") and " -> " not in line) + 1
    first = lines[0].replace("producer=none", "producer=A.0")
    assert first.startswith("INIT_PRODUCER_ID")
    later = [line.replace("=A.0", "=A.1").replace("sequence=1", "sequence=0") for line in lines[end:]]
    return [*lines[:end], first, *later]


# In version 1, what was lost may arrive in the next transaction of the epoch (KIP-890): worlds could promise nothing
# after it. So these simulated clients ask for another epoch, which real ones do not.
_LOSSES: Final = ("lost-add-partitions", "lost-add-offsets", "lost-offset-commit", "lost-end")
DELIBERATE: Final[dict[tuple[str, str], Callable[[list[str]], list[str]]]] = {
    (dialect.name, scenario): another_epoch_after_a_loss
    for dialect in DIALECTS
    if not dialect.is_newer
    for scenario in _LOSSES
}
"""In which scenarios a dialect differs, and how, by what makes its requests of the recorded ones."""


# The first is the SDK's own; nothing is deleted, so that logs do not end earlier than they did.
NOT_SIMULATED: Final = ("API_VERSIONS ", "OFFSET_FOR_LEADER_EPOCH ")


# Only tools delete offsets, not the producers and consumers of the scenarios.
NOT_RECORDED: Final = ("OFFSET_DELETE ",)


@pytest.mark.parametrize(("dialect", "scenario"), CASES)
def test_a_dialect_sends_what_was_recorded_of_its_client(dialect: Dialect, scenario: str) -> None:
    recorded = read(dialect.name, scenario)
    assert recorded is not None
    sent, ledger = simulated(dialect, scenario)
    assert ledger.anomalies == []
    differs = DELIBERATE.get((dialect.name, scenario))
    expected = {
        name: differs(lines) if differs is not None and name.endswith("producer") else lines
        for name, lines in recorded.items()
        if not name.endswith(LOOKUPS)
    }
    # One node needs no coordinator to be found, and nothing is deleted that would make an offset unknown.
    found = {name: lines for name, lines in sent.items() if not name.endswith(LOOKUPS)}
    assert json.dumps(found, indent=1) == json.dumps({name: expected[name] for name in found}, indent=1)
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.name))
def test_a_dialect_has_the_versions_that_were_recorded_and_no_others(dialect: Dialect) -> None:
    """Also of what only worlds with several nodes ask for, such as the coordinator."""
    ours = {
        f"{key.name} v{version}"
        for versions in (dialect.versions, dialect.new_group_versions)
        for key, version in versions.items()
    }
    recorded = {
        " ".join(line.split()[:2])
        for path in RECORDINGS.glob(f"{dialect.name}-*.json")
        for lines in json.loads(path.read_text())["requests"].values()
        for line in lines
    }
    assert {line for line in ours - recorded if not line.startswith(NOT_RECORDED)} == set()
    assert {line for line in recorded - ours if not line.startswith(NOT_SIMULATED)} == set()


def test_every_dialect_has_recordings_of_every_scenario_that_its_client_has() -> None:
    missing = {
        (dialect.name, scenario)
        for dialect in DIALECTS
        for scenario, loss in SCENARIOS.items()
        if not path_of(dialect.name, scenario).exists() and (loss is None or loss.key in dialect.versions)
    }
    assert missing == set()
