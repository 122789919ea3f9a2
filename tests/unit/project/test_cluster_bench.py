"""`bench/cluster.py`: its table, its goals, and which rows run in which order. What it measures no test asserts."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The program, under a name of its own: there is another module `cluster` on the path."""
    spec = importlib.util.spec_from_file_location("cluster_bench", BENCH / "cluster.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def report(bench: ModuleType) -> Any:
    return sys.modules["clusters.report"]


def test_a_goal_is_for_less_or_for_more(report: Any) -> None:
    seconds, ratio = report.Goal(3.0, 5.0, "s"), report.Goal(1.3, 1.0)
    assert [seconds.verdict(value, less_is_better=True) for value in (3.0, 5.0, 5.1)] == ["reached", "floor", "missed"]
    assert [ratio.verdict(value, less_is_better=False) for value in (1.3, 1.0, 0.9)] == ["reached", "floor", "missed"]
    assert [str(seconds), str(ratio), str(report.Goal(0.0, 0.0, "requests"))] == ["3 s (5)", "1.3x (1)", "0 requests"]


def test_a_row_has_medians_ratio_spread_and_what_was_reached(report: Any) -> None:
    samples = {"kafka": [8.0, 9.0, 10.0], "semel": [1.0, 4.0, 2.0]}
    row = report.ClusterRow("to a record", "defaults", "s", samples, True, goal=report.Goal(1.0, 5.0, "s"))
    assert report.table([row])[-1] == (
        "| to a record | defaults | 9.00 s | 2.00 s | 0.22x | 8.00 to 10.0 / 1.00 to 4.00 |  | 1 s (5) | floor |  |"
    )


def test_a_ratio_is_what_is_judged_where_the_goal_is_one(report: Any) -> None:
    samples = {"kafka": [100.0], "semel": [150.0]}
    costs = {"kafka": "3 us", "semel": "2 us"}
    row = report.ClusterRow("transactions", "os", "a second", samples, costs=costs, goal=report.Goal(1.5, 1.0))
    assert report.table([row])[-1].endswith("| 1.50x | 100 to 100 / 150 to 150 | 3 us / 2 us | 1.5x (1) | reached |  |")


@pytest.mark.parametrize("samples", [{"semel": [2.0]}, {"semel": [2.0], "kafka": []}])
def test_a_peer_that_was_not_measured_is_left_out(report: Any, samples: Any) -> None:
    row = report.ClusterRow("partitions", "os", "s", samples, goal=report.Goal(1.0, 0.8), why="too many for it")
    assert (
        report.table([row])[-1]
        == "| partitions | os | - | 2.00 s | - | - / 2.00 to 2.00 |  | 1x (0.8) |  | too many for it |"
    )
    assert [figure.name for figure in report.figures_of([row])] == ["partitions, os, semel"]


def test_no_failed_request_has_no_ratio(report: Any) -> None:
    goal = report.Goal(0.0, 0.0, "requests")
    row = report.ClusterRow("failed", "defaults", "requests", {"kafka": [0.0], "semel": [0.0]}, True, goal=goal)
    assert "| 0.00 requests | 0.00 requests | - |" in report.table([row])[-1]
    assert report.verdict(row) == "reached"


def test_a_pause_that_began_before_the_moment_counts(bench: ModuleType) -> None:
    longest_pause = sys.modules["clusters.clients"].longest_pause
    assert longest_pause([1.0, 9.0, 10.0, 12.5, 13.0], since=11.0) == 2.5
    assert longest_pause([5.0], since=1.0) == 0.0


def test_rows_of_one_kind_follow_each_other_and_those_apart_come_last(bench: ModuleType) -> None:
    assert bench.in_order(["many", "latency", "failover", "produce"]) == [
        ("failover", "defaults"),
        ("latency", "os"),
        ("produce", "os"),
        ("latency", "disk"),
        ("produce", "disk"),
        ("many", "defaults"),
    ]


def test_sizes_that_are_given_win_over_those_of_a_quick_run(bench: ModuleType) -> None:
    arguments = bench.arguments_of(["--quick", "--ids", "100_000", "--rows", "stop,coordinator"])
    scale = bench.scale_of(arguments)
    assert (arguments.rows, scale.ids, scale.rounds) == (["stop", "coordinator"], 100_000, 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rows", "stop,start2"], "no such row: start2"),
        (["--rows", "role"], "name the other one with --against"),
        (["--kills", "0"], "must be at least 1"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        bench.arguments_of(words)
    assert says in capsys.readouterr().err


def test_a_row_that_takes_too_long_is_given_up(bench: ModuleType) -> None:
    with pytest.raises(bench.RowTimeoutError), bench.at_most(0.01):
        threading.Event().wait(60)
