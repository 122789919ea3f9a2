"""Runs the demo, and shows what came of it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from semel.cli.common import ExitCode, fail
from semel.cli.demo.cluster import SAYS
from semel.cli.demo.database import DemoDatabase
from semel.cli.demo.flights import Flight, load_flights
from semel.cli.demo.judge import Verdict
from semel.cli.demo.object_store import DemoStore
from semel.cli.demo.processes import has_enough_disk
from semel.cli.demo.run import Kind, Outcome, Plan, run
from semel.cli.demo.show_bill import show_bill

NEEDED_BYTES = 2 << 30
CARRIERS_SHOWN = 5
_STRUCK = {
    Kind.NODE: "the node, is ended with SIGKILL",
    Kind.CLUSTER: "one of three nodes is killed, frozen, cut off from the others or from the database, or emptied, or "
    "the database is killed",
    Kind.DISKLESS: "one of three nodes is ended with SIGKILL and starts again with an empty directory",
}


def show(
    records: int | None,
    instances: int,
    kills: int,
    node_kills: int,
    zombies: int,
    seed: int,
    *,
    compare: bool,
    folder: Path | None,
    kind: Kind = Kind.NODE,
) -> None:
    """Run the pipeline with transactions, and with `compare` without, too. Exits where it was not exactly-once."""
    if kind is Kind.DISKLESS:
        DemoStore.require_client()
    console = Console()
    base = folder or Path(tempfile.mkdtemp(prefix="semel-demo-"))
    base.mkdir(parents=True, exist_ok=True)
    if not has_enough_disk(base, NEEDED_BYTES):
        raise fail(f"{base} has less than 2 GiB free; name another place with --folder", ExitCode.REFUSED)
    if any(base.iterdir()):
        raise fail(f"{base} is not empty; name an empty directory", ExitCode.USAGE)
    try:
        with console.status("reading the data set"):
            flights = load_flights(records)
        is_cluster = kind is not Kind.NODE
        console.print(
            f"{instances} instances of a pipeline, in one group, read {len(flights):,} flights, write each enriched to "
            f"a second topic, and count them by carrier in a third.\nMeanwhile {kills} times an instance"
            f"{' is ended with SIGKILL' if is_cluster else ''}, {node_kills} times {_STRUCK[kind]}, and {zombies} "
            f"times an instance is frozen, replaced and woken up (seed {seed}).\nThen all output is read and compared "
            "with the data set."
        )
        if is_cluster:
            _say_what_is_missing(console, kind)
        plan = Plan("exactly-once", instances, kills, node_kills, zombies, batch=2_000, seed=seed, kind=kind)
        safe = _show(console, "with transactions", plan, base / "exactly-once", flights)
        report_safe(console, safe)
        if compare:
            plan = Plan("at-least-once", instances, kills, node_kills, 0, batch=2_000, seed=seed)
            unsafe = _show(
                console,
                "without idempotence and transactions, under the same crashes",
                plan,
                base / "at-least-once",
                flights,
            )
            _report_unsafe(console, safe, unsafe)
        if not safe.verdict.is_exactly_once:
            raise fail(
                "the output is not exactly-once: this is a bug, please report it with the seed", ExitCode.REFUSED
            )
    finally:
        if folder is None:
            shutil.rmtree(base, ignore_errors=True)


def _say_what_is_missing(console: Console, kind: Kind) -> None:
    if DemoDatabase.find() is None:
        instead = ", and a node is frozen instead of what is done to the database" if kind is Kind.CLUSTER else ""
        console.print(
            "There is no PostgreSQL here, or no driver (`apt-get install postgresql`, `pip install "
            f"'semel\\[postgresql]'`): the nodes' metadata is in SQLite{instead}."
        )
    if kind is Kind.DISKLESS and not DemoStore.has_s3():
        console.print("There is no S3 here (`pip install 'moto\\[s3]' flask flask-cors`): objects go to a directory.")


def _show(console: Console, title: str, plan: Plan, folder: Path, flights: list[Flight]) -> Outcome:
    console.print(f"\n[bold]{title}[/bold]")
    with Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not sys.stdout.isatty(),
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(doing: str, done: int, total: int) -> None:
            if doing not in tasks:
                if not sys.stdout.isatty():
                    console.print(f"  {doing} ...")
                for task in tasks.values():
                    bars.stop_task(task)
                tasks[doing] = bars.add_task(doing, total=total)
            bars.update(tasks[doing], completed=done)

        return run(plan, flights, folder, progress)


def report_safe(console: Console, outcome: Outcome) -> None:
    """Print what came of a run with transactions."""
    verdict = outcome.verdict
    right = len(verdict.truth) - len(verdict.wrong_counts)
    is_whole = not verdict.missing and not verdict.repeated
    table = _table()
    table.add_row("flights in the data set", f"{verdict.flights:,}")
    table.add_row("in the output exactly once", _judged(f"{verdict.once:,}", verdict.once == verdict.flights))
    table.add_row("missing, repeated", _judged(f"{verdict.missing:,}, {verdict.repeated:,}", is_whole))
    table.add_row("carriers counted right", _judged(f"{right} of {len(verdict.truth)}", not verdict.wrong_counts))
    node_kills = "" if outcome.pauses_s else f"; the node {outcome.node_kills} times"
    table.add_row("ended by SIGKILL", f"{outcome.instance_kills} instances{node_kills}")
    if outcome.probes_s:
        median = sorted(outcome.probes_s)[len(outcome.probes_s) // 2]
        by = "by all replicas in sync" if outcome.bill is None else "once it is in the database or the store"
        table.add_row("an acknowledgement took", f"{median * 1000:.0f} ms (median), {by}")
        table.add_row("metadata in", outcome.database)
    if outcome.down_s:
        table.add_row("the node was back after", f"{min(outcome.down_s):.1f} to {max(outcome.down_s):.1f} s")
    table.add_row("frozen and replaced", f"{outcome.zombies} instances, which woke up as zombies")
    table.add_row("fenced", f"{outcome.events['fenced']} processes that others had replaced")
    table.add_row(
        "transactions",
        f"{outcome.events['committed']:,} seen to commit, {outcome.events['aborted']:,} to abort and be done again",
    )
    table.add_row("hidden from readers", f"{verdict.hidden:,} records of transactions that crashes cut off")
    table.add_row("speed", f"{verdict.flights / outcome.work_s:,.0f} records/s, crashes and all")
    console.print(table)
    console.print()
    if outcome.pauses_s:
        console.print(_pauses(outcome))
        console.print()
    if outcome.bill is not None:
        show_bill(console, outcome.bill)
        console.print()
    console.print(_counts(verdict))


def _pauses(outcome: Outcome) -> Table:
    """Show what was done to nodes, and how long an acknowledgement took at most meanwhile."""
    table = Table(box=None, pad_edge=False)
    table.add_column("done to nodes")
    table.add_column("times", justify="right")
    table.add_column("clients waited", justify="right")
    for what, seconds in outcome.pauses_s.items():
        table.add_row(SAYS[what], str(len(seconds)), f"{max(seconds):.1f} s")
    return table


def _counts(verdict: Verdict) -> Table:
    """Show the pipeline's counts beside those that are taken straight from the data set."""
    shown = list(verdict.truth)[:CARRIERS_SHOWN]
    shown += [carrier for carrier in verdict.wrong_counts if carrier not in shown]
    rest = [carrier for carrier in verdict.truth if carrier not in shown]
    table = Table(box=None, pad_edge=False)
    table.add_column("carrier")
    table.add_column("counted by the pipeline", justify="right")
    table.add_column("in the data set", justify="right")
    for carrier in shown:
        counted, true = verdict.counts.get(carrier, 0), verdict.truth.get(carrier, 0)
        table.add_row(carrier, _judged(f"{counted:,}", counted == true), f"{true:,}")
    if rest:
        counted, true = (sum(counts.get(one, 0) for one in rest) for counts in (verdict.counts, verdict.truth))
        table.add_row(f"{len(rest)} others", _judged(f"{counted:,}", counted == true), f"{true:,}")
    return table


def _report_unsafe(console: Console, safe: Outcome, unsafe: Outcome) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("with", justify="right")
    table.add_column("without", justify="right")
    both = (safe.verdict, unsafe.verdict)
    table.add_row("in the output exactly once", *(f"{one.once:,}" for one in both))
    table.add_row("missing", *(f"{one.missing:,}" for one in both))
    table.add_row("repeated", *(f"{one.repeated:,}" for one in both))
    table.add_row("records too many", *(f"{one.surplus:,}" for one in both))
    table.add_row("carriers counted wrong", *(f"{len(one.wrong_counts)} of {len(one.truth)}" for one in both))
    console.print(table)
    if unsafe.verdict.is_exactly_once:
        console.print("This time nothing was lost or repeated: without transactions that is luck; try another --seed.")


def _table() -> Table:
    return Table(box=None, show_header=False, pad_edge=False)


def _judged(text: str, is_right: bool) -> str:
    return f"[green]{text}[/green]" if is_right else f"[bold red]{text}[/bold red]"
