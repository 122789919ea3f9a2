"""Files that a node opens are regular ones: a pipe blocks who opens it, and a device can be read for ever.

Symbolic links to regular files are allowed; links that lead nowhere are no files.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""For opening what may be no regular file: it does not wait for the other end of a pipe. Regular files ignore them."""
_KINDS: Final = (
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotARegularFileError(OSError):
    """A pipe, a socket or a device is where a file belongs. `kind` says which, in words."""

    def __init__(self, kind: str, path: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, and a file belongs there", path)
        self.kind = kind


def special_kind(path: str) -> str:
    """Say what is at `path` if that is neither a regular file nor a directory; empty where it is, or nothing is."""
    try:
        return _kind(os.stat(path).st_mode, path)
    except OSError:
        return "a symbolic link that leads nowhere" if os.path.islink(path) else ""


def check_regular(status: os.stat_result, path: str) -> None:
    """Raise `NotARegularFileError` for what is neither a regular file nor a directory."""
    if not stat.S_ISREG(status.st_mode):
        kind = _kind(status.st_mode, path)
        if kind:
            raise NotARegularFileError(kind, path)


FileSignature = tuple[int, ...]
"""What differs from one state of a file to the next, without reading it."""


def signature(status: os.stat_result) -> FileSignature:
    """Return what tells whether a file has changed, or another one has taken its place."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def signature_of(path: str) -> FileSignature:
    """Return the signature of a regular file. Raises `OSError`, `NotARegularFileError` also for a directory."""
    status = os.stat(path)
    check_regular(status, path)
    if not stat.S_ISREG(status.st_mode):
        raise NotARegularFileError("a directory", path)
    return signature(status)


def open_regular(path: str, flags: int, mode: int = 0o644) -> tuple[int, os.stat_result]:
    """Return the descriptor of a regular file, and its status. It waits for nothing. Raises `NotARegularFileError`.

    With O_CREAT a file is made where nothing is; never where a link leads.
    """
    try:
        try:
            descriptor = os.open(path, (flags & ~os.O_CREAT) | OPEN_FLAGS, mode)
        except FileNotFoundError:
            if not flags & os.O_CREAT or os.path.islink(path):
                raise
            descriptor = os.open(path, flags | os.O_NOFOLLOW | OPEN_FLAGS, mode)
    except OSError as error:
        # Sockets, devices without a driver, and links that lead nowhere are refused by the system.
        kind = special_kind(path)
        if kind:
            raise NotARegularFileError(kind, path) from error
        raise
    try:
        status = os.fstat(descriptor)
        check_regular(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def _kind(mode: int, path: str) -> str:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "")
    return f"a symbolic link to {kind}" if kind and os.path.islink(path) else kind
