"""Of each group of long tests a commit runs a few, the same ones each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
GIVEN = """
import pytest

@pytest.mark.drawn(2)
@pytest.mark.parametrize("number", range(5))
def test_numbers(number):
    pass

@pytest.mark.drawn(1, "both")
def test_one():
    pass

@pytest.mark.drawn(1, "both")
def test_other():
    pass

def test_always():
    pass
"""
CONFTEST = """
from drawn_tests import leave_others_out

def pytest_collection_modifyitems(config, items):
    leave_others_out(config, items)

def pytest_configure(config):
    config.addinivalue_line("markers", "drawn(count, group)")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_given.py").write_text(GIVEN)
    return tmp_path


def run(folder: Path, *arguments: str, every: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "EVERY_TEST"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments],
        env={**environment, "PYTHONPATH": str(TESTS), **({"EVERY_TEST": every} if every else {})},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def passed(told: str) -> set[str]:
    return {line.partition("::")[2].split()[0] for line in told.splitlines() if " PASSED" in line}


def test_a_commit_runs_so_many_of_a_test_or_of_a_group_and_the_same_again(folder: Path) -> None:
    ran = passed(run(folder))
    assert len([name for name in ran if name.startswith("test_numbers")]) == 2
    assert len(ran & {"test_one", "test_other"}) == 1
    assert "test_always" in ran
    assert passed(run(folder)) == ran


def test_all_run_where_one_asks_for_all_or_names_them(folder: Path) -> None:
    assert len(passed(run(folder, every="1"))) == 8
    assert len(passed(run(folder, "test_given.py::test_numbers"))) == 5
    assert len(passed(run(folder, "-k", "one or other"))) == 2


def test_a_group_has_one_count(folder: Path) -> None:
    (folder / "test_more.py").write_text('import pytest\n@pytest.mark.drawn(2, "both")\ndef test_more():\n    pass\n')
    assert "others draw 1 of 'both', and not 2" in run(folder)
