"""`semel user`: the file of users, and passwords that show nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from semel.broker.users.user_file import read_users
from semel.cli.main import app


def user(*arguments: str, told: str | None = None) -> Result:
    return CliRunner().invoke(app, ["user", *arguments], input=told)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "users")


def test_users_are_added_listed_changed_and_removed(file: str, tmp_path: Path) -> None:
    added = user("add", "alice", "--file", file, told="hunter2\n")
    assert (added.exit_code, added.stdout) == (0, "user alice added\n")
    assert read_users(file).verifiers["alice"][1].accepts("hunter2")
    (tmp_path / "password").write_text("hunter3\r\n")
    changed = user("add", "alice", "--file", file, "--password-file", str(tmp_path / "password"))
    assert changed.stdout == "alice has another password now\n"
    assert read_users(file).verifiers["alice"][0].accepts("hunter3")
    user("add", "bob", "--file", file, told="hunter4\r\n")
    assert read_users(file).verifiers["bob"][0].accepts("hunter4")
    assert "alice  SCRAM-SHA-256, SCRAM-SHA-512" in user("list", "--file", file).stdout
    listed = json.loads(user("list", "--file", file, "--json").stdout)
    assert listed[1] == {"name": "bob", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}
    assert user("remove", "bob", "--file", file).stdout == "user bob removed\n"
    assert list(read_users(file).verifiers) == ["alice"]
    assert "hunter" not in Path(file).read_text()


def test_what_can_not_be_done_is_said(file: str, tmp_path: Path) -> None:
    user("add", "alice", "--file", file, told="x\n")
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "long").write_text("x" * 2_000)
    for arguments, told, code, said in (
        (("remove", "bob", "--file", file), None, 1, "there is no user bob"),
        (("add", "a b", "--file", file), "x\n", 2, "a user can't be called 'a b'"),
        (("add", "bob", "--file", file), "", 2, "there is no password"),
        (("add", "bob", "--file", file), "x" * 3_000, 2, "a password has at most 1024 bytes"),
        (("add", "bob", "--file", file), "bell\a\n", 2, "the password can't be used"),
        (("add", "bob", "--file", file, "--password-file", str(tmp_path / "two")), None, 2, "does not hold one line"),
        (("add", "bob", "--file", file, "--password-file", str(tmp_path / "long")), None, 2, "does not hold one line"),
        (("add", "bob", "--file", file, "--password-file", str(tmp_path / "none")), None, 1, "No such file"),
        (("list", "--file", str(tmp_path / "none")), None, 1, "No such file"),
        (("add", "bob", "--file", file, "--bootstrap", "127.0.0.1:1"), "x\n", 2, "give one of them"),
        (("list", "--file", file, "-b", "127.0.0.1:1"), None, 2, "give one of them"),
    ):
        result = user(*arguments, told=told)
        assert (result.exit_code, said in result.stderr) == (code, True), (arguments, result.stderr)
    assert list(read_users(file).verifiers) == ["alice"]
