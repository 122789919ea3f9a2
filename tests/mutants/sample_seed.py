"""What draws the faults that CI plants: not all of them every time."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path


def sample_seed(checkout: Path) -> str:
    """The commit, so that each one is asked about other faults, and a repetition about the same; else the day."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=checkout, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or datetime.now(UTC).date().isoformat()
