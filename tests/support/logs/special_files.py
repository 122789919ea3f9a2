"""What is no regular file, in the place of one: a device, a pipe, a socket, a link that leads nowhere."""

from __future__ import annotations

import os
import socket
from pathlib import Path

SPECIAL = {
    "device": "a symbolic link to a device",
    "pipe": "a named pipe (FIFO)",
    "pipe behind a link": "a symbolic link to a named pipe (FIFO)",
    "socket": "a socket",
    "link to nothing": "a symbolic link that leads nowhere",
    "link to itself": "a symbolic link that leads nowhere",
}
"""Each kind, and what it is called."""


def make_special(path: Path, kind: str) -> None:
    """Put one there. A pipe behind a link is made beside it, with the name `pipe`."""
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link to nothing":
        path.symlink_to(path.with_name("nothing-is-here"))
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "pipe behind a link":
        target = path.with_name("pipe")
        os.mkfifo(target)
        path.symlink_to(target)
    else:
        # The path of a socket may have 107 bytes at most.
        with socket.socket(socket.AF_UNIX) as bound:
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                bound.bind(f"/proc/self/fd/{descriptor}/{path.name}")
            finally:
                os.close(descriptor)
