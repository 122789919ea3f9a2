"""What an operator is told when the disk fails."""

from __future__ import annotations

import errno
from typing import Final

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: BaseException | None) -> bool:
    """Say whether a write failed because there is no room, or no quota left."""
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def remedy(error: BaseException) -> str:
    """Return what to do about the disk, as the middle of a sentence."""
    if is_full(error):
        return "make room on the disk (delete what is not Semel's, or enlarge it)"
    return "look after the disk"
