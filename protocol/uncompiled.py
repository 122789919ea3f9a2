"""Stands in for the module `cython` where Cython is not installed: what interpreted hot modules use of it.

Cython is needed to build, not to run: compiled modules import nothing of it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

compiled: Final = False
nogil: Final = nullcontext()
uint: Final = int


def cast(kind: Any, value: Any) -> Any:
    """Return the value as it is: a Python integer is as wide as it needs to be."""
    return value
