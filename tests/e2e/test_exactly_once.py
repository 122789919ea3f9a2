"""E1, end to end: real processes killed, frozen and cut off at seeded points, judged by all that clients saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import Chaos, Clients, run_chaos
from history import check
from longer_runs import given

SECONDS = float(given("SEMEL_CHAOS_SECONDS", "20"))
SEED = int(given("SEMEL_CHAOS_SEED", "1"))


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.timeout(280 + SECONDS)
@pytest.mark.parametrize("clients", list(Clients), ids=lambda clients: clients.name.lower())
@pytest.mark.parametrize("static_members", [False, True], ids=["dynamic", "static"])
def test_E1_each_record_is_reflected_exactly_once_whatever_is_killed(
    tmp_path: Path, static_members: bool, clients: Clients
) -> None:
    chaos = Chaos(seed=SEED + static_members, duration_s=SECONDS, static_members=static_members, clients=clients)
    report = run_chaos(chaos, tmp_path)
    anomalies = check(report.history)
    assert not anomalies, f"{chaos}: {report.faults}: {[str(anomaly) for anomaly in anomalies[:10]]}"
    assert report.settled, f"{chaos}: {report.faults}: not worked off after the faults ended"
    assert report.faults.get("kill node"), "the run killed no node: lengthen it"
    assert report.faults.get("kill instance"), "the run killed no instance: lengthen it"
    assert any(transaction.worker.startswith("w") for transaction in report.history.transactions)
