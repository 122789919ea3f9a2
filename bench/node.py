"""A whole node: `semel serve` in a process of its own, driven by raw sockets and by the SDK's clients.

    python -P bench/node.py                      all workloads
    python -P bench/node.py transactions start   those alone
    python -P bench/node.py --quick --list

Raw sockets show what the node can do: their driver sends ready-made requests and throws the answers away. The SDK's
figures are of one client process beside the node, so that both share the machine's cores. Other clients and Apache
Kafka are measured by bench/against_kafka.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import (
    Figure,
    print_table,
    touch_memory,
    write_json,
)
from workloads.common import FULL, Scale, scale_of
from workloads.fetch import fetch
from workloads.latency import latency, tiny
from workloads.produce import produce
from workloads.start import memory, start
from workloads.transactions import pipeline, transactions

WORKLOADS: dict[str, Callable[[Scale], list[Figure]]] = {
    "produce": produce,
    "fetch": fetch,
    "tiny": tiny,
    "latency": latency,
    "transactions": transactions,
    "pipeline": pipeline,
    "start": start,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"rounds of which the median counts (default {FULL.rounds})")
    parser.add_argument("--list", action="store_true", help="list the workloads and exit")
    arguments = parser.parse_args()
    if arguments.list:
        for name, workload in WORKLOADS.items():
            print(f"{name:14}{workload.__doc__}")
        return
    unknown = set(arguments.workloads) - WORKLOADS.keys()
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    scale = scale_of(arguments.quick, arguments.rounds or FULL.rounds)
    touch_memory(256 if arguments.quick else 1024)
    figures: list[Figure] = []
    for name in arguments.workloads or WORKLOADS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures += WORKLOADS[name](scale)
    print_table(figures)
    print(f"\nwritten to {write_json('node', figures)}", file=sys.stderr)


if __name__ == "__main__":
    main()
