"""How much of each kind a node tells of itself in one answer: by default, and at most."""

from __future__ import annotations

from typing import Final

SNAPSHOT_LIMIT: Final = 100
SNAPSHOT_LIMIT_MAX: Final = 1_000
HISTORY_LIMIT: Final = 200
HISTORY_LIMIT_MAX: Final = 10_000
