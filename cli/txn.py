"""`semel txn`: see what transactions are open, and end one that nobody else will."""

from __future__ import annotations

import time
from typing import Annotated

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    fails_well,
    format_duration,
    print_json,
    print_table,
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="See what transactions are open, and end one that nobody else will.",
)

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", help="The producer's transactional id.")]


@app.command("list", epilog="Example: semel txn list --state Ongoing --longer-than 60000")
@fails_well
def list_transactions(
    state: Annotated[list[str] | None, typer.Option(help="Only these states, for example Ongoing.")] = None,
    longer_than: Annotated[int, typer.Option(metavar="MS", help="Only those open for longer than this.")] = -1,
    pattern: Annotated[str, typer.Option(help="Only ids that match this regular expression.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with the state of their latest transaction."""
    with semel.Admin(bootstrap) as admin:
        found = admin.transactions(states=state or [], min_duration_ms=longer_than, pattern=pattern)
    rows = sorted(found, key=lambda transaction: transaction.transactional_id)
    if as_json:
        print_json(
            [{"transactional_id": t.transactional_id, "producer_id": t.producer_id, "state": t.state} for t in rows]
        )
        return
    print_table(
        ["transactional id", "producer id", "state"],
        [(t.transactional_id, t.producer_id, t.state) for t in rows],
        empty="no transactions",
    )


@app.command(epilog="Example: semel txn describe enrich-0")
@fails_well
def describe(
    transactional_id: TransactionalId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show one transactional id: its producer, its state, and the partitions of its open transaction."""
    with semel.Admin(bootstrap) as admin:
        found = admin.transaction(transactional_id)
    open_ms = int(time.time() * 1000) - found.start_time_ms if found.start_time_ms >= 0 else None
    if as_json:
        print_json(
            {
                "transactional_id": found.transactional_id,
                "state": found.state,
                "producer_id": found.producer.producer_id,
                "producer_epoch": found.producer.producer_epoch,
                "timeout_ms": found.timeout_ms,
                "open_ms": open_ms,
                "partitions": [str(tp) for tp in found.partitions],
            }
        )
        return
    print(f"{found.transactional_id} is {found.state}")
    print(f"  producer   {found.producer.producer_id}, epoch {found.producer.producer_epoch}")
    print(f"  timeout    {format_duration(found.timeout_ms)}")
    if open_ms is not None:
        print(f"  open for   {format_duration(max(0, open_ms))}")
    if found.partitions:
        print(f"  partitions {', '.join(map(str, found.partitions))}")


@app.command(epilog="Example: semel txn abort enrich-0 --yes")
@fails_well
def abort(
    transactional_id: TransactionalId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort the open transaction of a transactional id. The producer that holds it is fenced."""
    if not yes:
        typer.confirm(f"Abort what {transactional_id} has open, and fence its producer?", abort=True)
    with semel.Admin(bootstrap) as admin:
        admin.abort_transaction(transactional_id)
    print(f"the open transaction of {transactional_id} is aborted")
