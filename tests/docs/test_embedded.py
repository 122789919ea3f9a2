"""The programs of the page about a log inside a program, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import semel

PAGE = Path(__file__).parents[2] / "docs" / "embedded.md"


def block(containing: str) -> str:
    """Return the one block of Python in the page that holds `containing`."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if containing in block]
    assert isinstance(found, str)
    return found


def run(program: str, folder: Path) -> list[str]:
    """Run a program of the page; return the lines that it prints."""
    path = folder / "program.py"
    path.write_text(block(program))
    command = [sys.executable, "-P", str(path), str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(done.stdout.splitlines())


@pytest.mark.slow
def test_E1_the_program_bills_each_order_once_however_often_it_runs(tmp_path: Path) -> None:
    for _ in range(2):
        assert run("# shop.py", tmp_path) == ["ann 3 apples", "bob 1 pear"]
    with semel.open(tmp_path / "data") as log, log.consumer(group="test", topics=["bills"]) as bills:
        found: list[bytes | None] = []
        while len(found) < 4:
            batch = bills.poll(60)
            assert batch is not None
            found += [record.value for record in batch]
    assert sorted(value or b"" for value in found) == [b"bill for 1 pear"] * 2 + [b"bill for 3 apples"] * 2


@pytest.mark.slow
def test_the_program_for_asyncio_prints_what_it_wrote(tmp_path: Path) -> None:
    assert run("# shop_aio.py", tmp_path) == ["3 apples"]
    assert run("# shop_aio.py", tmp_path) == ["3 apples 3 apples"]


def test_settings_and_ports_are_given_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, semel.EmbeddedLog] = {"semel": semel}  # type: ignore[dict-item]
    exec(block("settings="), names)
    with names["log"] as log:
        assert log.path == str(tmp_path / "data")
        assert len(log.create_topic("orders").partitions) == 4
    exec(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", block("kafka=")), names)
    assert re.fullmatch(r"127\.0\.0\.1:\d+ 127\.0\.0\.1:\d+\n", capsys.readouterr().out)
