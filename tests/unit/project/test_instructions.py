"""The count of instructions: what it reads of callgrind's files, and when it says that something is slower."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
sys.path.append(str(BENCH))

import instructions  # noqa: E402
from counted.callgrind import Callgrind, read_counts  # noqa: E402


def test_counts_are_read_by_the_name_they_were_written_under(tmp_path: Path) -> None:
    files = {
        "node.out.1": "desc: Trigger: Client Request: produce 100\ntotals: 700\n",
        "node.out.2": "desc: Trigger: Client Request: produce 100\nsummary: 500\n",
        "node.out.10": "desc: Trigger: Client Request: commit 30\nsummary: 90\n",
        "node.out.11": "desc: Trigger: Program termination\nsummary: 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_counts(tmp_path / "node.out") == {"produce 100": [700, 500], "commit 30": [90]}


@pytest.mark.parametrize(
    ("now", "is_slower"),
    [(50.0, False), (54.0, False), (56.0, True), (40.0, False)],
    ids=["same", "near", "more", "less"],
)
def test_what_grew_by_more_than_the_tolerance_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], now: float, is_slower: bool
) -> None:
    monkeypatch.setattr(instructions, "RECORDED", tmp_path / "instructions.toml")
    assert instructions._record({"produce": 50.0, "commit": 500.0}) == 0
    assert instructions._compare({"produce": now, "commit": 500.0}) == is_slower
    assert ("SLOWER" in capsys.readouterr().out) == is_slower


def test_what_was_never_written_down_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "RECORDED", tmp_path / "instructions.toml")
    assert instructions._compare({"produce": 50.0}) == 1


def test_everything_that_is_counted_is_written_down() -> None:
    assert instructions._recorded().keys() == instructions.NAMES.keys()


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    command = [sys.executable, "-P", str(BENCH / "instructions.py"), "prodce"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no prodce; choose from produce" in done.stderr


def test_without_valgrind_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-P", str(BENCH / "instructions.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "apt install valgrind" in done.stderr) == (2, True)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_only_what_is_between_start_and_stop_is_counted(tmp_path: Path) -> None:
    """The same work counts the same each time, and twice the work about twice."""
    program = """
import sys
sys.path.append(sys.argv[1])
from counted.callgrind import Callgrind

def work(rounds):
    for _ in range(rounds):
        "".join(["a", "b"])

callgrind = Callgrind()
assert callgrind.is_running
for rounds in (1000, 1000, 1000, 2000):
    work(rounds)
    callgrind.start()
    work(rounds)
    callgrind.stop(f"work {rounds}")
    work(5000)
"""
    out_file = tmp_path / "out"
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out_file}", "--quiet"]
    command += [sys.executable, "-P", "-S", "-c", program, str(BENCH)]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env={**os.environ, "PYTHONHASHSEED": "0"})
    counts = read_counts(out_file)
    assert counts.keys() == {"work 1000", "work 2000"}
    _, once, again = counts["work 1000"]  # the first of all also looks up what it calls
    assert again == pytest.approx(once, rel=0.01)
    assert counts["work 2000"][0] == pytest.approx(2 * once, rel=0.1)


def test_without_valgrind_nothing_is_counted_and_nothing_breaks() -> None:
    callgrind = Callgrind()
    assert not callgrind.is_running
    callgrind.start()
    callgrind.stop("nothing")
