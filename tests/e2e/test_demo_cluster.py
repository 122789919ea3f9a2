"""The demo's cluster with a few flights: a node is cut off from the database alone, then from the other nodes (E1)."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from postgresql_process import PostgresqlMissingError, postgresql_binaries
from rich.console import Console

from semel.cli.demo.cluster import SAYS, STRIKES
from semel.cli.demo.database import DemoDatabase
from semel.cli.demo.flights import load_flights
from semel.cli.demo.interrupted_link import InterruptedLink, InterruptedSocket, Link
from semel.cli.demo.run import Kind, Outcome, Plan, run
from semel.cli.demo.show import report_safe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
FLIGHTS = 2_000


def few(folder: Path, *strikes: str) -> Outcome:
    plan = Plan(
        "exactly-once",
        instances=2,
        instance_kills=1,
        node_kills=len(strikes),
        zombies=0,
        batch=200,
        seed=1,
        kind=Kind.CLUSTER,
        strikes=strikes,
        load_s=5.0,
    )
    return run(plan, load_flights(FLIGHTS), folder, lambda *_: None)


def shown(outcome: Outcome) -> str:
    text = io.StringIO()
    report_safe(Console(file=text, width=200), outcome)
    return text.getvalue()


@pytest.mark.postgresql
def test_E1_a_node_that_is_cut_off_from_postgresql_alone_costs_no_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        postgresql_binaries()
    except PostgresqlMissingError as error:
        pytest.skip(str(error))
    cut: list[type[Link]] = []

    def noted(link: Link) -> None:
        cut.append(type(link))
        cuts(link)

    cuts = Link.cut
    monkeypatch.setattr(Link, "cut", noted)
    outcome = few(tmp_path, "unhook", "cut")
    assert outcome.verdict.is_exactly_once
    assert cut == [InterruptedSocket, InterruptedLink], "from the database, then from the other nodes"
    said = shown(outcome)
    assert re.search(r"one is cut off from the database for 9 s +1 +\d+\.\d s\n", said)
    assert re.search(r"one is cut off from the others for 4 s +1 +\d+\.\d s\n", said)
    assert re.search(r"metadata in +PostgreSQL", said)


def test_E1_without_postgresql_the_metadata_is_in_sqlite_and_a_node_is_frozen_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DemoDatabase, "find", staticmethod(lambda: None))
    outcome = few(tmp_path, "unhook")
    assert outcome.verdict.is_exactly_once
    assert set(outcome.pauses_s) == {"freeze"}
    assert re.search(r"metadata in +SQLite", shown(outcome))


def test_all_that_is_done_to_nodes_has_words() -> None:
    assert set(SAYS) == set(STRIKES)
