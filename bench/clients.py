"""Semel's clients beside confluent-kafka (librdkafka) and aiokafka: the same node, the same machine, the same run.

    python -P bench/clients.py                             everything, some seven minutes
    python -P bench/clients.py produce latency --rounds 7  some workloads
    python -P bench/clients.py --quick                     everything once and short: does it still run?

Two nodes run, one that syncs before it answers (disk) and one that does not (os). The clients of a workload take turns
in this process, after a turn that does not count, and medians count. Producers are idempotent with acks=all,
consumers read committed; nothing is compressed; batch size and linger are the same for all that send in bulk. Semel's
sync clients are beside confluent-kafka, its asyncio clients beside aiokafka. A ratio is Semel's figure by the peer's.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import aiokafka
import confluent_kafka
from harness import machine, touch_memory, write_json
from workloads.client_bulk import consume, produce
from workloads.client_latency import idle, latency
from workloads.client_peers import AIOKAFKA, CONFLUENT, FULL, QUICK, Nodes, Row, Scale, running_nodes, table
from workloads.client_transactions import pipeline, transactions

WORKLOADS: dict[str, Callable[[Nodes, Scale], list[Row]]] = {
    "produce": produce,
    "consume": consume,
    "transactions": transactions,
    "pipeline": pipeline,
    "latency": latency,
    "idle": idle,
}


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:14}{(run.__doc__ or '').splitlines()[0]}" for name, run in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"workloads:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="see below; default: all")
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"rounds, of which the median counts (default: {FULL.rounds})")
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def scale_of(arguments: argparse.Namespace) -> Scale:
    scale = QUICK if arguments.quick else FULL
    return scale if arguments.rounds is None else replace(scale, rounds=arguments.rounds)


def main() -> None:
    arguments = arguments_of()
    versions = {CONFLUENT: confluent_kafka.__version__, AIOKAFKA: aiokafka.__version__}
    about = ", ".join(f"{key} {value}" for key, value in {**versions, **machine()}.items())
    print(about, flush=True)
    touch_memory(256 if arguments.quick else 1024)
    gc.freeze()
    rows: list[Row] = []
    with running_nodes() as nodes:
        for name in arguments.workloads or WORKLOADS:
            print(f"{name} ... load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            rows += WORKLOADS[name](nodes, scale_of(arguments))
            print(file=sys.stderr)
    print("\n".join(table(rows)))
    path = write_json("clients", [figure for row in rows for figure in row.figures()], {"versions": versions})
    print(f"load at the end {os.getloadavg()[0]:.1f}; written to {path}")


if __name__ == "__main__":
    main()
