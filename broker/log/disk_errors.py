"""What an operator reads when the disk fails."""

from __future__ import annotations

import errno
import os
from typing import Final

from semel.runtime.regular_files import NotARegularFileError

_MADE_AGAIN: Final = (".index", ".timeindex", ".txnindex", ".snapshot")
"""Files that a start makes again from the log where they are missing."""
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: BaseException | None) -> bool:
    """Say whether a write failed because there is no room, or no quota left."""
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def is_directory(error: BaseException | None) -> bool:
    """Say whether something failed because a directory is where a file belongs."""
    return isinstance(error, OSError) and error.errno == errno.EISDIR


def is_misplaced(error: BaseException | None) -> bool:
    """Say whether something failed because a directory, a pipe, a socket or a device is where a file belongs."""
    return is_directory(error) or isinstance(error, NotARegularFileError)


def told_misplaced(error: OSError) -> str:
    """Return what there is to say of such an error, with the next step."""
    path = os.fsdecode(error.filename)
    if isinstance(error, NotARegularFileError):
        return (
            f"{path} is {error.kind}, and a file belongs there. Stop the node and move it away; "
            f"{next_after_misplaced(path)}"
        )
    return (
        f"{path} is a directory, and a file belongs there. Stop the node and move the directory away; "
        f"{next_after_misplaced(path)}"
    )


def next_after_misplaced(path: str) -> str:
    """Return what to do once that which was in place of the file `path` is moved away."""
    if path.endswith(_MADE_AGAIN):
        return "the node makes the file again"
    if path.endswith("/.kafka_cleanshutdown"):
        return "the next start recovers, as after a kill"
    return "then restore the file from a backup"


def remedy(error: BaseException) -> str:
    """Return what to do about the disk, as the middle of a sentence."""
    if is_full(error):
        return "make room on the disk (delete what is not Semel's, or enlarge it)"
    if is_directory(error):
        return "move the directory away, a file belongs there"
    if isinstance(error, NotARegularFileError):
        return f"move away what is in the file's place ({error.kind})"
    if isinstance(error, NotADirectoryError):
        return "move away what is in the directory's place"
    if isinstance(error, OSError) and error.errno == errno.EBUSY:
        return "this is tried again, and mostly passes soon"
    return "check the disk"
