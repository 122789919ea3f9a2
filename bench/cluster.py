"""Three nodes of Semel beside three of Apache Kafka: failures, bulk, latency, transactions, memory, in one run.

    python -P bench/cluster.py                                everything, less than 20 minutes on 2 cores
    python -P bench/cluster.py --quick                        everything once and short: does it still run?
    python -P bench/cluster.py --rows failover,stop --kills 9 some rows, with more rounds
    python -P bench/cluster.py --rows many --partitions 10000 Semel alone: Apache Kafka takes minutes to create so many
    python -P bench/cluster.py --rows coordinator --ids 100000
    python -P bench/cluster.py --against ../other --rows role this checkout beside another one, a node each, no Kafka

Both clusters are on this machine, with replication factor 3, `min.insync.replicas=2` and acks=all. They take turns:
Semel, Kafka, Semel, Kafka. Medians count. Each row of bulk, latency and transactions begins with a turn that does not.

defaults  each as it comes: Semel with `durability = "disk"`, Kafka without a flush before it answers; times to notice
          that a node is gone are the defaults, too: 2 s for Semel, 9 s for Kafka
os        neither syncs before it answers: Semel with `durability = "os"`, Kafka as it comes
disk      all replicas sync before an answer: `durability = "disk"`, and Kafka with `log.flush.interval.messages=1`

Semel keeps its metadata in PostgreSQL with its defaults, where that is installed; the figures of CPU include it. Else
it is one SQLite file, and a node is not frozen, because it could have that file locked. Kafka's nodes are brokers and
controllers at once (KRaft), each with 1 GB of heap, and come from Maven; Java 17 is needed. Where they can't be had,
Semel is measured alone.

A killed node is started again, and a row continues when all replicas are in sync. What is printed at the end is a
section for RESULTS.md. A row that takes too long is given up, and so is what is left after --minutes. Processes and
directories are removed at the end, after Ctrl-C too.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent))

import apache_kafka
import harness
from harness import ROOT, machine, write_json

sys.path.insert(0, str(ROOT / "tests" / "support" / "clients"))
sys.path.insert(0, str(ROOT / "tests" / "support" / "sql"))

import kafka_jars
from clusters.coordinator import coordinator
from clusters.losses import failover, frozen, many, stop
from clusters.peers import DEFAULTS, Pair, database, running_pair
from clusters.report import FULL, QUICK, ClusterRow, Scale, figures_of, table
from clusters.role import OTHER, THIS, role
from clusters.start import start
from clusters.work import latency, produce, transactions, warm_up
from postgresql_process import RunningPostgresql
from workloads.kafka_peers import DISK, KAFKA, OS, SEMEL, as_json

Workload = Callable[[Pair, str, Scale], list[ClusterRow]]

WORKLOADS: Mapping[str, tuple[Workload, Sequence[str]]] = {
    "start": (start, (DEFAULTS,)),
    "failover": (failover, (DEFAULTS,)),
    "frozen": (frozen, (DEFAULTS,)),
    "stop": (stop, (DEFAULTS,)),
    "coordinator": (coordinator, (DEFAULTS,)),
    "produce": (produce, (OS, DISK)),
    "latency": (latency, (OS, DISK)),
    "transactions": (transactions, (OS, DISK)),
    "many": (many, (DEFAULTS,)),
}
"""The rows by name, and what they run with."""
ROLE = "role"
APART = frozenset({"many"})
"""What has clusters of its own, since what it leaves would be seen in the figures of others."""
MINUTES = 25.0
ROW_S = 360.0


class RowTimeoutError(Exception):
    """A row took too long."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let SIGALRM end what takes longer, with `RowTimeoutError`."""

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise RowTimeoutError(f"given up after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Run:
    """The rows so far, and both clusters, which are kept from row to row as long as their kind is the same."""

    def __init__(self, scale: Scale, peers: Sequence[str], postgresql: RunningPostgresql | None, end: float) -> None:
        self._scale, self._peers, self._postgresql, self._end = scale, peers, postgresql, end
        self._kept = ExitStack()
        self._pair: Pair | None = None
        self._kind = ""
        self.rows: list[ClusterRow] = []
        self.failures: list[str] = []
        self.seconds: dict[str, float] = {}

    def measure(self, name: str, kind: str) -> None:
        """Add a workload's rows, or say why there are none. After a failure the next one has new clusters."""
        label = f"{name}, {kind}"
        begin = time.monotonic()
        print(f"{label} ... load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        try:
            with at_most(max(1.0, min(ROW_S, self._end - begin))):
                found = WORKLOADS[name][0](self._pair_of(name, kind), kind, self._scale)
        except Exception as error:
            self.failures.append(f"{label}: {type(error).__name__}: {error}")
            traceback.print_exc()
            self.close()
        else:
            self.rows += found
            print("\n".join(table(found)[2:]), file=sys.stderr, flush=True)
        self.seconds[label] = time.monotonic() - begin

    def _pair_of(self, name: str, kind: str) -> Pair:
        key = f"{kind}, {name}" if name in APART else kind
        if self._pair is None or self._kind != key:
            self.close()
            self._pair, self._kind = self._kept.enter_context(running_pair(kind, self._postgresql, self._peers)), key
            if kind != DEFAULTS:
                for cluster in self._pair.values():
                    warm_up(cluster, self._scale)
        return self._pair

    def close(self) -> None:
        self._pair = None
        self._kept.close()


def in_order(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return each workload with each of its kinds: by kind, so that few clusters are started."""
    chosen = [(name, kind) for kind in (DEFAULTS, OS, DISK) for name in names if kind in WORKLOADS[name][1]]
    return [pair for pair in chosen if pair[0] not in APART] + [pair for pair in chosen if pair[0] in APART]


def print_section(
    scale: Scale, peers: Sequence[str], database_name: str, begin: Mapping[str, object], run: Run
) -> None:
    """Print what RESULTS.md is to have of a run."""
    beside = "three of Apache Kafka " + kafka_jars.jars().name if KAFKA in peers else "nothing"
    load = "{:.1f} to {:.1f}".format(begin["load"][0], os.getloadavg()[0])  # type: ignore[index]
    print("## Three nodes beside three of Apache Kafka (`bench/cluster.py`)\n")
    print(
        f"`{harness.command()}`, {begin['date']}, "
        f"{begin['cores']} cores, load {load} (the run itself included), Python {begin['python']}. Three nodes of "
        f"Semel, metadata in {database_name}, beside {beside}, all on this machine, loopback; replication factor 3, "
        f"`min.insync.replicas=2`, acks=all; in turns, medians of {scale.rounds} rounds, of {scale.kills} where nodes "
        "are killed, frozen or stopped. A ratio is Semel's by Kafka's: more is better for rates, less for times and "
        "memory. CPU is that of all servers, PostgreSQL's included.\n"
    )
    print("\n".join(table(run.rows)))
    for failure in run.failures:
        print(f"\nNot measured: {failure}")


def measured_clusters(names: Sequence[str], scale: Scale, alone: bool, end: float) -> list[str]:
    """Measure workloads, print their section and write their JSON. Returns what failed."""
    peers = [SEMEL]
    try:
        if not alone:
            kafka_jars.java()
            kafka_jars.jars()
            peers.append(KAFKA)
    except kafka_jars.JavaMissingError as error:
        print(f"Apache Kafka is left out: {error}", file=sys.stderr)
    begin = machine()
    with database() as postgresql:
        database_name = "one SQLite file" if postgresql is None else "PostgreSQL"
        run = Run(scale, peers, postgresql, end)
        print(f"metadata in {database_name}", file=sys.stderr)
        try:
            for name, kind in in_order(names):
                if name == "frozen" and postgresql is None:
                    run.failures.append("frozen: a node could have the SQLite file locked")
                elif time.monotonic() > end:
                    run.failures.append(f"{name}, {kind}: no time was left; see --minutes")
                else:
                    run.measure(name, kind)
        except BaseException:
            run.failures.append("the rest: interrupted")
            raise
        finally:
            run.close()
            print_section(scale, peers, database_name, begin, run)
            more = {"scale": asdict(scale), "seconds": run.seconds, "failures": run.failures, "metadata": database_name}
            more["rows"] = [as_json(row) for row in run.rows]
            print(f"written to {write_json('cluster', figures_of(run.rows), more)}", file=sys.stderr)
    took = ", ".join(f"{label} {seconds:.0f} s" for label, seconds in run.seconds.items())
    print(f"time: {took}", file=sys.stderr)
    return run.failures


def measured_role(checkout: Path, scale: Scale) -> None:
    """Print what one partition costs on one node, here and in another checkout."""
    print(f"{ROLE} ... load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    rows = role(checkout, scale)
    print("\n".join(["", *table(rows, {OTHER: "the other checkout", THIS: "this one"})]))
    print(f"written to {write_json('cluster-role', figures_of(rows))}", file=sys.stderr)


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    described = "; ".join(f"{name}: {(one.__doc__ or '').splitlines()[0]}" for name, (one, _) in WORKLOADS.items())
    parser.add_argument("--rows", metavar="NAME,NAME", help=f"some of them; default: all. {described}")
    parser.add_argument("--quick", action="store_true", help="one short round of each: shows that they run")
    parser.add_argument("--rounds", type=_positive, help=f"turns that count (default {FULL.rounds})")
    parser.add_argument(
        "--kills", type=_positive, help=f"how often a node is killed, frozen or stopped in a row (default {FULL.kills})"
    )
    parser.add_argument("--megabytes", type=_positive, help=f"records of a turn of bulk (default {FULL.megabytes})")
    parser.add_argument("--ids", type=_positive, help=f"transactional ids of coordinator (default {FULL.ids:,})")
    parser.add_argument("--partitions", type=_positive, help=f"partitions of many (default {FULL.partitions:,})")
    parser.add_argument("--alone", action="store_true", help="Semel without Apache Kafka")
    parser.add_argument(
        "--against",
        metavar="CHECKOUT",
        type=Path,
        help=f"for the row {ROLE}: another checkout, built with `make build`; its node and this one's take turns",
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"give up what is left after so long (default {MINUTES:.0f})"
    )
    arguments = parser.parse_args(words)
    every = [*WORKLOADS, *([ROLE] if arguments.against else [])]
    arguments.rows = every if arguments.rows is None else arguments.rows.split(",")
    unknown = [name for name in arguments.rows if name not in (*WORKLOADS, ROLE)]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join([*WORKLOADS, ROLE])}")
    if ROLE in arguments.rows and arguments.against is None:
        parser.error(f"{ROLE} compares two checkouts: name the other one with --against")
    return arguments


def _positive(text: str) -> int:
    value = int(text.replace("_", "").replace(",", ""))
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def scale_of(arguments: argparse.Namespace) -> Scale:
    given = {name: getattr(arguments, name) for name in ("rounds", "kills", "megabytes", "ids", "partitions")}
    return replace(QUICK if arguments.quick else FULL, **{name: value for name, value in given.items() if value})


def main() -> None:
    apache_kafka.end_on_sigterm()
    arguments = arguments_of()
    scale = scale_of(arguments)
    end = time.monotonic() + arguments.minutes * 60
    harness.touch_memory(256 if arguments.quick else 2048)
    failures: list[str] = []
    try:
        if names := [name for name in arguments.rows if name != ROLE]:
            failures += measured_clusters(names, scale, arguments.alone, end)
        if ROLE in arguments.rows:
            measured_role(arguments.against, scale)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
