"""Semel beside other brokers that one would weigh: NATS JetStream and Redis streams, one node each, in turns.

    make bench-peers                                          gets the brokers, once: nothing is fetched without it
    python -P bench/other_brokers.py                          everything, about a quarter of an hour
    python -P bench/other_brokers.py single latency           some workloads
    python -P bench/other_brokers.py --brokers semel,nats     some brokers; `kafka` is one too (Java 17, Maven)
    python -P bench/other_brokers.py --quick                  everything once and short: does it still run?

A broker that is not on this machine is left out, with a line that says how to get it. All listen on the loopback
address, run as one process each, and end with the bench.

What an acknowledgement says differs, so each line of the table says it, and there are two durabilities:

os    nothing is synced before the answer, but a killed server keeps what it acknowledged. Semel: `durability = "os"`.
      NATS: a stream with files, which are synced every 2 minutes. Redis: the append-only file, synced every second.
      Redis as it comes stands beside them: it has snapshots alone, so it is faster and loses acknowledged records.
disk  each answer waits for a sync. Semel: `durability = "disk"`. NATS: `sync_interval: always`. Redis: `appendfsync
      always`.

What else differs, and no figure shows: Semel has transactions, and writes what a producer sends again once, for as long
as it keeps the producer. NATS drops a second record with the same message id within 2 minutes. A Redis stream is a key
in memory, which is as large as the machine's memory at most, and what is sent again is there twice.

single     one record of 100 B a request, the next one after the answer: 1 connection, and 32
pipelined  one record of 100 B a request, 100 in flight
bulk       records of 1 KiB, 1.25 MiB in flight: Semel in batches of 256 KiB, as its clients make them; the others get
           one record a request, as theirs do
consume    a whole log: Semel 1 MB a fetch, Redis 1,000 records a XREAD, NATS pushes. Semel sends batches as they are in
           its files, and nobody opens them here, so look at what `clients` reads too
latency    500 records a second: until acknowledged, and until a waiting consumer has them
clients    bulk again, by each one's own Python client: semel, nats-py, redis-py

All but the last speak through raw sockets and as little Python as is possible, since a client would be what is
measured; they share the cores with the servers. After each turn the log must have as many records as were acknowledged.
Each broker is warmed up until what a record costs it no longer falls, each workload begins with a turn that does not
count, and a ratio is a broker's median by Semel's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

# Tests import this module: what they have of the same name as a bench stays first.
sys.path.append(str(Path(__file__).resolve().parent))

import apache_kafka  # puts what the tests share with the benches on the path
import harness
from brokers import installed
from brokers.report import HEAD, as_json, figures_of, lines_of, missing_lines
from brokers.servers import DEFAULT, DURABILITIES, SEMEL, STARTERS, Broker
from brokers.work import FULL, QUICK, WORKLOADS, BrokerRow, Scale, warm
from harness import machine, write_json
from workloads.kafka_peers import DISK, OS

MINUTES = 25.0


def started(names: Sequence[str], stack: ExitStack) -> tuple[dict[str, list[Broker]], dict[str, str]]:
    """Start each broker with each durability. Returns them by durability, and why some are left out."""
    brokers: dict[str, list[Broker]] = {OS: [], DISK: []}
    missing: dict[str, str] = {}
    for durability, running in brokers.items():
        for name in names:
            if durability not in DURABILITIES.get(name, (OS, DISK)):
                continue
            try:
                running.append(stack.enter_context(STARTERS[name](durability)))
            except installed.BrokerMissingError as error:
                missing[name] = str(error)
    return brokers, missing


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument(
        "--brokers",
        default=",".join(DEFAULT),
        metavar="NAME,NAME",
        help=f"of {', '.join(STARTERS)}; default: {','.join(DEFAULT)}",
    )
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it runs")
    parser.add_argument("--rounds", type=int, help=f"rounds, of which the median counts (default {FULL.rounds})")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"begin no workload after so long (default {MINUTES:.0f})"
    )
    parser.add_argument("--install", action="store_true", help="get the other brokers into build/brokers, and exit")
    arguments = parser.parse_args(words)
    arguments.brokers = arguments.brokers.split(",")
    for what, given, there in (
        ("workload", arguments.workloads, WORKLOADS),
        ("broker", arguments.brokers, STARTERS),
    ):
        if unknown := [name for name in given if name not in there]:
            parser.error(f"no such {what}: {', '.join(unknown)}; there are {', '.join(there)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def main() -> None:
    apache_kafka.end_on_sigterm()
    arguments = arguments_of()
    if arguments.install:
        if failures := installed.install():
            raise SystemExit("\n".join(failures))
        return
    scale: Scale = QUICK if arguments.quick else FULL
    if arguments.rounds is not None:
        scale = replace(scale, rounds=arguments.rounds)
    end = time.monotonic() + arguments.minutes * 60
    harness.touch_memory(256 if arguments.quick else 2048)
    rows: list[BrokerRow] = []
    skipped: list[str] = []
    with ExitStack() as stack:
        brokers, missing = started(arguments.brokers, stack)
        for line in missing_lines(missing):
            print(line)
        if missing and not any(one.name != SEMEL for running in brokers.values() for one in running):
            return
        versions = installed.versions(arguments.brokers)
        about = {**{f"{key}": str(value) for key, value in machine().items()}, **versions}
        print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
        for running in brokers.values():
            for broker in running:
                warm(broker, scale)
        print("\n".join(HEAD))
        for name in arguments.workloads or WORKLOADS:
            if time.monotonic() > end:
                skipped.append(f"{name}: no time was left; see --minutes")
                continue
            print(f"{name} ... load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            try:
                found = WORKLOADS[name](brokers, scale)
            except Exception as error:  # what was measured before is written all the same
                traceback.print_exc()
                skipped.append(f"{name}: {type(error).__name__}: {error}")
                continue
            for row in found:
                print("\n".join(lines_of(row)), flush=True)
                rows.append(row)
    more = {"rows": [as_json(row) for row in rows], "versions": versions}
    path = write_json("other_brokers", figures_of(rows), more)
    print(f"load at the end {os.getloadavg()[0]:.1f}; written to {path}")
    failures = [f"{row.workload}, {broker}: {why}" for row in rows for broker, why in row.failures.items()] + skipped
    if failures:
        raise SystemExit("\n".join(["not measured:", *failures]))


if __name__ == "__main__":
    main()
