"""Who a node serves: by a file that changes while it runs, and without telling strangers who is in it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from user_files import ALICE, PASSWORD, set_user

from semel.broker.users import users as users_module
from semel.broker.users.user_file import read_users
from semel.broker.users.users import Users
from semel.protocol.errors import RetriableError
from semel.protocol.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, Verifier, make_verifier
from semel.runtime.setting import ConfigError

SHA_256 = "SCRAM-SHA-256"
NO_USERS: dict[str, tuple[Verifier, ...]] = {}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return set_user(tmp_path / "users")


def read_again(users: Users) -> Users:
    """Return the users once a file that has changed is read."""
    asyncio.run(users.settled())
    return users


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
    assert not read_again(users).is_current(ALICE, verifier)
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
        assert read_again(users).is_current(ALICE, verifier)
        assert read_again(users).is_current(ALICE, verifier)
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
    with pytest.raises(ConfigError, match=r"it is a named pipe \(FIFO\), and a file belongs there"):
        Users(str(tmp_path / "users"))


def test_S5_users_that_there_are_not_look_like_the_others(path: Path) -> None:
    """Each time the same salt and number of iterations; and no password is theirs."""
    users, other = Users(str(path)), Users(str(path))
    for one in (users, other):  # two nodes of a cluster, or a node before and after a restart
        one.know_cluster("c", lambda: NO_USERS)
        asyncio.run(one.settled())
    nobody, again = users.verifier("nobody", SHA_256), other.verifier("nobody", SHA_256)
    assert (nobody.salt, nobody.iterations) == (again.salt, again.iterations)
    assert nobody.salt != users.verifier("somebody", SHA_256).salt
    assert nobody.stored_key != again.stored_key, "nobody can know it"
    assert len(nobody.salt) == len(users.verifier(ALICE, SHA_256).salt)
    assert nobody.iterations == users.verifier(ALICE, SHA_256).iterations
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
    assert read_again(users).knows_password(ALICE, PASSWORD) is None, "it was right before"
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


def test_S3_the_file_is_read_beside_the_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is read, others are answered by the users from before; who proves himself waits for it."""
    users = Users(str(path))
    verifier = users.verifier(ALICE, SHA_256)
    begun, goes_on = threading.Event(), threading.Event()
    readers: list[threading.Thread] = []

    def read(location: str) -> object:
        readers.append(threading.current_thread())
        begun.set()
        assert goes_on.wait(60)
        return read_users(location)

    monkeypatch.setattr(users_module, "read_users", read)
    set_user(path, ALICE, "another")

    async def test() -> None:
        waiting = asyncio.ensure_future(users.check_password(ALICE, PASSWORD))
        await asyncio.to_thread(begun.wait, 60)
        assert users.is_current(ALICE, verifier)
        # Who does not wait has hashed the password by then.
        assert not (await asyncio.wait({waiting}, timeout=1))[0]
        goes_on.set()
        assert await waiting is None
        assert not users.is_current(ALICE, verifier)

    asyncio.run(test())
    assert len(readers) == 1
    assert readers[0] is not threading.current_thread()


# --- Users of the cluster's metadata ----------------------------------------------------------------------------------


def verifiers(password: str, *mechanisms: str) -> tuple[Verifier, ...]:
    return tuple(make_verifier(each, password, ITERATIONS_MIN) for each in mechanisms or SCRAM_MECHANISMS)


def test_users_of_the_cluster_are_served_until_they_are_removed_or_changed(path: Path) -> None:
    users = Users(str(path))
    cluster = {"bob": verifiers("b")}
    users.know_cluster("c", lambda: cluster)
    assert users.verifier("bob", SHA_256) == cluster["bob"][0]
    proven = check(users, "bob", "b")
    assert proven is not None
    assert users.is_current("bob", proven)
    assert users.knows_password("bob", "b") is not None
    cluster = {"bob": verifiers("another")}
    assert not users.is_current("bob", proven)
    assert users.knows_password("bob", "b") is None
    assert check(users, "bob", "b") is None
    assert check(users, "bob", "another") is not None
    cluster = {}
    assert check(users, "bob", "another") is None
    assert check(users, ALICE, PASSWORD) is not None


def test_S6_whom_the_file_has_is_a_user_by_the_file_alone(path: Path) -> None:
    """Whoever may alter the cluster could else give the first admin another password, or one to log in beside him."""
    users = Users(str(path))
    set_user(path, "half", "file")
    cluster = {ALICE: verifiers("taken over"), "half": verifiers("cluster")}
    users.know_cluster("c", lambda: cluster)
    assert check(users, ALICE, "taken over") is None
    assert check(users, ALICE, PASSWORD) is not None
    assert users.verifier(ALICE, SHA_256).accepts(PASSWORD)
    assert users.is_in_file(ALICE)
    assert check(users, "half", "cluster") is None
    set_user(path, "half", None)
    assert check(users, "half", "cluster") is not None, "it is the cluster's user now"


def test_without_a_file_there_are_the_clusters_users_alone() -> None:
    users = Users("")
    assert not users.has_some
    cluster = {"bob": verifiers("b", "SCRAM-SHA-512")}
    users.know_cluster("c", lambda: cluster)
    assert users.has_some
    assert check(users, "bob", "b") is not None, "by the one mechanism that there is"
    assert check(users, ALICE, PASSWORD) is None


def java_salt(number: int) -> bytes:
    """As Java's clients make them."""
    digits = ""
    value = int.from_bytes(hashlib.sha256(str(number).encode()).digest()) >> 126
    while value:
        value, digit = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


def test_S5_users_that_there_are_not_look_like_those_that_other_clients_made() -> None:
    """Java's clients hash 4096 times, and salt with text; librdkafka salts with 64 bytes."""
    users = Users("")
    salts = [*(java_salt(number) for number in range(90)), *(os.urandom(64) for _ in range(10))]
    cluster = {
        f"user-{number}": (Verifier(SHA_256, 4096 if number < 90 else 8192, salt, b"s" * 32, b"t" * 32),)
        for number, salt in enumerate(salts)
    }
    users.know_cluster("c", lambda: cluster)
    asyncio.run(users.settled())
    found = [users.verifier(f"nobody-{number}", SHA_256) for number in range(300)]
    assert found[:20] == [
        replace(users.verifier(f"nobody-{number}", SHA_256), stored_key=one.stored_key, server_key=one.server_key)
        for number, one in enumerate(found[:20])
    ], "always the same"
    java = [one for one in found if one.iterations == 4096]
    assert 200 < len(java) < 300, "as frequent as among the users"
    assert all(20 <= len(one.salt) <= 26 and one.salt.isalnum() and one.salt.islower() for one in java)
    assert len({one.salt for one in found}) == 300
    assert {(one.iterations, len(one.salt)) for one in found if one not in java} == {(8192, 64)}
    stays = [one.iterations for one in found]
    cluster = {**cluster, "one more": (Verifier(SHA_256, 16_384, b"salt", b"s" * 32, b"t" * 32),)}
    asyncio.run(users.settled())
    changed = [users.verifier(f"nobody-{number}", SHA_256).iterations for number in range(300)]
    assert sum(before != after for before, after in zip(stays, changed, strict=True)) < 20


def test_S5_a_password_of_nobody_takes_the_hashing_that_a_users_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    users = Users("")
    cluster = {"bob": (make_verifier("SCRAM-SHA-512", "b", 16_000),)}
    users.know_cluster("c", lambda: cluster)
    hashed: list[tuple[str, int]] = []
    accepts = Verifier.accepts
    monkeypatch.setattr(
        Verifier,
        "accepts",
        lambda verifier, password: (
            hashed.append((verifier.mechanism, verifier.iterations)) or accepts(verifier, password)
        ),
    )
    for name in ("bob", "nobody"):
        assert check(users, name, "wrong") is None
    assert hashed == [("SCRAM-SHA-512", 16_000)] * 2
