"""The end-to-end check finds what it is there to find: nodes with a fault planted in them are caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chaos import Chaos, Clients, run_chaos
from history import check

QUIET = {"kill_instance": 0, "kill_node": 0, "freeze_instance": 0, "settle_s": 20.0, "instances": 2}


def chaos(seed: int, duration_s: float, fault: str, **options: Any) -> Chaos:
    return Chaos(**{"seed": seed, "duration_s": duration_s, "loss": 0, "fault": fault, **QUIET, **options})


@pytest.mark.drawn(2)
@pytest.mark.damages_data("its node has a planted fault, which may lose or tear what it writes")
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("expected", "chaos"),
    [
        ("duplicated", chaos(3, 6, "dedupe-off", loss=0.05)),
        ("aborted-read", chaos(4, 4, "lso-ignored")),
        ("aborted-read", chaos(6, 4, "lso-ignored", clients=Clients.CONFLUENT)),
        ("torn", chaos(5, 8, "marker-before-decision")),
        ("lost", chaos(7, 6, "tail-lost", kill_node=1, settle_s=5.0)),
        ("twice", chaos(8, 6, "offsets-dropped", kill_instance=1, settle_s=5.0, static_members=True)),
        ("skipped", chaos(9, 5, "batches-passed-over")),
    ],
    ids=lambda value: value.fault if isinstance(value, Chaos) else value,
)
def test_E1_a_planted_fault_is_found(tmp_path: Path, expected: str, chaos: Chaos) -> None:
    report = run_chaos(chaos, tmp_path)
    kinds = {anomaly.kind for anomaly in check(report.history)}
    assert expected in kinds, f"{chaos.fault} was not seen, only {kinds or 'nothing'}"
