"""The end-to-end check finds what it is there to find: nodes with a fault planted in them are caught."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import Chaos, Clients, run_chaos
from history import check

QUIET = {"kill_instance": 0, "kill_node": 0, "freeze_instance": 0, "settle_s": 20.0, "instances": 2}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("fault", "expected", "chaos"),
    [
        ("dedupe-off", "duplicated", Chaos(seed=3, duration_s=6, loss=0.05, fault="dedupe-off", **QUIET)),  # type: ignore[arg-type]
        ("lso-ignored", "aborted-read", Chaos(seed=4, duration_s=4, loss=0, fault="lso-ignored", **QUIET)),  # type: ignore[arg-type]
        (
            "lso-ignored",
            "aborted-read",
            Chaos(seed=6, duration_s=4, loss=0, fault="lso-ignored", clients=Clients.CONFLUENT, **QUIET),  # type: ignore[arg-type]
        ),
        (
            "marker-before-decision",
            "torn",
            Chaos(seed=5, duration_s=8, loss=0, fault="marker-before-decision", **QUIET),  # type: ignore[arg-type]
        ),
    ],
)
def test_E1_a_planted_fault_is_found(tmp_path: Path, fault: str, expected: str, chaos: Chaos) -> None:
    report = run_chaos(chaos, tmp_path)
    kinds = {anomaly.kind for anomaly in check(report.history)}
    assert expected in kinds, f"{fault} was not seen, only {kinds or 'nothing'}"
