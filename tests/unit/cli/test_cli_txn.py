"""`semel txn` against a node: what it says of shared transactions, and of what was committed under a key."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import semel
from semel.cli.main import app
from semel.sdk.transport.control import Control
from semel.sdk.transport.rpcs import GET_METADATA, Rpc
from semel.testing import Broker

MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_a_shared_transaction_shows_its_writers_and_commits() -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap})

    with Broker() as node:
        run("topic", "create", "imports", "--partitions", "1")
        shared = semel.SharedTransaction.open(node.bootstrap, "import", token="day 1", sequence=1)
        with shared.join() as idle, shared.join() as writer:
            assert idle.committed is None
            writer.send("imports", b"a")
            member = writer.finish()
            shown = run("txn", "describe", "import").stdout
            assert shown.startswith(f"import has attempt {shared.attempt} open, for token day 1, sequence 1\n")
            assert re.search(r"  writer      __semel\.shared/import/\d+ is Ongoing, open for ", shown)
            assert re.search(r"  writer      __semel\.shared/import/\d+ is Empty, has written nothing\n", shown)
            as_json = json.loads(run("txn", "describe", "import", "--json").stdout)
            assert sorted(one["state"] for one in as_json["writers"]) == ["Empty", "Ongoing"]
            assert (as_json["attempt"], as_json["last_commit"]) == (shared.attempt, None)
        assert run("txn", "commits", "import").stdout == "nothing was committed with a token under import\n"
        shared.commit([member], payload=b"rows 1-9")
        semel.SharedTransaction.open(node.bootstrap, "import", token="day 2").commit([], payload=b"\xff" * 9)
        shown = run("txn", "describe", "import").stdout
        assert "import has nothing open\n" in shown
        assert re.search(rf"  last commit token day 2, {MOMENT} \(.* ago\)\n", shown)
        rows = run("txn", "commits", "import").stdout.splitlines()
        assert re.fullmatch(rf"day 1 +1 +{MOMENT} +1 +rows 1-9 *", rows[-2])
        assert re.fullmatch(r"day 2 +2?\S+ .* +0 +9 bytes *", rows[-1])
        first, second = json.loads(run("txn", "commits", "import", "--json").stdout)
        assert (first["token"], first["sequence"], first["writers"]) == ("day 1", 1, 1)
        assert (second["token"], second["sequence"], second["payload_base64"]) == ("day 2", None, "////////////")
        assert run("txn", "describe", "nobody").exit_code != 0


def test_T13_a_repetition_does_not_hide_the_commit_that_it_repeats() -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap, "COLUMNS": "200"})

    with Broker() as node:
        run("topic", "create", "orders", "--partitions", "1")
        for token in (None, "day 1", "day 1"):
            with (
                semel.Producer(node.bootstrap, transactional_id="importer") as producer,
                producer.transaction(token=token) as txn,
            ):
                txn.send("orders", b"x")
            if token is None:
                assert "committed" not in run("txn", "describe", "importer").stdout
                (row,) = json.loads(run("txn", "list", "--json").stdout)
                assert (row["last_token"], row["last_commit_ms"]) == (None, None)
        shown = run("txn", "describe", "importer").stdout
        assert shown.startswith("importer is CompleteAbort\n")
        assert re.search(rf"\n  committed  token day 1, {MOMENT} \(.* ago\)\n", shown)
        described = json.loads(run("txn", "describe", "importer", "--json").stdout)
        (commit,) = json.loads(run("txn", "commits", "importer", "--json").stdout)
        assert described["last_commit"] == commit
        assert re.search(rf"importer +\d+ +CompleteAbort +day 1 +{MOMENT}\b", run("txn", "list").stdout)
        (row,) = json.loads(run("txn", "list", "--json").stdout)
        assert (row["state"], row["last_token"], row["last_commit_ms"]) == (
            "CompleteAbort", "day 1", commit["decided_ms"]
        )  # fmt: skip


def test_a_shared_attempt_that_is_stuck_is_found_and_aborted_by_its_key() -> None:
    """`txn describe KEY` showed it as open, and `txn abort KEY` said that there was no such transactional id."""

    def run(*arguments: str, width: int = 60) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap, "COLUMNS": str(width)})

    with Broker() as node:
        run("topic", "create", "out", "--partitions", "1")
        key = "spark/85b867d3-4a95-4309-ae2d-122d3c2985e4/" + "large-orders" * 30
        shared = semel.SharedTransaction.open(node.bootstrap, key, token="t")
        with shared.join() as writer:
            writer.send("out", b"x")
            writer.flush()
            member = f"__semel.shared/{key}/"
            shown = run("txn", "describe", key).stdout
            (whole_id,) = re.findall(rf"{re.escape(member)}\d+", shown)
            assert whole_id in run("txn", "list").stdout
            (row,) = json.loads(run("txn", "list", "--shared", "--json").stdout)
            assert row == {"key": key, "open_token": "t", "last_token": None, "last_commit_ms": None}
            assert re.search(rf"{re.escape(key)} +t +", run("txn", "list", "--shared").stdout)
            assert run("txn", "list", "--shared", "--state", "Ongoing").exit_code == 2
            assert run("txn", "describe", whole_id).exit_code == 0
            aborted = run("txn", "abort", key, "--yes")
            assert aborted.stdout == f"attempt {shared.attempt} of {key} is aborted, with its 1 writers\n"
            again = run("txn", "abort", key, "--yes", "--shared")
            assert again.exit_code != 0
            assert "nothing is open under the key" in again.stderr
            with semel.Admin(node.bootstrap) as admin:
                assert admin.shared_transaction(key).attempt == ""
        assert "there is no transactional id 'nobody'" in run("txn", "abort", "nobody", "--yes").stderr


def test_a_key_that_is_also_a_producers_id_is_reached_by_saying_so() -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap})

    with Broker() as node:
        run("topic", "create", "out", "--partitions", "1")
        with semel.Producer(node.bootstrap, transactional_id="nightly") as producer:
            with producer.transaction(token="day 1"):
                producer.send("out", b"x")
            shared = semel.SharedTransaction.open(node.bootstrap, "nightly", token="day 1")
            assert shared.committed is None, "another kind of commit"
            assert shared.commit([]).already_committed is False
            last = producer.last_commit()
            assert last is not None
            assert last.attempt == ""
        semel.SharedTransaction.open(node.bootstrap, "nightly", token="day 2")
        assert run("txn", "describe", "nightly").stdout.startswith("nightly is Complete")
        assert "for token day 2" in run("txn", "describe", "nightly", "--shared").stdout
        assert run("txn", "abort", "nightly", "--shared", "--yes").exit_code == 0
        with semel.Admin(node.bootstrap) as admin:
            assert sorted(bool(commit.attempt) for commit in admin.commits("nightly")) == [False, True]


def test_a_transaction_that_hangs_on_a_partition_that_is_not_there_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The abort was asked for, and tried again for 30 s, in which the topic might have come."""
    asked: list[object] = []
    call: Any = Control.call

    async def noted(control: Control, rpc: Rpc[Any, Any], request: object, **options: Any) -> Any:
        asked.append(rpc)
        return await call(control, rpc, request, **options)

    monkeypatch.setattr(Control, "call", noted)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap})

    with Broker() as node:
        run("topic", "create", "orders", "--partitions", "2")
        for partition, message in (("order:0", "did you mean 'orders'?"), ("orders:2", "orders has partitions 0 to 1")):
            asked.clear()
            said = run("txn", "abort", "--partition", partition, "--start-offset", "0", "--yes")
            assert said.exit_code != 0
            assert message in " ".join(said.stderr.split())
            assert set(asked) == {GET_METADATA}
