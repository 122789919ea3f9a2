"""Who a node serves: by a file that changes while it runs, and without telling strangers who is in it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from user_files import ALICE, PASSWORD, set_user

from semel.broker.users import users as users_module
from semel.broker.users.users import Users
from semel.broker.users.verifiers import Verifier
from semel.protocol.errors import RetriableError
from semel.runtime.setting import ConfigError

SHA_256 = "SCRAM-SHA-256"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return set_user(tmp_path / "users")


def check(users: Users, name: str, password: str) -> Verifier | None:
    return asyncio.run(users.check_password(name, password))


def test_the_file_is_read_again_when_it_changes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "semel.users")
    users = Users(str(path))
    verifier = users.verifier(ALICE, SHA_256)
    assert users.is_current(ALICE, verifier)
    set_user(path, "bob", "b")
    assert check(users, "bob", "b") is not None
    assert users.is_current(ALICE, verifier), "only bob is new"
    set_user(path, ALICE, "another")
    assert not users.is_current(ALICE, verifier)
    assert check(users, ALICE, PASSWORD) is None
    set_user(path, ALICE, None)
    assert check(users, ALICE, "another") is None
    set_user(path, "bob", None)
    assert check(users, "bob", "b") is not None, "nobody is left: it may be written just now"
    assert "there are 2, before 1" in caplog.text


def test_a_broken_or_missing_file_changes_nothing_and_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = Users(str(path))
    verifier = users.verifier(ALICE, SHA_256)
    content = path.read_text()
    # To copy a file over it first empties it.
    for spoil in (lambda: path.write_text("bob secret\n"), lambda: path.write_text(""), path.unlink, path.mkdir):
        spoil()
        assert users.is_current(ALICE, verifier)
        assert users.is_current(ALICE, verifier)
    said = [record.message for record in caplog.records]
    assert len(said) == 4
    assert all(line.startswith("the users stay as they were: sasl.users.location") for line in said)
    assert not any("secret" in line for line in said)
    path.rmdir()
    path.write_text(content)
    assert users.is_current(ALICE, verifier)
    set_user(path, "bob", "b")
    assert check(users, "bob", "b") is not None


@pytest.mark.parametrize("content", [None, "alice\n", "", "# nobody\n"])
def test_a_node_does_not_start_with_a_file_that_can_not_be_used(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "users"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"sasl\.users\.location"):
        Users(str(path))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "users")
    with pytest.raises(ConfigError, match="it is no file"):
        Users(str(tmp_path / "users"))


def test_S5_users_that_there_are_not_look_like_the_others(path: Path) -> None:
    """Each time the same salt and number of iterations; and no password is theirs."""
    users, other = Users(str(path)), Users(str(path))
    for one in (users, other):  # two nodes of a cluster, or a node before and after a restart
        one.know_cluster("c")
    nobody, again = users.verifier("nobody", SHA_256), other.verifier("nobody", SHA_256)
    assert (nobody.salt, nobody.iterations) == (again.salt, again.iterations)
    assert nobody.salt != users.verifier("somebody", SHA_256).salt
    assert nobody.stored_key != again.stored_key, "nobody can know it"
    assert len(nobody.salt) == len(users.verifier(ALICE, SHA_256).salt)
    assert check(users, "nobody", "") is None
    assert not users.is_current("nobody", nobody)


def test_a_password_is_checked_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    accepts = Verifier.accepts
    monkeypatch.setattr(
        Verifier, "accepts", lambda verifier, password: checked.append(password) or accepts(verifier, password)
    )
    users = Users(str(path))
    assert users.knows_password(ALICE, PASSWORD) is None
    assert check(users, ALICE, PASSWORD) is not None
    assert users.knows_password(ALICE, PASSWORD) is not None
    assert check(users, ALICE, PASSWORD) is not None
    assert [check(users, ALICE, "wrong") for _ in range(2)] == [None, None]
    assert checked == [PASSWORD, "wrong", "wrong"]
    set_user(path, ALICE, "another")
    assert users.knows_password(ALICE, PASSWORD) is None, "it was right before"
    monkeypatch.setattr(users_module, "_REMEMBERED_MAX", 1)
    set_user(path, "bob", "b")
    assert check(users, "bob", "b") is not None
    assert len(users._right) == 1


def test_S2_only_so_many_passwords_wait_to_be_checked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "_CHECKS_MAX", 3)
    users = Users(str(path))

    async def test() -> None:
        outcomes = await asyncio.gather(
            *(users.check_password(ALICE, "wrong") for _ in range(8)), return_exceptions=True
        )
        assert [type(one) for one in outcomes] == [type(None)] * 3 + [RetriableError] * 5
        assert await users.check_password(ALICE, PASSWORD) is not None, "there is room again"

    asyncio.run(test())
