"""Without a C compiler Semel runs interpreted: a whole node and its clients, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support" / "protocol" / "interpreted_pipeline.py"


def test_E1_T8_an_interpreted_node_refused_every_transaction() -> None:
    """A parsed partition lacked what only the compiled one has on its own, and the verification failed at it."""
    ran = subprocess.run([sys.executable, "-P", str(SCRIPT)], capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == "everything once\n"
