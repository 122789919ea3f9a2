"""The file of users: what is in it stays, what is broken is named, and nobody else may read it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from user_files import ALICE, set_user

from semel.broker.users.user_file import read_users, write_user
from semel.protocol.errors import UsageError
from semel.runtime.clock import SystemClock


def test_users_are_added_changed_and_removed_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "users"
    set_user(path)
    path.write_text(f"# ours\n\n{path.read_text()}")
    path.chmod(0o640)
    set_user(path, "bob", "b")
    before = read_users(str(path)).verifiers
    assert sorted(before) == [ALICE, "bob"]
    assert [one.mechanism for one in before["bob"]] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    set_user(path, "bob", "c")
    after = read_users(str(path)).verifiers
    assert after[ALICE] == before[ALICE]
    assert after["bob"] != before["bob"]
    set_user(path, ALICE, None)
    assert sorted(read_users(str(path)).verifiers) == ["bob"]
    assert path.read_text().startswith("# ours\n\n")
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["users"]


def test_S6_a_user_keeps_the_time_at_which_he_was_added_until_he_is_removed(tmp_path: Path) -> None:
    path = set_user(tmp_path / "users")
    first = read_users(str(path)).added_ms[ALICE]
    set_user(path, ALICE, "another")
    assert read_users(str(path)).added_ms == {ALICE: first}, "another password, the same user"
    set_user(path, ALICE, None)
    while SystemClock().now_ms() <= first:
        pass
    set_user(path, ALICE)
    assert read_users(str(path)).added_ms[ALICE] > first


def test_a_line_without_a_time_has_none_and_gets_none_with_another_password(tmp_path: Path) -> None:
    path = set_user(tmp_path / "users")
    path.write_text(path.read_text().partition(" added=")[0] + "\n")
    for password in ("a", "b"):
        assert read_users(str(path)).added_ms == {}
        set_user(path, ALICE, password)


@pytest.mark.parametrize("when", ["", "yesterday", "2026-11-28", "2026-11-28T14:30:00", "26-11-28T14:30:00Z"])
def test_what_is_no_time_is_named(tmp_path: Path, when: str) -> None:
    path = set_user(tmp_path / "users")
    path.write_text(path.read_text().partition(" added=")[0] + f" added={when}\n")
    with pytest.raises(UsageError, match=rf"line 1: added={when} is no time: it looks like added=2026"):
        read_users(str(path))


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    assert set_user(tmp_path / "users").stat().st_mode & 0o077 == 0


def test_who_was_there_before_is_told(tmp_path: Path) -> None:
    path = set_user(tmp_path / "users")
    verifiers = read_users(str(path)).verifiers[ALICE]
    assert [write_user(str(path), name, verifiers) for name in (ALICE, "bob", ALICE)] == [True, False, True]
    assert [write_user(str(path), ALICE, None) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    "name", ["", "a b", "a:b", "a,b", "a=b", "#a", "a\n", "é" * 128, "a\x7f", "jose\u0301", "\udcff"]
)
def test_names_that_clients_could_not_send_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a user can't be called"):
        set_user(tmp_path / "users", name)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("hunter2-secret", "line 3: a user has a name and a verifier"),
        ("bob secret", "line 3: this is no SCRAM-SHA-256 or SCRAM-SHA-512 verifier"),
        ("a:b x", "line 3: this is no SCRAM-SHA-256 or SCRAM-SHA-512 verifier"),
    ],
)
def test_the_broken_line_is_named_and_not_written_over(tmp_path: Path, broken: str, said: str) -> None:
    path = set_user(tmp_path / "users")
    path.write_text(f"\n{path.read_text()}{broken}\n")
    before = path.read_text()
    with pytest.raises(UsageError, match=said) as refused:
        read_users(str(path))
    assert "secret" not in str(refused.value)
    with pytest.raises(UsageError, match=said):
        set_user(path, "carol")
    assert path.read_text() == before


def test_a_user_is_there_once_with_a_verifier_for_each_mechanism(tmp_path: Path) -> None:
    path = set_user(tmp_path / "users")
    line = path.read_text()
    path.write_text(line * 2)
    with pytest.raises(UsageError, match="line 2: the user alice is there twice"):
        read_users(str(path))
    path.write_text(f"{line.partition(' added=')[0]} {line.split()[1]}\n")
    with pytest.raises(UsageError, match="two verifiers for one mechanism"):
        read_users(str(path))


def test_what_is_no_text_or_far_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"alice \xff\n")
    with pytest.raises(UsageError, match="not text in UTF-8, at byte 6"):
        read_users(str(path))
    monkeypatch.setattr("semel.broker.users.user_file.USERS_BYTES_MAX", 100)
    path.write_bytes(b"#" * 101)
    with pytest.raises(UsageError, match="more than 100 bytes"):
        read_users(str(path))


def test_a_file_that_is_written_just_now_is_not_taken_for_whole(tmp_path: Path) -> None:
    path = set_user(tmp_path / "users")
    path.write_text(path.read_text()[:-1])
    with pytest.raises(UsageError, match="does not end with a whole line"):
        read_users(str(path))


def test_commands_at_the_same_time_lose_no_user(tmp_path: Path) -> None:
    path = tmp_path / "users"
    verifiers = read_users(str(set_user(path))).verifiers[ALICE]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_user(str(path), f"user-{number}", verifiers), range(40)))
    assert len(read_users(str(path)).verifiers) == 41


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"the directory {tmp_path}/none can't be used"):
        set_user(tmp_path / "none" / "users")
