"""`semel token`: from making a token to taking it back, and where its secret is written."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking_node import address_for, at
from delegating_node import delegating
from live_node import LiveNode
from passing_numbers import numbers_pass
from typer.testing import CliRunner, Result
from user_files import ALICE, set_user

import semel
from semel.cli.main import app
from semel.protocol.errors import FatalError
from semel.sdk.transport.login import Login
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **delegating(set_user(tmp_path / "users"))) as live:
        yield live


def token(node: LiveNode, *words: str, bootstrap: str = "") -> Result:
    return CliRunner().invoke(app, ["token", *words, "--bootstrap", bootstrap or address_for(node)])


def test_the_command_creates_lists_renews_and_expires_tokens(node: LiveNode, tmp_path: Path) -> None:
    assert token(node, "list").stdout == "no delegation tokens\n"
    file = tmp_path / "token"
    file.write_text("of before")
    file.chmod(0o644)
    made = token(node, "create", "--file", str(file), "--renewer", "User:bob", "--max-life", "12h")
    assert made.exit_code == 0, made.output
    token_id, _, hmac = file.read_text().rstrip("\n").partition(":")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token_id in made.output
    assert hmac not in made.output, "it is in the file, and nowhere else"
    listed = token(node, "list", "--json")
    (found,) = json.loads(listed.stdout)
    assert (found["token_id"], found["owner"], found["renewers"]) == (token_id, f"User:{ALICE}", ["User:bob"])
    assert found["max_timestamp_ms"] - found["issue_timestamp_ms"] == 12 * 3_600_000
    assert hmac not in listed.output + token(node, "list").output
    assert token(node, "renew", token_id, "--for", "1h").exit_code == 0
    (renewed,) = json.loads(token(node, "list", "--json", "--owner", f"User:{ALICE}").stdout)
    assert renewed["expiry_timestamp_ms"] < found["expiry_timestamp_ms"]
    assert token(node, "expire", token_id, "--after", "10m").exit_code == 0
    assert token(node, "expire", token_id).stdout == f"delegation token {token_id} is gone\n"
    refused = token(node, "renew", token_id)
    assert (refused.exit_code, "no such delegation token" in refused.stderr) == (1, True)


def test_without_a_file_the_secret_is_printed_once(node: LiveNode) -> None:
    made = json.loads(token(node, "create", "--json").stdout)
    numbers_pass(at(node.bootstrap, made["token_id"], made["hmac"]))
    assert "HMAC " in token(node, "create").stdout


def test_no_token_is_made_where_its_file_can_not_be_written(node: LiveNode, tmp_path: Path) -> None:
    refused = token(node, "create", "--file", str(tmp_path / "absent" / "token"))
    assert (refused.exit_code, "can't be written" in refused.stderr) == (2, True)
    assert node.node.metadata.image.delegation_tokens == {}


def test_clients_log_in_with_the_file_and_go_on_with_the_next_token_in_it(node: LiveNode, tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert token(node, "create", "--file", str(file)).exit_code == 0
    bootstrap = f"sasl://{node.bootstrap}?sasl.delegation.token.location={file}"
    numbers_pass(Bootstrap((node.bootstrap,), Security(None, Login("", delegation_location=str(file)))))
    with semel.Admin(bootstrap) as admin:
        first = file.read_text().partition(":")[0]
        assert len(admin.topics()) >= 0
        assert token(node, "create", "--file", str(file)).exit_code == 0
        assert token(node, "expire", first).exit_code == 0
        assert len(admin.topics()) >= 0, "by the other token"
        file.write_text("no token\n")
        assert len(admin.topics()) >= 0, "it may be written just now"
    refused = token(node, "list", bootstrap=bootstrap)
    assert (refused.exit_code, "holds no delegation token" in refused.stderr) == (2, True)


def test_S6_who_has_a_token_alone_makes_no_other(node: LiveNode, tmp_path: Path) -> None:
    file = tmp_path / "token"
    token(node, "create", "--file", str(file))
    refused = token(node, "create", bootstrap=f"sasl://{node.bootstrap}?sasl.delegation.token.location={file}")
    assert (refused.exit_code, "log in as a user" in refused.stderr) == (1, True)
    with (
        semel.Admin(f"sasl://{node.bootstrap}", sasl_delegation_token_location=str(file)) as admin,
        pytest.raises(FatalError, match="log in as a user"),
    ):
        admin.delegation_tokens()
