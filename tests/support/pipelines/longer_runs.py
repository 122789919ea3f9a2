"""How long the long tests run: variables that are for the tests alone (tests/README.md).

They are taken out of the environment as soon as they are read: nodes that the tests start take each SEMEL_ variable for
a setting, and refuse those that are none.
"""

from __future__ import annotations

import os

_LONG = ("BEAM", "CHAOS", "CRASH", "FLINK", "FUZZ", "MODEL", "S3", "SPARK", "STREAMS", "UPGRADE")
_PREFIXES = tuple(f"SEMEL_{name}_" for name in _LONG)
_GIVEN = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_PREFIXES)}


def given(name: str, default: str) -> str:
    return _GIVEN.get(name, default)


def examples(count: int) -> int:
    """Return how many examples a property is tried with: `count`, or SEMEL_MODEL_EXAMPLES where that is more."""
    return max(count, int(given("SEMEL_MODEL_EXAMPLES", "0")))
