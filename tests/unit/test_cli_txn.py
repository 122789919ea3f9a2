"""`semel txn` against a node: what it says of shared transactions, and of what was committed under a key."""

from __future__ import annotations

import json
import re
from pathlib import Path

from live_node import LiveNode
from typer.testing import CliRunner, Result

import semel
from semel.cli.main import app


def test_a_shared_transaction_shows_its_writers_and_commits(tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": node.bootstrap})

    with LiveNode(tmp_path) as node:
        run("topic", "create", "imports", "--partitions", "1")
        shared = semel.SharedTransaction.open(node.bootstrap, "import", token="day 1", sequence=1)
        with shared.join() as idle, shared.join() as writer:
            assert idle.committed is None
            writer.send("imports", b"a")
            member = writer.finish()
            shown = run("txn", "describe", "import").stdout
            assert shown.startswith(f"import has attempt {shared.attempt} open, for token day 1, sequence 1\n")
            assert re.search(r"  writer      \d+ is Ongoing, open for ", shown)
            assert re.search(r"  writer      \d+ is Empty, has written nothing\n", shown)
            as_json = json.loads(run("txn", "describe", "import", "--json").stdout)
            assert sorted(one["state"] for one in as_json["writers"]) == ["Empty", "Ongoing"]
            assert (as_json["attempt"], as_json["last_commit"]) == (shared.attempt, None)
        assert run("txn", "commits", "import").stdout == "nothing was committed with a token under import\n"
        shared.commit([member], payload=b"rows 1-9")
        semel.SharedTransaction.open(node.bootstrap, "import", token="day 2").commit([], payload=b"\xff" * 9)
        shown = run("txn", "describe", "import").stdout
        assert "import has nothing open\n" in shown
        assert "  last commit token day 2, " in shown
        rows = run("txn", "commits", "import").stdout.splitlines()
        assert re.fullmatch(r"day 1 +1 .* +1 +rows 1-9 *", rows[-2])
        assert re.fullmatch(r"day 2 +2?\S+ .* +0 +9 bytes *", rows[-1])
        first, second = json.loads(run("txn", "commits", "import", "--json").stdout)
        assert (first["token"], first["sequence"], first["writers"]) == ("day 1", 1, 1)
        assert (second["token"], second["sequence"], second["payload_base64"]) == ("day 2", None, "////////////")
        assert run("txn", "describe", "nobody").exit_code != 0
