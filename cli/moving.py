"""What commands share that move replicas: the plan as a table, the question, progress, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import semel
from semel.cli.common import RATE, ExitCode, command_here, counted, fail, parse_rate, print_table
from semel.cli.move_progress import ProgressTeller
from semel.cli.signals import finishing_on_signals
from semel.protocol.wording import listed, partition_argument, size

if TYPE_CHECKING:
    from semel.protocol.api.cluster import NodeState
    from semel.sdk.balancing.carrying_out import Progress
    from semel.sdk.balancing.model import NodeTotals
    from semel.sdk.balancing.results import Move, Plan
    from semel.sdk.balancing.throttling import MoveThrottle, Throttles

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be moved, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AtOnce = Annotated[
    int,
    typer.Option("--at-once", min=1, max=1000, metavar="N", help="How many partitions are copied at the same time."),
]
AT_ONCE: Final = 5
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar=RATE,
        help="How much each node sends, and how much it fetches, of what is moved: for example 50MB/s. It is set on "
        "the nodes and topics, and taken away when the moves are complete.",
        show_default=False,
    ),
]
_SHOWN_MAX: Final = 20


def node_state(node: NodeState) -> str:
    """Return what a node can be asked to do, in a word or two."""
    state = "dead" if not node.is_alive else "stopping" if node.is_stopping else "full" if node.is_full else "up"
    return f"{state}, cordoned" if node.is_cordoned else state


def print_plan(plan: Plan, nodes: Sequence[NodeState], *, measured: bool = False) -> None:
    """Print what each node has before and after, and the moves.

    measured: whether the plan knows what comes into partitions and goes out; without it there is nothing to show
    """
    after = {one.node_id: one for one in plan.after}
    states = {one.node_id: node_state(one) for one in nodes}
    rows = []
    for one in plan.before:
        then = after[one.node_id]
        rows.append(
            (
                one.node_id,
                states.get(one.node_id),
                _arrow(one.replicas, then.replicas),
                _arrow(one.leaders, then.leaders),
                _arrow(size(one.size_bytes), size(then.size_bytes)),
                *(_rates(one, then) if measured else ()),
            )
        )
    columns = ["node", "state", "replicas", "preferred leader of", "bytes"]
    print_table([*columns, "bytes in", "bytes out"] if measured else columns, rows, empty="no nodes")
    print()
    if plan.moves:
        orders = sum(not move.is_copy for move in plan.moves)
        leads = f", of {orders} only the preferred leader changes" if orders else ""
        print(f"{counted(len(plan.moves), 'partition')} to move{leads}, {size(plan.copied_bytes)} to copy:")
        print_moves(plan.moves)
    for what, cases in (("can't be done", plan.impossible), ("left alone", plan.left_alone)):
        alike: dict[str, list[str]] = {}
        for case in cases:
            alike.setdefault(case.reason, []).append(partition_argument(case.partition))
        for reason, partitions in list(alike.items())[:_SHOWN_MAX]:
            count = f"{len(partitions)} partitions, " if len(partitions) > 1 else ""
            print(f"{what}: {count}{listed(tuple(partitions))}: {reason}")
        if len(alike) > _SHOWN_MAX:
            print(f"... and {counted(len(alike) - _SHOWN_MAX, 'more reason')}")
    for hot in plan.hot[:_SHOWN_MAX]:
        print(
            f"hot: {partition_argument(hot.partition)} alone is {hot.share:.0%} of what node {hot.node_id} sends "
            f"({_per_s(hot.bytes_out_per_s)}): no move can spread it; more partitions can"
        )
    if len(plan.hot) > _SHOWN_MAX:
        print(f"... and {len(plan.hot) - _SHOWN_MAX} more")


def _rates(before: NodeTotals, after: NodeTotals) -> tuple[str, str]:
    """Return bytes in and bytes out as they are shown."""
    return (
        _arrow(_per_s(before.bytes_in_per_s), _per_s(after.bytes_in_per_s)),
        _arrow(_per_s(before.bytes_out_per_s), _per_s(after.bytes_out_per_s)),
    )


def _per_s(rate: float) -> str:
    return f"{size(round(rate))}/s"


def _arrow(before: object, after: object) -> str:
    return str(before) if before == after else f"{before} -> {after}"


def print_moves(moves: Sequence[Move]) -> None:
    print_table(
        ["partition", "replicas", "to", "copied", "why"],
        [
            (
                partition_argument(move.partition),
                ",".join(map(str, move.before)),
                ",".join(map(str, move.after)),
                size(move.copied_bytes) if move.copied_bytes else None,
                move.reason,
            )
            for move in moves[:_SHOWN_MAX]
        ],
        empty="nothing to move",
        whole=True,
    )
    if len(moves) > _SHOWN_MAX:
        print(f"... and {len(moves) - _SHOWN_MAX} more")


def plan_as_json(plan: Plan) -> dict[str, Any]:
    def totals(nodes: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {
                "node_id": one.node_id,
                "replicas": one.replicas,
                "preferred_leaders": one.leaders,
                "bytes": one.size_bytes,
                "bytes_in_per_s": one.bytes_in_per_s,
                "bytes_out_per_s": one.bytes_out_per_s,
            }
            for one in nodes
        ]

    def cases(found: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {"topic": one.partition.topic, "partition": one.partition.partition, "why": one.reason} for one in found
        ]

    return {
        "moves": [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "replicas": list(move.before),
                "to": list(move.after),
                "copied_bytes": move.copied_bytes,
                "why": move.reason,
            }
            for move in plan.moves
        ],
        "before": totals(plan.before),
        "after": totals(plan.after),
        "impossible": cases(plan.impossible),
        "left_alone": cases(plan.left_alone),
        "hot": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "node_id": one.node_id,
                "bytes_out_per_s": one.bytes_out_per_s,
                "share": one.share,
            }
            for one in plan.hot
        ],
        "complete": plan.is_complete,
    }


def throttle_rate(throttle: str | None) -> int | None:
    """Return what --throttle says in bytes per second. Raises `UsageError`."""
    return None if throttle is None else parse_rate(throttle, "--throttle")


@contextmanager
def throttled(admin: semel.Admin, bytes_per_s: int | None, bootstrap: str) -> Iterator[MoveThrottle | None]:
    """Have moves throttled that are made inside, and say what is left where this is interrupted.

    bytes_per_s: None for no throttle; where there is one all the same, that is said
    """
    from semel.sdk.balancing.throttling import MoveThrottle, throttled_nodes

    with finishing_on_signals():
        if bytes_per_s is None:
            if rates := throttled_nodes(admin):
                _tell_throttled(rates, bootstrap)
            yield None
            if rates and (rates := throttled_nodes(admin)) and not admin.reassignments():
                _tell_throttled(rates, bootstrap)
            return
        throttle = MoveThrottle(admin, bytes_per_s)
        try:
            try:
                yield throttle
            except typer.Exit:  # some could not be moved, and the others are
                tell_removed(throttle.end(), bootstrap)
                raise
            tell_removed(throttle.end(), bootstrap)
        except (KeyboardInterrupt, semel.SemelError):
            _tell_throttle_stays(bootstrap)
            raise


def tell_removed(left: Throttles | None, bootstrap: str) -> None:
    """Say what is left of a throttle after it was taken away; None: everything, because replicas are being moved."""
    if left is None:
        _tell_throttle_stays(bootstrap)
    elif left.nodes:
        remove_command = command_here("semel partition moves --remove-throttle", bootstrap)
        nodes = ", ".join(map(str, left.nodes))
        print(
            f"semel: the throttle is removed, but for the rate of nodes that are away ({nodes}), which does nothing: "
            f"`{remove_command}` removes it when they are back",
            file=sys.stderr,
        )


def _tell_throttled(rates: Mapping[int, Mapping[str, str]], bootstrap: str) -> None:
    """Say that a throttle is there which this command has not set."""
    lowest = min(int(rate) for settings in rates.values() for rate in settings.values())
    remove_command = command_here("semel partition moves --remove-throttle", bootstrap)
    nodes = f"{'nodes' if len(rates) > 1 else 'node'} {', '.join(map(str, rates))}"
    print(
        f"semel: a throttle is set on {nodes}, down to {size(lowest)}/s, by a command that was interrupted or by hand. "
        f"What it covers is copied no faster: `{remove_command}` removes it",
        file=sys.stderr,
    )


def _tell_throttle_stays(bootstrap: str) -> None:
    remove_command = command_here("semel partition moves --remove-throttle", bootstrap)
    print(
        f"semel: the throttle stays, because replicas may still be moved: when that is complete, `{remove_command}` "
        "removes it",
        file=sys.stderr,
    )


def carry_out_and_tell(
    admin: semel.Admin, moves: Sequence[Move], at_once: int, throttle: MoveThrottle | None, bootstrap: str
) -> Progress:
    """Carry moves out, inside of `throttled`, and say how far they are, on standard error.

    Raises the exit where something failed.
    """
    from semel.sdk.balancing.carrying_out import carry_out

    if throttle is not None:
        throttle.cover(moves)
    try:
        progress = carry_out(admin, moves, at_once=at_once, tell=ProgressTeller(admin, bootstrap))
    except (KeyboardInterrupt, semel.SemelError):
        moves_command = command_here("semel partition moves", bootstrap)
        print(f"semel: what has begun continues: `{moves_command}` shows it", file=sys.stderr)
        raise
    for error in list(progress.failed.values())[:_SHOWN_MAX]:
        print(f"semel: not moved: {error.message}", file=sys.stderr)
    for error in list(progress.not_led.values())[:_SHOWN_MAX]:
        print(f"semel: moved, but led by another node: {error.message}", file=sys.stderr)
    if progress.failed:
        raise fail(f"{counted(len(progress.failed), 'partition')} could not be moved", ExitCode.REFUSED)
    return progress
