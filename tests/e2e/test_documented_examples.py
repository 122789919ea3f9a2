"""The examples in docs/, run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from live_node import LiveNode

import semel

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str, containing: str) -> str:
    """Return the one block of Python in a page that holds `containing`."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if containing in block]
    assert isinstance(block, str)
    return block


def test_T12_T13_the_import_with_a_pool_of_processes_happens_once(tmp_path: Path) -> None:
    program = tmp_path / "nightly_import.py"
    program.write_text(example("shared-transactions.md", "multiprocessing.Pool()"))
    day = tmp_path / "2026-11-21"
    day.mkdir()
    for number in range(3):
        (day / f"{number}.csv").write_text("".join(f"sensor-{number},{value}\n" for value in range(100)))
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("readings", partitions=2)

        def run() -> str:
            return subprocess.run(
                [sys.executable, str(program), str(day)],
                env={**os.environ, "SEMEL_BOOTSTRAP": node.bootstrap},
                check=True,
                capture_output=True,
                text=True,
                timeout=120,
            ).stdout

        assert run() == "2026-11-21 is imported\n"
        assert run() == "2026-11-21 was imported before: 3 files\n"
        values: list[bytes | None] = []
        with semel.Consumer(node.bootstrap, group="readers", topics=["readings"]) as consumer:
            while len(values) < 300:
                values += [record.value for record in consumer.poll(1.0) or ()]
            assert consumer.poll(0.5) is None
    assert sorted(value or b"" for value in values) == sorted(
        b"sensor-%d,%d" % (number, value) for number in range(3) for value in range(100)
    )
