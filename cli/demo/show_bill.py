"""Shows what the demo's diskless nodes have asked of the store, what there is, and about what that costs a month."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from semel.cli.common import counted
from semel.cli.demo.bill import Bill
from semel.protocol.wording import duration, size
from semel.sdk.diagnosis.remote_costs import Prices, RemoteNode, estimate, estimate_lines, has_price


def show_bill(console: Console, bill: Bill) -> None:
    """Print the bill: requests of each node, what the store and the database hold, and an estimate."""
    remote, held, prices = bill.remote, bill.held, Prices()
    plays = ", an S3 of the demo's own (moto)" if remote.location.startswith("s3:") else ""
    console.print(f"objects in {remote.location}{plays}")
    console.print(_requests(remote.nodes))
    if bill.missed:
        console.print(f"{counted(bill.missed, 'node')} did not tell in time what it had asked: the figures are too low")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row(
        "in the store",
        f"{size(remote.stored_bytes)}: {counted(bill.segments, 'segment')} of {size(bill.segment_bytes)}, "
        f"{counted(held.objects, 'object')} of appends of {size(held.object_bytes)}",
    )
    table.add_row(
        "in the database",
        f"{held.entries:,} rows in semel_diskless_entries, {held.inline:,} of them with the records: "
        f"{size(held.inline_bytes)}",
    )
    console.print(table)
    console.print()
    if not has_price(remote.location, prices):
        console.print("A directory has no price: S3 would ask")
    status = "`semel cluster status --price-...` says it with others"
    for line in estimate_lines(estimate(remote, prices), prices, changed_by=status):
        console.print(line)


def _requests(nodes: tuple[RemoteNode, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("node", "for", "puts", "gets", "deletes", "lists", "sent", "read"):
        table.add_column(name, justify="left" if name == "node" else "right")
    for node in nodes:
        use = node.use
        requests = (f"{number:,}" for number in (use.puts, use.gets, use.deletes, use.lists))
        table.add_row(str(node.node_id), duration(node.for_ms), *requests, size(use.sent_bytes), size(use.read_bytes))
    return table
