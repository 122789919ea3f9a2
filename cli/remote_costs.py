"""What `semel cluster status` says of the remote storage: what is there, what was asked of it, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.common import counted, print_table
from semel.protocol.wording import duration, size

if TYPE_CHECKING:
    from semel.protocol.api.diagnostics import RemoteUse
    from semel.sdk.diagnosis.remote_costs import Estimate, Prices, RemoteState

_S3 = "The default is the list price of S3 Standard in us-east-1, in USD."

PerGibMonth = Annotated[
    float,
    typer.Option("--price-per-gib-month", min=0, metavar="PRICE", help=f"Of a GiB in the remote storage. {_S3}"),
]
PerThousandPuts = Annotated[
    float,
    typer.Option("--price-per-1000-puts", min=0, metavar="PRICE", help=f"Of 1000 puts, or lists, there. {_S3}"),
]
PerThousandGets = Annotated[
    float, typer.Option("--price-per-1000-gets", min=0, metavar="PRICE", help=f"Of 1000 gets there. {_S3}")
]
PerGibRead = Annotated[
    float,
    typer.Option(
        "--price-per-gib-read",
        min=0,
        metavar="PRICE",
        help="Of a GiB that is read there. Nothing within a region of S3; what leaves it has a price.",
    ),
]


def remote_as_json(state: RemoteState | None, prices: Prices) -> dict[str, Any] | None:
    """Return the remote storage for programs; None where there is none. Costs are None where it has no price."""
    if state is None:
        return None
    from semel.sdk.diagnosis.remote_costs import estimate, has_price, storage_cost

    priced = has_price(state.location, prices)
    return {
        "location": state.location,
        "stored_objects": state.stored_objects,
        "stored_bytes": state.stored_bytes,
        "nodes": [
            {
                "node_id": node.node_id,
                "for_ms": node.for_ms,
                "puts": node.use.puts,
                "gets": node.use.gets,
                "deletes": node.use.deletes,
                "lists": node.use.lists,
                "sent_bytes": node.use.sent_bytes,
                "read_bytes": node.use.read_bytes,
                "stored_objects": node.use.stored_objects,
                "stored_bytes": node.use.stored_bytes,
            }
            for node in state.nodes
        ],
        "topics": [
            {
                "topic": one.topic,
                "objects": one.objects,
                "stored_bytes": one.stored_bytes,
                "storage_cost_per_month": storage_cost(one.stored_bytes, prices) if priced else None,
            }
            for one in state.topics
        ],
        "all_topics": state.all_topics,
        "estimate_per_month": _estimate_as_json(estimate(state, prices), prices) if priced else None,
    }


def _estimate_as_json(found: Estimate, prices: Prices) -> dict[str, Any]:
    return {
        "cost": found.cost,
        "storage_cost": found.storage_cost,
        "puts": round(found.puts),
        "puts_cost": found.puts_cost,
        "gets": round(found.gets),
        "gets_cost": found.gets_cost,
        "read_bytes": round(found.read_bytes),
        "read_cost": found.read_cost,
        "is_early": found.is_early,
        "prices": {
            "per_gib_month": prices.per_gib_month,
            "per_1000_puts": prices.per_1000_puts,
            "per_1000_gets": prices.per_1000_gets,
            "per_gib_read": prices.per_gib_read,
        },
    }


def print_remote(state: RemoteState, prices: Prices, limit: int) -> None:
    """Print the remote storage for people, with the `limit` largest topics."""
    from semel.sdk.diagnosis.remote_costs import estimate, estimate_lines, has_price

    held = f"{size(state.stored_bytes)} in {counted(state.stored_objects, 'object')}"
    print(f"\nremote storage {state.location}: {held}")
    print_table(
        ["node", "for", "puts", "gets", "deletes", "lists", "sent", "read", "stored"],
        [(node.node_id, duration(node.for_ms), *_cells(node.use)) for node in state.nodes],
        empty="",
    )
    priced = has_price(state.location, prices)
    if state.topics:
        _print_topics(state, prices if priced else None, limit)
    print()
    if not priced:
        print("a directory has no price: give --price-per-gib-month and so on for an estimate of what it costs")
        return
    for line in estimate_lines(estimate(state, prices), prices):
        print(line)


def _print_topics(state: RemoteState, prices: Prices | None, limit: int) -> None:
    from semel.sdk.diagnosis.remote_costs import money, storage_cost

    print()
    print_table(
        ["topic", "objects", "stored", *(["a month"] if prices is not None else [])],
        [
            (
                one.topic,
                f"{one.objects:,}",
                size(one.stored_bytes),
                *([money(storage_cost(one.stored_bytes, prices))] if prices is not None else []),
            )
            for one in state.topics[:limit]
        ],
        empty="",
        whole=True,
    )
    more = len(state.topics) - limit
    if more > 0 or not state.all_topics:
        how_many = f"{max(more, 1)} more{'' if state.all_topics else ' at least'}"
        print(f"... and {how_many}{' (--limit)' if more > 0 else ''}")


def _cells(use: RemoteUse) -> tuple[str, ...]:
    requests = (f"{number:,}" for number in (use.puts, use.gets, use.deletes, use.lists))
    return (*requests, *map(size, (use.sent_bytes, use.read_bytes, use.stored_bytes)))
