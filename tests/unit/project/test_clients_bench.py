"""`bench/clients.py`: its table, its arguments, its paced records. What it measures no test asserts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The program, under a name of its own."""
    spec = importlib.util.spec_from_file_location("clients_bench", BENCH / "clients.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def peers(bench: ModuleType) -> Any:
    return sys.modules["workloads.client_peers"]


def samples_of(**taken: list[tuple[float, float, float, float]]) -> dict[str, list[Any]]:
    """Return samples from their counts, seconds, and CPU seconds of node and client."""
    sample = sys.modules["harness"].Sample  # type: ignore[attr-defined]
    return {
        name: [sample(count, s, node_s, {"p50": s * 1e6}, client_s) for count, s, node_s, client_s in all_]
        for name, all_ in taken.items()
    }


def test_a_row_has_rates_ratio_and_the_cpu_of_client_and_node(peers: Any) -> None:
    samples = samples_of(
        semel=[(1000, 0.5, 0.001, 0.002), (1000, 0.25, 0.002, 0.004), (1000, 0.2, 0.002, 0.006)],
        peer=[(1000, 1.0, 0.004, 0.008)] * 3,
        other=[(1.0, 1.0, 1.0, 1.0)],
    )
    row = peers.rate_row("produce", "os", samples, "semel", "peer")
    assert peers.table([row])[-1] == (
        "| produce | os | semel / peer | 1.00 k records/s | 4.00 k records/s | 4.00x | 1.00 to 1.00 / 2.00 to 5.00 "
        "| 8.00 / 4.00 us a record | 4.00 / 2.00 us a record | 4x (2) | reached |"
    )
    assert [(one.name, one.value, one.unit, one.goal) for one in row.figures()] == [
        ("produce, os, peer", 1.0, "k records/s", ""),
        ("produce, os, peer: client's CPU a record", 8.0, "us", ""),
        ("produce, os, peer: node's CPU a record", 4.0, "us", ""),
        ("produce, os, semel", 4.0, "k records/s", "4x (2)"),
        ("produce, os, semel: client's CPU a record", 4.0, "us", ""),
        ("produce, os, semel: node's CPU a record", 2.0, "us", ""),
    ]


@pytest.mark.parametrize(("seconds", "verdict"), [(0.4, "reached"), (0.7, "floor"), (0.8, "missed")])
def test_less_is_better_for_a_percentile(peers: Any, seconds: float, verdict: str) -> None:
    samples = samples_of(semel=[(1, seconds, 0.0, 0.0)], peer=[(1, 1.0, 0.0, 0.0)])
    goal = sys.modules["workloads.client_latency"].LESS  # type: ignore[attr-defined]
    row = peers.least_row("acknowledged", "os", samples, "semel", "peer", what="p50", goal=goal)
    assert (row.ratio, row.verdict) == (seconds, verdict)


def test_paced_records_are_known_by_their_numbers(bench: ModuleType) -> None:
    modules: Any = sys.modules
    times = modules["workloads.latency"].Times(3)
    values = [times.next_value(number) for number in range(3)]
    assert {len(value) for value in values} == {100}
    times.arrive([values[2], values[0]])
    with pytest.raises(AssertionError, match="2 of 3 records arrived"):
        times.sample(modules["harness"].Sample(3, 1.0))
    times.arrive([values[1]])
    assert times.are_complete
    assert times.arrived[1] > times.arrived[0] == times.arrived[2]
    assert times.sample(modules["harness"].Sample(3, 1.0)).rates.keys() == {
        "acknowledged p50", "acknowledged p99", "end to end p50", "end to end p99",
    }  # fmt: skip


def test_rounds_that_are_given_win_over_those_of_a_quick_run(bench: ModuleType, peers: Any) -> None:
    arguments = bench.arguments_of(["--quick", "--rounds", "3", "latency"])
    assert (arguments.workloads, bench.scale_of(arguments).rounds) == (["latency"], 3)
    assert bench.scale_of(bench.arguments_of([])) == peers.FULL


@pytest.mark.parametrize(
    ("words", "says"), [(["latncy"], "no such workload: latncy"), (["--rounds", "0"], "--rounds must be at least 1")]
)
def test_what_can_not_be_measured_is_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        bench.arguments_of(words)
    assert says in capsys.readouterr().err


def test_help_says_what_each_workload_measures(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.arguments_of(["--help"])
    said = capsys.readouterr().out
    for name, run in bench.WORKLOADS.items():
        assert f"  {name:14}{run.__doc__.splitlines()[0]}\n" in said
