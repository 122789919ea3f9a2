"""What the benches share: a real node in a process of its own, runs in turn with medians, the table, the JSON file.

The traps that it avoids (GOALS.md): memory is touched before anything is measured, each workload warms up first,
variants take turns within a round so that a bad moment of the machine meets all of them, and medians count.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
TURNS_SCRIPT = ROOT / "bench" / "longest_turns.py"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGESIZE")

# Processes start with compiled bytecode, as an installed package has it: else each of them compiles all sources.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Peer(Protocol):
    """What is measured: what serves the Kafka protocol at `address`. `bootstrap` is for clients that find the rest."""

    @property
    def address(self) -> tuple[str, int]: ...
    @property
    def bootstrap(self) -> str: ...
    def cpu_s(self) -> float: ...
    def memory_mb(self) -> float: ...


# --- A node -----------------------------------------------------------------------------------------------------------


@dataclass
class NodeProcess:
    """A running `semel serve`. `address` is the Kafka listener's, as the raw drivers want it."""

    process: subprocess.Popen[str]
    folder: str
    grpc: str
    address: tuple[str, int]
    start_s: float
    """From the start of the process to its ready line."""
    start_cpu_s: float

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def cpu_s(self) -> float:
        """Return the CPU seconds, user and system, that the node has used so far."""
        return process_cpu_s(self.pid)

    def memory_mb(self) -> float:
        """Return its resident memory."""
        return process_memory_mb(self.pid)

    def stop(self) -> float:
        """End it with SIGTERM and return how long that took."""
        begin = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        assert code == 0, f"the node ended with {code}"
        return time.perf_counter() - begin

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def process_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def process_memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


def spawn_node(
    folder: str,
    settings: Mapping[str, object] | None = None,
    *,
    turns: str | None = None,
    python: str = sys.executable,
    kafka: str = "127.0.0.1:0",
    grpc: str = "127.0.0.1:0",
) -> subprocess.Popen[str]:
    """Start a node and return at once. What it prints is in a pipe, its log goes to `<folder>.log`.

    turns:       a file for the long turns of its event loop (`longest_turns.py`)
    python:      of the virtual environment whose Semel is to run
    kafka, grpc: where it listens; by default on free ports
    """
    command = [python, "-P", *(("-m", "semel.cli") if turns is None else (str(TURNS_SCRIPT), turns))]
    command += ["serve", "--data-dir", folder, "--grpc", grpc, "--kafka", kafka]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    with open(f"{folder}.log", "a") as log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)


def start_node(
    folder: str,
    settings: Mapping[str, object] | None = None,
    *,
    turns: str | None = None,
    python: str = sys.executable,
) -> NodeProcess:
    """Start a node on free ports and return it when it is ready. The arguments are those of `spawn_node`."""
    begin = time.perf_counter()
    process = spawn_node(folder, settings, turns=turns, python=python)
    assert process.stdout is not None
    words = process.stdout.readline().split()
    seconds = time.perf_counter() - begin
    if words[:2] != ["ready:", "kafka"]:
        process.wait()
        raise RuntimeError(f"the node did not start; {folder}.log says:\n{Path(folder + '.log').read_text()[-2000:]}")
    host, _, port = words[2].rpartition(":")
    return NodeProcess(process, folder, words[4], (host, int(port)), seconds, process_cpu_s(process.pid))


@contextlib.contextmanager
def data_folder() -> Iterator[str]:
    """Give a path for a data folder, removed afterwards. SEMEL_BENCH_DIR says on which disk."""
    root = tempfile.mkdtemp(prefix="semel-bench-", dir=os.environ.get("SEMEL_BENCH_DIR"))
    try:
        yield f"{root}/data"
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def running_node(
    settings: Mapping[str, object] | None = None, *, note_turns: bool = False, python: str = sys.executable
) -> Iterator[NodeProcess]:
    """Run a node on an empty folder. `note_turns` notes the long turns of its loop in `<folder>.turns`."""
    with data_folder() as folder:
        node = start_node(folder, settings, turns=f"{folder}.turns" if note_turns else None, python=python)
        try:
            yield node
        finally:
            node.kill()


# --- Measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Figure:
    """One line of the report. `samples` are of the same unit as `value`, which is their median."""

    bench: str
    name: str
    value: float
    unit: str
    samples: list[float] = field(default_factory=list)
    goal: str = ""
    """The goal of GOALS.md, or the peer's figure, where there is one."""
    cost: str = ""
    """The node's CPU for it."""
    bound: str = ""
    """What bounds it."""


@dataclass(frozen=True)
class Sample:
    """What one run of a workload came to: how many units in how many seconds, and the node's CPU seconds meanwhile."""

    count: float
    seconds: float
    cpu_s: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)
    """Further figures of the same run, such as percentiles."""
    client_cpu_s: float = 0.0
    """CPU seconds of this process, where the clients are."""


class Stopwatch:
    """Runs from when it is made until it is stopped."""

    def __init__(self, node: Peer) -> None:
        self._node = node
        self._node_cpu_s, self._client_cpu_s = node.cpu_s(), time.process_time()
        self._begin = time.perf_counter()

    def stop(self, count: float) -> Sample:
        """Return what was done in so many units."""
        seconds, client_cpu_s = time.perf_counter() - self._begin, time.process_time() - self._client_cpu_s
        return Sample(count, seconds, self._node.cpu_s() - self._node_cpu_s, client_cpu_s=client_cpu_s)


def measured(node: Peer, run: Callable[[], float]) -> Sample:
    """Run something that returns how many units it did."""
    watch = Stopwatch(node)
    return watch.stop(run())


def in_turns(variants: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Run each variant once a round, after one run of each that does not count."""
    for run in variants.values():
        run()
    taken: dict[str, list[Sample]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            taken[name].append(run())
    return taken


def rate(samples: Sequence[Sample]) -> tuple[float, list[float]]:
    """Return the median of units a second, and each."""
    rates = [sample.count / sample.seconds for sample in samples]
    return statistics.median(rates), rates


def cpu_us_each(samples: Sequence[Sample]) -> float:
    """Return the median of the node's CPU microseconds a unit."""
    return statistics.median(sample.cpu_s / max(sample.count, 1) * 1e6 for sample in samples)


def rate_figure(
    bench: str,
    name: str,
    samples: Sequence[Sample],
    unit: str,
    *,
    per: float = 1,
    goal: str = "",
    cost: str = "",
    bound: str,
) -> Figure:
    """Return the line for units a second, counted in `per`: thousands, millions."""
    median, rates = rate(samples)
    return Figure(bench, name, median / per, unit, [one / per for one in rates], goal, cost, bound)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def touch_memory(megabytes: int = 1024) -> None:
    """Write to memory once, in a process of its own: the first touch of a page is slow on virtual machines."""
    code = f"b = bytearray({megabytes} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    subprocess.run([sys.executable, "-c", code], check=True)
    os.sync()


# --- The report -------------------------------------------------------------------------------------------------------


def machine() -> dict[str, object]:
    """Describe where and when the figures were taken."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "host": socket.gethostname(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": os.getloadavg(),
    }


def processor() -> str:
    """Return the name of the processor, as the system has it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def command() -> str:
    """Return the command of this run, as it is typed in the checkout."""
    return shlex.join([".venv/bin/python", "-P", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def print_table(figures: Sequence[Figure]) -> None:
    """Print one table: name, median and spread, goal or ratio, the node's CPU, what bounds it."""
    print("| workload | median | lowest to highest | goal, or ratio to the peer | node's CPU | what bounds it |")
    print("|---|---:|---|---|---|---|")
    for figure in figures:
        low, high = min(figure.samples, default=figure.value), max(figure.samples, default=figure.value)
        spread = "" if len(figure.samples) < 2 else f"{number(low)} to {number(high)}"
        print(
            f"| {figure.name} | {number(figure.value)} {figure.unit} | {spread} | {figure.goal} | {figure.cost} "
            f"| {figure.bound} |",
            flush=True,
        )


def write_json(name: str, figures: Sequence[Figure], more: Mapping[str, object] | None = None) -> Path:
    """Write the figures with the machine's description and the command to bench/out/<name>.json."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    content = {
        "machine": machine(),
        "command": command(),
        "figures": [asdict(figure) for figure in figures],
        **(more or {}),
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path
