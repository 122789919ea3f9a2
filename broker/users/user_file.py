"""The file of users: one a line, its name, a verifier for each mechanism and when it was added, separated by spaces.

# comments are lines of their own
alice SCRAM-SHA-256$10000:... SCRAM-SHA-512$10000:... added=2026-11-28T14:30:00.000Z

Another password leaves `added` as it is: a user who was removed and added again is somebody else, who gets no
delegation tokens of the one before. A line may lack it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from semel.broker.users.verifiers import parse_verifier, verifier_text
from semel.protocol.errors import UsageError
from semel.protocol.scram import Verifier, check_user_name
from semel.runtime.clock import SystemClock

_ADDED: Final = "added="
USERS_BYTES_MAX: Final = 16 << 20

UserVerifiers = Mapping[str, tuple[Verifier, ...]]


class FileUsers(NamedTuple):
    """What a file has. `added_ms`: when users were added, in milliseconds since 1970, of those whose lines say it."""

    verifiers: UserVerifiers = MappingProxyType({})
    added_ms: Mapping[str, int] = MappingProxyType({})


def read_users(path: str) -> FileUsers:
    """Return the users of a file. Raises `UsageError` saying what is wrong with which line, and `OSError`."""
    with Path(path).open("rb") as file:
        data = file.read(USERS_BYTES_MAX + 1)
    if len(data) > USERS_BYTES_MAX:
        raise UsageError(f"{path} has more than {USERS_BYTES_MAX} bytes")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8, at byte {error.start}") from None
    if data and not data.endswith(b"\n"):
        raise UsageError(f"{path} does not end with a whole line: it may be written just now")
    users: dict[str, tuple[Verifier, ...]] = {}
    added: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            when = words.pop() if words[-1].startswith(_ADDED) else ""
            if not words[1:]:  # the word may be a password, where it is another file
                raise UsageError("a user has a name and a verifier, as `semel user add` writes them")
            verifiers = [parse_verifier(word) for word in words[1:]]
            name = check_user_name(words[0])
            if name in users:
                raise UsageError(f"the user {name} is there twice")
            users[name] = _one_each(name, verifiers)
            if when:
                added[name] = _milliseconds(when.removeprefix(_ADDED))
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error.message}") from None
    return FileUsers(users, added)


def _milliseconds(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
        return round(when.timestamp() * 1000) if when.tzinfo is not None else _no_time(text)
    except (ValueError, OverflowError):
        return _no_time(text)


def _no_time(text: str) -> int:
    raise UsageError(f"{_ADDED}{text[:40]} is no time: it looks like {_ADDED}2026-11-28T14:30:00.000Z")


def _added_text(added_ms: int) -> str:
    when = datetime.fromtimestamp(added_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{_ADDED}{when.removesuffix('+00:00')}Z"


def _one_each(name: str, verifiers: Sequence[Verifier]) -> tuple[Verifier, ...]:
    if len({one.mechanism for one in verifiers}) < len(verifiers):
        raise UsageError(f"the user {name} has two verifiers for one mechanism")
    return tuple(verifiers)


def write_user(path: str, name: str, verifiers: Sequence[Verifier] | None) -> bool:
    """Add a user to a file, or change him; None removes him. Other lines stay. Returns whether he was there before.

    Who is added keeps the time of that until he is removed. The file is replaced at once, so that a node reads the one
    or the other. Raises `UsageError`, `OSError`.
    """
    with _alone(Path(path).resolve().parent):
        return _write_user(path, name, verifiers)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time change a file: what two of them have read would lack what the other one writes."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"the directory {folder} can't be used: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_user(path: str, name: str, verifiers: Sequence[Verifier] | None) -> bool:
    before, there = "", FileUsers()
    try:
        there = read_users(path)  # what is broken is not written over
        before = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    lines = before.splitlines()
    kept = [line for line in lines if not line.split() or line.split()[0] != name]
    if verifiers is not None:
        added_ms = there.added_ms.get(name) if name in there.verifiers else SystemClock().now_ms()
        when = [] if added_ms is None else [_added_text(added_ms)]
        kept.append(" ".join([check_user_name(name), *map(verifier_text, verifiers), *when]))
    target = Path(path).resolve()
    descriptor, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in kept))
            file.flush()
            os.fsync(file.fileno())
        _keep_access(target, made)
        os.replace(made, target)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise UsageError(f"{path} can't be replaced, because it alone is mounted: mount its directory") from None
        raise
    finally:
        Path(made).unlink(missing_ok=True)  # it has another name by then, where all went well
    return len(kept) - (verifiers is not None) < len(lines)


def _keep_access(target: Path, made: str) -> None:
    """Let those read the new file who could read the one before; a first one only its owner."""
    try:
        state = target.stat()
    except FileNotFoundError:
        return
    os.chmod(made, state.st_mode & 0o7777)
    if (os.geteuid(), os.getegid()) != (state.st_uid, state.st_gid):
        os.chown(made, state.st_uid, state.st_gid)
