"""The demo's clusters with a few flights. Nodes that replicate: one is cut off from the database alone, then from the
others (E1). Nodes that have nothing of their own: they are killed and start again empty (D1).
"""

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
from semel.cli.demo.object_store import DemoStore
from semel.cli.demo.run import Kind, Outcome, Plan, run
from semel.cli.demo.show import report_safe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
FLIGHTS = 2_000


def few(folder: Path, *strikes: str, kind: Kind = Kind.CLUSTER) -> Outcome:
    plan = Plan(
        "exactly-once",
        instances=2,
        instance_kills=1,
        node_kills=len(strikes),
        zombies=0,
        batch=200,
        seed=1,
        kind=kind,
        strikes=strikes,
        load_s=5.0,
    )
    return run(plan, load_flights(FLIGHTS), folder, lambda *_: None)


def shown(outcome: Outcome) -> str:
    text = io.StringIO()
    report_safe(Console(file=text, width=200), outcome)
    return text.getvalue()


@pytest.mark.drawn(1, "demos")
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


@pytest.mark.drawn(1, "demos")
def test_E1_without_postgresql_the_metadata_is_in_sqlite_and_a_node_is_frozen_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DemoDatabase, "find", staticmethod(lambda: None))
    outcome = few(tmp_path, "unhook")
    assert outcome.verdict.is_exactly_once
    assert set(outcome.pauses_s) == {"freeze"}
    assert re.search(r"metadata in +SQLite", shown(outcome))


@pytest.mark.drawn(1, "demos")
@pytest.mark.postgresql
def test_D1_nodes_that_start_again_empty_cost_no_flight_and_the_bill_says_what_they_asked(tmp_path: Path) -> None:
    try:
        postgresql_binaries()
    except PostgresqlMissingError as error:
        pytest.skip(str(error))
    outcome = few(tmp_path, "lose", "lose", "lose", kind=Kind.DISKLESS)
    assert outcome.verdict.is_exactly_once
    assert len(outcome.pauses_s["lose"]) == outcome.node_kills == 3
    bill = outcome.bill
    assert bill is not None
    assert bill.missed == 0
    assert bill.remote.location == "s3://semel-demo/semel"
    assert [node.node_id for node in bill.remote.nodes] == [1, 2, 3]
    assert bill.held.entries >= bill.held.inline > 0
    said = shown(outcome)
    assert "objects in s3://semel-demo/semel, an S3 of the demo's own (moto)" in said
    assert re.search(r"one is ended by SIGKILL and starts again empty +3 +\d+\.\d s\n", said)
    assert re.search(r"in the database +[\d,]+ rows in semel_diskless_entries, [\d,]+ of them with the records", said)
    assert re.search(r"about [\d.,<]+ a month \(USD\): ", said)


@pytest.mark.drawn(1, "demos")
def test_D1_without_s3_and_postgresql_objects_go_to_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DemoDatabase, "find", staticmethod(lambda: None))
    monkeypatch.setattr(DemoStore, "has_s3", staticmethod(lambda: False))
    outcome = few(tmp_path, "lose", "lose", kind=Kind.DISKLESS)
    assert outcome.verdict.is_exactly_once
    said = shown(outcome)
    assert f"objects in file://{tmp_path}/objects" in said
    assert "A directory has no price: S3 would ask" in said


def test_all_that_is_done_to_nodes_has_words() -> None:
    assert set(SAYS) == set(STRIKES)
