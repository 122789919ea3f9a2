"""Simulated worlds, each from its seed: nothing is lost, doubled or torn, and everybody finishes (docs/simulation.md).

Each test runs in a process of its own, where nothing else has been imported or collected, and sets of texts have one
order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS_A_TEST = 3
TESTS = 8
CLUSTER_TESTS = 2


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    support = ROOT / "tests" / "support"
    path = os.pathsep.join(map(str, (ROOT / "tests", support / "pipelines", support / "clients")))
    return subprocess.run(
        [sys.executable, "-P", "-m", "simulation", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, SEEDS_A_TEST * TESTS, SEEDS_A_TEST))
def test_E1_D1_T3_P1_L1_worlds_full_of_faults_are_clean(first: int) -> None:
    done = simulate("--seeds", str(SEEDS_A_TEST), "--first", str(first), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SEEDS_A_TEST} seeds, 0 failed" in done.stdout


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, SEEDS_A_TEST * CLUSTER_TESTS, SEEDS_A_TEST))
def test_R1_R3_R4_R5_D1_worlds_with_three_nodes_are_clean(first: int) -> None:
    done = simulate("--world", "cluster", "--seeds", str(SEEDS_A_TEST), "--first", str(first), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SEEDS_A_TEST} seeds, 0 failed" in done.stdout


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, SEEDS_A_TEST * CLUSTER_TESTS, SEEDS_A_TEST))
def test_E1_T3_T4_L1_G1_O1_worlds_whose_coordinators_move_are_clean(first: int) -> None:
    done = simulate("--world", "transactions", "--seeds", str(SEEDS_A_TEST), "--first", str(first), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SEEDS_A_TEST} seeds, 0 failed" in done.stdout


@pytest.mark.drawn(1, "worlds of diskless topics")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, SEEDS_A_TEST * CLUSTER_TESTS, SEEDS_A_TEST))
def test_E1_D1_R3_R4_P1_L1_worlds_whose_topics_are_diskless_are_clean(first: int) -> None:
    done = simulate("--world", "diskless", "--seeds", str(SEEDS_A_TEST), "--first", str(first), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SEEDS_A_TEST} seeds, 0 failed" in done.stdout


@pytest.mark.drawn(1, "worlds of diskless topics")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_E1_D1_R1_R3_P7_worlds_whose_topics_become_diskless_are_clean() -> None:
    done = simulate("--world", "switching", "--seeds", str(SEEDS_A_TEST), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SEEDS_A_TEST} seeds, 0 failed" in done.stdout


@pytest.mark.drawn(1)
@pytest.mark.parametrize("world", ["node", "cluster", "transactions", "switching"])
def test_the_same_seed_does_the_same(world: str) -> None:
    told = {simulate("--seed", "4", "--world", world, hash_seed=hash_seed).stdout for hash_seed in ("0", "1")}
    assert len(told) == 1
    (first,) = told
    assert "seed 4: clean" in first
    assert simulate("--seed", "5", "--world", world).stdout != first
