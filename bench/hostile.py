"""What one hostile client costs everybody else: the longest wait of a polite client, the node's CPU, memory and log.

    python -P bench/hostile.py [--only NAME ...] [--list] [--probe-ms 5] [--items 100000]
                                   [--group-partitions 1000] [--turns]

Each attack meets a fresh node. While it runs, a polite client on a connection of its own asks for the API versions
every few milliseconds; the longest it had to wait is what the attack held the node's only loop, and what else the
machine did meanwhile, so the node's CPU seconds stand beside it, and with --turns the longest turns of its event loop
in CPU time. Attacks are bounded in count and time, on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attacks.catalogue import attacks
from attacks.wire import ANSWER_S, Client, ask_once, framed, request
from harness import Figure, NodeProcess, percentile, print_table, running_node, write_json

from semel.protocol.kafka.api import ApiKey, ApiVersionsRequest, build_request_header

MANY: Final = 100_000
"""Names or numbers in one request, unless --items says otherwise. A node refuses so many; it serves 40,000."""


class PoliteClient(threading.Thread):
    """Asks for the API versions again and again, and remembers how long each answer took."""

    def __init__(self, node: NodeProcess, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._client = Client(node)
        self._pause_s = pause_s
        self._ends = threading.Event()
        versions = ApiVersionsRequest("semel-bench", "1")
        header = build_request_header(ApiKey.API_VERSIONS, 0, 7, "bench")
        self._request = framed(header + b"".join(bytes(part) for part in versions.build(0)))
        self.waits_s: list[float] = []
        self.lost = 0

    def run(self) -> None:
        while not self._ends.wait(self._pause_s):
            begin = time.perf_counter()
            if self._client.ask(self._request) is None:
                self.lost += 1
                return
            self.waits_s.append(time.perf_counter() - begin)

    def end(self) -> None:
        self._ends.set()
        self.join(ANSWER_S + 5)
        self._client.close()


class PeakMemory(threading.Thread):
    """Looks at the node's memory a few times a second."""

    def __init__(self, node: NodeProcess) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._ends = threading.Event()
        self.peak_mb = 0.0

    def run(self) -> None:
        while not self._ends.wait(0.1):
            with contextlib.suppress(OSError, IndexError):
                self.peak_mb = max(self.peak_mb, self._node.memory_mb())

    def end(self) -> None:
        self._ends.set()
        self.join()


def noted_turns(node: NodeProcess) -> list[str]:
    path = Path(f"{node.folder}.turns")
    return path.read_text().splitlines() if path.exists() else []


def longest(lines: list[str]) -> str:
    """Return the longest of the turns that were noted, and what ran in them."""
    turns: list[tuple[float, str]] = []
    for line in lines:
        ms, _, what = line.partition(" ")
        turns.append((float(ms), what))
    turns.sort(reverse=True)
    return ", ".join(f"{ms:.0f} ms {what}" for ms, what in turns[:3]) or "none of over 10 ms"


def run(name: str, probe_s: float, *, items: int, group_partitions: int, note_turns: bool) -> Figure:
    with running_node(note_turns=note_turns) as node:
        ask_once(node, request(ApiKey.METADATA, 4, topics=[], allow_auto_topic_creation=False))  # kio is imported
        polite, memory = PoliteClient(node, probe_s), PeakMemory(node)
        polite.start()
        memory.start()
        log = Path(f"{node.folder}.log")
        lines_before, cpu_before, memory_before = log.stat().st_size, node.cpu_s(), node.memory_mb()
        turns_before = len(noted_turns(node))
        begin = time.perf_counter()
        said = attacks(items, group_partitions)[name](node)
        seconds = time.perf_counter() - begin
        cpu = f"{node.cpu_s() - cpu_before:.2f} s" if node.process.poll() is None else "-"
        polite.end()
        memory.end()
        waits = polite.waits_s or [0.0]
        more = f"{cpu} in {seconds:.1f} s; memory {memory_before:.0f} to {memory.peak_mb:.0f} MB"
        logged = log.stat().st_size - lines_before
        lost = "; the polite client lost its connection" if polite.lost and name != "bombs-and-stop" else ""
        turns = f"; longest turns: {longest(noted_turns(node)[turns_before:])}" if note_turns else ""
        bound = f"{said}{lost}; {logged:,} B of log{turns}; p99 {percentile(waits, 0.99) * 1000:.1f} ms"
        return Figure("hostile", name, max(waits) * 1000, "ms", goal="50 ms", cost=more, bound=bound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=sorted(attacks(1)), help="some attacks; see --list"
    )
    parser.add_argument("--list", action="store_true", help="list the attacks and exit")
    parser.add_argument("--probe-ms", type=float, default=5.0, help="between two calls of the polite client")
    parser.add_argument("--items", type=int, default=MANY, help="in each large request (default: %(default)s)")
    parser.add_argument(
        "--group-partitions", type=int, default=1_000, help="what a large group shares out (default: %(default)s)"
    )
    parser.add_argument("--turns", action="store_true", help="name the longest turns of the node's event loop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(attacks(1)))
        return
    figures = []
    for name in arguments.only or attacks(1):
        figure = run(
            name,
            arguments.probe_ms / 1000,
            items=arguments.items,
            group_partitions=arguments.group_partitions,
            note_turns=arguments.turns,
        )
        figures.append(figure)
        print(f"{figure.name}: longest wait {figure.value:.0f} ms; {figure.cost}; {figure.bound}", flush=True)
    print()
    print_table(figures)
    write_json("hostile", figures)


if __name__ == "__main__":
    main()
