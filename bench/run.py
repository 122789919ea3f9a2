"""Runs the benches and prints their figures.

    python -P bench/run.py                          everything, about half an hour
    python -P bench/run.py --quick                  everything once and short: does it still run?
    python -P bench/run.py transactions start       some workloads of bench/node.py
    python -P bench/run.py codec log                some of the other benches, with their defaults
    python -P bench/run.py --list

The workloads of a node come in one table with the goals of GOALS.md; the other benches (codec, log, journal,
dataplane, clients) print tables of their own, with their peers in the same run. What was printed is written
to bench/out/ as well, the node's figures as JSON. Memory is touched first, each workload warms up, variants take turns
and medians count; still, other work on the machine shows in every figure, so the load is noted with them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import node
from harness import OUT, ROOT, Figure, machine, print_table, touch_memory, write_json
from workloads.common import FULL, scale_of

OTHERS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "codec": ("record batches, beside aiokafka and kafka-python", ("--rounds", "1", "--seconds", "0.02")),
    "log": ("the log of a partition: appends, reads, recovery", ("--rounds", "1", "--megabytes", "16")),
    "journal": ("durable appends without a network, recovery", ()),
    "dataplane": ("the Kafka listener with raw sockets, sendfile or not", ("--seconds", "0.2")),
    "hostile": ("what one hostile client costs everybody else", ("--only", "promised-bytes", "pipelined")),
    "metrics": ("what a node's metrics cost", ("--rounds", "2", "--seconds", "0.2")),
    "clients": ("the SDK's clients beside confluent-kafka's and aiokafka's", ("--quick",)),
    "against_kafka": ("a node beside Apache Kafka, the same clients for both (Java 17, Maven)", ("--quick",)),
    "cores": ("one process and two beside Apache Kafka: small requests, large fetches (Java 17, Maven)", ("--quick",)),
    "growth": ("what grows with partitions, groups, transactions, producers, connections", ("--quick",)),
    "cluster": ("three nodes beside three of Apache Kafka: failures, bulk, latency (Java 17, Maven)", ("--quick",)),
    "other_brokers": ("a node beside NATS JetStream and Redis streams (first `make bench-peers`)", ("--quick",)),
    "spark": (
        "Spark beside its own connector to Kafka, and a source and a sink that do nothing (Java 17, Maven)",
        ("--rows", "100000", "--rounds", "1", "--batches", "5", "--megabytes", "64"),
    ),
    "embedded": (
        "a log in the caller's process beside a node of its own process, the same clients",
        ("--records", "20000", "--transactions", "50", "--rounds", "1"),
    ),
    "gateway": ("the console's pages on a large cluster, REST and the schema registry", ("--quick",)),
    "scan": ("topics as Arrow columns and as files, beside consumers", ("--quick",)),
    "tiers": ("a topic in a remote storage beside one on the disk", ("--quick",)),
    "tls": ("what encryption costs a node", ("--rounds", "1", "--requests", "5000", "--fetches", "50")),
    "neighbours": (
        "how long a quiet client waits beside noisy ones, without quotas and with them",
        ("--rounds", "1", "--seconds", "1"),
    ),
    "security": (
        "what users, TLS, tokens and quotas cost a node",
        ("--rounds", "1", "--connections", "50", "--requests", "2000"),
    ),
    "testkit": ("the test kit's broker: start, kill, import", ("--rounds", "3")),
}
"""The benches that are programs of their own: what they measure, and their arguments for a quick run."""
LONG: Final = frozenset({"journal", "against_kafka", "cores", "cluster", "other_brokers", "spark"})
"""A quick run leaves these out unless they are named: the first has no short form, the others need Java or brokers."""
TIMEOUT_S: Final = 1800


def available() -> list[str]:
    """Return the other benches that are there."""
    return [name for name in OTHERS if (ROOT / "bench" / f"{name}.py").exists()]


def run_other(name: str, *, quick: bool) -> str | None:
    """Run a bench in a process of its own and print what it prints. Returns what went wrong, if anything."""
    command = [sys.executable, "-P", str(ROOT / "bench" / f"{name}.py"), *(OTHERS[name][1] if quick else ())]
    path = OUT / f"{name}.txt"
    print(f"\n## {name}: {OTHERS[name][0]}\n", flush=True)
    with path.open("w") as out, subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            print(line, end="", flush=True)
        code = process.wait(TIMEOUT_S)
    return f"{name} ended with {code}" if code else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="*", metavar="BENCH", help="see --list; default: all")
    parser.add_argument("--quick", action="store_true", help="one short round of each: shows that they run")
    parser.add_argument(
        "--rounds", type=int, default=FULL.rounds, help="rounds of a node's workload, of which the median counts"
    )
    parser.add_argument("--list", action="store_true", help="list the benches and exit")
    arguments = parser.parse_args()
    if arguments.list:
        for name, workload in node.WORKLOADS.items():
            print(f"{name:14}{workload.__doc__}")
        for name in available():
            print(f"{name:14}{OTHERS[name][0]}")
        return
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    everything = [*node.WORKLOADS, *(name for name in available() if not (arguments.quick and name in LONG))]
    names = arguments.benches or everything
    unknown = [name for name in names if name not in node.WORKLOADS and name not in available()]
    if unknown:
        parser.error(f"no such bench: {', '.join(unknown)}; there are {', '.join([*node.WORKLOADS, *available()])}")
    OUT.mkdir(parents=True, exist_ok=True)
    begin, at_begin = time.monotonic(), machine()
    print(", ".join(f"{key} {value}" for key, value in at_begin.items()), flush=True)
    touch_memory(256 if arguments.quick else 2048)
    failures = measure_node([name for name in names if name in node.WORKLOADS], arguments.quick, arguments.rounds)
    failures += [failed for name in names if name in OTHERS and (failed := run_other(name, quick=arguments.quick))]
    load = ", ".join(f"{one:.1f}" for one in machine()["load"])  # type: ignore[attr-defined]
    print(f"\n{time.monotonic() - begin:.0f} s; load at the end {load}; written to {OUT}")
    if failures:
        raise SystemExit("\n".join(failures))


def measure_node(names: Sequence[str], quick: bool, rounds: int) -> list[str]:
    """Run workloads of a node, and print and write their figures, those of the others too where one fails."""
    scale = scale_of(quick, rounds)
    figures: list[Figure] = []
    failures = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            figures += node.WORKLOADS[name](scale)
        except Exception as error:
            failures.append(f"{name} failed: {type(error).__name__}: {error}")
    if figures:
        print_table(figures)
        write_json("node", figures)
    return failures


if __name__ == "__main__":
    main()
