"""`make simulate`: what it takes, and how it tells a story."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation import __main__ as command
from simulation import node_scenario, plant
from simulation.command_line import INTERRUPTED
from simulation.simulated_code import code_digest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "0"], "'0' is not a number from 1 to 1,000,000,000"),
        (["--seeds", "-3"], "'-3' is not a number from 1 to"),
        (["--seeds", "9" * 30], "is not a number from 1 to"),
        (["--seed", "-1"], "'-1' is not a number from 0 to"),
        (["--seed", "abc"], "'abc' is not a number from 0 to"),
        (["--workers", "0"], "'0' is not a number from 1 to"),
        (["--patience", "99999999999"], "is not a number from 1 to"),
        (["--workers", "1000"], "--workers 1000 is more than 256"),
        (["--seed", "3", "--seeds", "5"], "leave --seeds out"),
        (["--seed", "3", "--first", "0", "--stop-at", "2"], "leave --first, --stop-at out"),
        (["--seed", "3", "--workers", "2"], "leave --workers out"),
        (["--whole"], "add --seed"),
        (["--world", "flat"], "invalid choice: 'flat'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *words])
    with pytest.raises(SystemExit) as ended:
        command._parse()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--seeds", "0"], ["--first", "-3"], ["--seeds", "٣"]])
def test_a_search_of_planted_faults_takes_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate-faults", *words])
    with pytest.raises(SystemExit) as ended:
        plant._parse()
    assert ended.value.code == 2
    assert "is not a number from" in capsys.readouterr().err


@pytest.mark.drawn(2, "processes that simulate")
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_stopped_says_what_was_done(monkeypatch: pytest.MonkeyPatch, signal_number: int) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    words = [sys.executable, "-P", "-m", "simulation", "--seeds", "100000", "--workers", "1", "--stop-at", "1"]
    words = ["env", "--default-signal=INT", *words]  # who runs in the background of a shell ignores it
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert " of 100000 seeds, " in process.stderr.readline()
        process.send_signal(signal_number)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert " 0 failed; " in out
    assert "product " in out.splitlines()[-1]


@pytest.mark.parametrize("suffix", [".py", ".cpython-311-x86_64-linux-gnu.so"])
def test_code_has_a_digest_that_changes_with_a_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suffix: str
) -> None:
    source = tmp_path / "log.py"
    source.write_text("a = 1\n")
    module = types.ModuleType("product.log")
    module.__file__ = str(tmp_path / f"log{suffix}")
    monkeypatch.setitem(sys.modules, "product.log", module)
    first = code_digest("product")
    assert first == code_digest("product") != code_digest("other")
    source.write_text("a = 2\n")
    assert code_digest("product") != first


def test_a_long_story_keeps_its_cause() -> None:
    """A node that can't start is started a thousand times after it."""
    story = [(0.1, "node#1 has started"), (2.0, "FAULT power is cut")]
    story += [(3.0 + number, f"node#{number + 2} can't start") for number in range(1000)]
    story.insert(500, (400.0, "FAULT the disk is full"))
    lines = command.story_lines(story)
    assert lines[0].endswith("node#1 has started")
    assert lines[-1].endswith("node#1001 can't start")
    assert [line.split("  ")[-1] for line in lines if "FAULT" in line] == [
        "FAULT power is cut",
        "FAULT the disk is full",
    ]
    assert len(lines) < command.STORY_LINES + 5
    assert sum(line.strip().startswith("...") for line in lines) == 2


def test_a_short_story_is_told_whole() -> None:
    story = [(float(number), f"line {number}") for number in range(command.STORY_LINES)]
    assert len(command.story_lines(story)) == command.STORY_LINES


@pytest.mark.drawn(2, "processes that simulate")
def test_several_processes_run_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make simulate` does it: what a process begins with must be found in a new one."""
    command_line = [sys.executable, "-P", "-m", "simulation", "--seeds", "2", "--workers", "2"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ran = subprocess.run(command_line, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("2 seeds, 0 failed; ")
    assert "Traceback" not in ran.stderr


HALF_AN_ANSWER = (
    "os.write(next(one for one in gc.get_objects() if isinstance(one, Connection)).fileno(), bytes([0, 0, 9, 0, 1])); "
    "os._exit(5)"
)
A_WORLD_THAT = """
import gc, os, sys, time
from multiprocessing.connection import Connection
from simulation import runs, workers
from simulation.scenario import Verdict

def run(seed, world):
    if seed == 3:
        {does}
    return Verdict(seed, (), [])

workers.run = run
if __name__ == "__main__":
    ended = workers.verdicts(range(6), 2, "node", 5.0)
    print(sorted((one.seed, [(what.kind, what.detail) for what in one.anomalies]) for one in ended))
"""


@pytest.mark.drawn(2, "processes that simulate")
@pytest.mark.parametrize(
    ("does", "is_told"),
    [
        ("os._exit(7)", "(3, [('died', 'the process that ran it ended with 7')])"),
        ("os.kill(os.getpid(), 9)", "(3, [('died', 'the process that ran it ended with -9')])"),
        ("sys.exit(0)", "(3, [('died', 'the process that ran it ended with 0')])"),
        (HALF_AN_ANSWER, "(3, [('died', 'the process that ran it ended with 5')])"),
        ("time.sleep(600)", "(3, [('no end', 'it ran for more than 5 s')])"),
    ],
)
def test_a_process_that_dies_or_has_no_end_is_a_seed_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, is_told: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(A_WORLD_THAT.format(does=does))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=True)
    assert is_told in ran.stdout
    for seed in (0, 1, 2, 4, 5):
        assert f"({seed}, [])" in ran.stdout
    if "sleep" in does:
        assert "in run" in ran.stderr, "it does not say where it was"


def test_a_process_ends_with_the_one_that_began_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where its world has no end."""
    program, told = tmp_path / "program.py", tmp_path / "pid"
    does = f"open({str(told)!r}, 'w').write(str(os.getpid()) + '.'); exec('while True: pass')"
    program.write_text(A_WORLD_THAT.format(does=does).replace("5.0", "600.0"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with subprocess.Popen([sys.executable, program]) as process:
        try:
            wait_until(lambda: told.exists() and told.read_text().endswith("."), "the world begins")
        finally:
            process.kill()
    worker = int(told.read_text()[:-1])
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "its process ends")


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def test_what_ends_the_process_in_a_world_is_an_anomaly() -> None:
    world = node_scenario.NodeScenario(0, ())
    world._begin = lambda: sys.exit(0)  # type: ignore[method-assign]
    verdict = world.run()
    assert [anomaly.kind for anomaly in verdict.anomalies] == ["checker"]
    assert "SystemExit: 0" in verdict.anomalies[0].detail
