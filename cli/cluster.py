"""`semel cluster`: what each node does, what is behind, and what to do next; and replicas are spread evenly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    command_here,
    confirm,
    counted,
    examples,
    fails_well,
    open_admin,
    parse_duration,
    print_json,
    print_table,
)
from semel.cli.live import watchable
from semel.cli.moving import (
    AT_ONCE,
    AtOnce,
    DryRun,
    Throttle,
    Yes,
    carry_out_and_tell,
    plan_as_json,
    print_plan,
    throttle_rate,
    throttled,
)
from semel.cli.remote_costs import (
    PerGibMonth,
    PerGibRead,
    PerThousandGets,
    PerThousandPuts,
    print_remote,
    remote_as_json,
)
from semel.protocol.api.diagnostics import Section, Severity
from semel.protocol.wording import command, duration, partition_argument, size

if TYPE_CHECKING:
    from semel.sdk.balancing.results import Plan
    from semel.sdk.diagnosis.cluster_state import ClusterState, NodeState, ReplicationState
    from semel.sdk.diagnosis.findings import Finding

app = command_app("Show the nodes of a cluster, what is behind, and what to do next; and balance it.")

_SECTIONS = (Section.COORDINATORS, Section.PARTITIONS)
"""What warnings are about that a cluster's nodes and replicas cause."""
_STEPS_MAX = 3
"""So many findings are shown: errors of each kind, and of warnings as many as the errors leave room for."""


@app.callback()
def cluster() -> None:
    """Show the nodes of a cluster, what is behind, and what to do next; and balance it."""


@app.command(
    epilog=examples(
        "semel cluster status",
        "semel cluster status --bootstrap log1.example.com:9094,log2.example.com:9094",
        "semel cluster status --price-per-gib-month 0.0245 --price-per-1000-puts 0.0054",
        exit_codes="0 all nodes are up, all replicas in sync, and `semel doctor` finds no error; 1 not so, or the node "
        "refused; 2 the command line is wrong; 3 no node answers",
    )
)
@fails_well
@watchable
def status(
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="How many partitions, and topics, to list.")
    ] = 20,
    price_per_gib_month: PerGibMonth = 0.023,
    price_per_1000_puts: PerThousandPuts = 0.005,
    price_per_1000_gets: PerThousandGets = 0.0004,
    price_per_gib_read: PerGibRead = 0.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show each node with what it leads, partitions whose replicas are behind, and what to do next.

    Asks every node. STATE is up; stopping; full (its disk refuses producers, and others lead in its place); fenced (the
    others have not heard of it in time, and take it for dead); or unreachable from here. BEHIND says how many changes
    of the metadata a node has not applied yet. Every error that `semel doctor` finds is among the next steps, and
    explained there. Nothing is changed.

    Where old segments are copied to a remote storage, it also shows what the nodes have asked of it since their
    start, what is stored there, and about what that costs a month.
    """
    from semel.sdk.diagnosis.cluster_state import state_of_cluster
    from semel.sdk.diagnosis.remote_costs import Prices

    prices = Prices(price_per_gib_month, price_per_1000_puts, price_per_1000_gets, price_per_gib_read)

    with open_admin(bootstrap, client_id="semel-cluster") as admin:
        diagnosis = admin.diagnose()
    state = state_of_cluster(diagnosis.cluster)
    errors = [one for one in diagnosis.findings if one.severity is Severity.ERROR]
    warnings = [one for one in diagnosis.findings if one.severity is Severity.WARNING and one.kind.section in _SECTIONS]
    is_whole = state.is_whole and not errors
    if as_json:
        told = _as_json(state, [*errors, *warnings], bootstrap, is_whole=is_whole)
        print_json(told | {"remote_storage": remote_as_json(state.remote, prices)})
    else:
        _print(state, limit, bootstrap)
        if state.remote is not None:
            print_remote(state.remote, prices, limit)
        _print_next_steps(errors, warnings, bootstrap)
    if not is_whole:
        raise typer.Exit(ExitCode.REFUSED)


@app.command(
    epilog=examples(
        "semel cluster balance --dry-run",
        "semel cluster balance --measure 60s --at-once 2 --throttle 50MB/s",
        exit_codes="0 it is balanced, or can be; 1 not all could be moved, or racks can't be used; 2 the command line "
        "is wrong; 3 no node answers",
    )
)
@fails_well
def balance(
    dry_run: DryRun = False,
    yes: Yes = False,
    at_once: AtOnce = AT_ONCE,
    throttle: Throttle = None,
    measure: Annotated[
        str,
        typer.Option(
            metavar=DURATION,
            help=f"Measure for so long what producers write to each partition (in) and consumers read of it (out), and "
            f"spread both too. What is read from followers counts for the leader's node. {DURATION_HELP}",
        ),
    ] = "0",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Spread replicas, leaders and bytes evenly over the nodes, as far as that is worth the copies.

    Racks come first: a partition is in as many as it can be. Nodes that are dead, stopping, full or
    cordoned get nothing. Partitions that are being moved, or have no leader, stay. The same cluster always gives the
    same plan. Interrupted, what has begun continues; give the same command again for the rest.
    """
    from semel.sdk.balancing.carrying_out import read_cluster
    from semel.sdk.balancing.planner import plan

    measure_s, rate = parse_duration(measure, "--measure"), throttle_rate(throttle)
    with open_admin(bootstrap, client_id="semel-cluster") as admin:
        if measure_s:
            print(f"measuring for {measure} ...", file=sys.stderr)
        found = plan(read_cluster(admin, measure_s=measure_s))
        if as_json:
            print_json(plan_as_json(found))
        else:
            print_plan(found, admin.nodes(), measured=measure_s > 0)
        if not found.moves:
            print(_nothing_to_move(found), file=sys.stderr)
        elif not dry_run:
            if not yes:
                confirm(f"Move {counted(len(found.moves), 'partition')}?", err=True)
            with throttled(admin, rate, bootstrap) as throttling:
                done = carry_out_and_tell(admin, found.moves, at_once, throttling, bootstrap)
            print(f"{counted(done.done, 'partition')} moved", file=sys.stderr)
        if not found.is_complete:
            print("the search for moves was ended early: balance again when these are complete", file=sys.stderr)
    if found.impossible:
        raise typer.Exit(ExitCode.REFUSED)


def _nothing_to_move(found: Plan) -> str:
    if found.impossible:
        return "nothing to move"
    if found.left_alone:
        count = counted(len(found.left_alone), "partition is", "partitions are")
        return f"nothing can be moved now: {count} left alone; `semel cluster status` tells what is wrong"
    if found.hot:
        return "nothing to move: the rest is balanced"
    return "nothing to move: the cluster is balanced"


def _as_json(state: ClusterState, wrong: Sequence[Finding], bootstrap: str, *, is_whole: bool) -> dict[str, Any]:
    return {
        "whole": is_whole,
        "metadata_away_ms": state.metadata_away_ms,
        "controller": state.controller,
        "nodes": [
            {
                "node_id": node.node_id,
                "address": node.address or None,
                "state": node.state,
                "reason": node.reason or None,
                "leads": node.leads,
                "version": node.version or None,
                "metadata_behind": node.behind,
                "free_bytes": node.free_bytes,
                "total_bytes": node.total_bytes,
            }
            for node in state.nodes
        ],
        "partitions_behind": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "leader": one.leader,
                "replicas": list(one.replicas),
                "in_sync": list(one.isr),
                "lacks": {str(node_id): lacks for node_id, lacks in one.lacks.items()},
            }
            for one in state.behind
        ],
        "partitions_behind_total": state.behind_total,
        "partitions_led_by_silent_nodes": {str(node_id): leads for node_id, leads in state.silent_leaders.items()},
        "partitions_moving_total": state.moving_total,
        "throttled_topics": list(state.throttled_topics),
        "next": [
            {
                "kind": one.kind.name,
                "severity": one.severity.value,
                "what": one.what,
                "happens": one.happens or None,
                "fix": one.kind.fix,
                "commands": [command_here(text, bootstrap) for text in one.commands],
            }
            for one in wrong
        ],
    }


def _print(state: ClusterState, limit: int, bootstrap: str) -> None:
    print_table(
        ["node", "address", "state", "role", "leads", "behind", "version", "free"],
        [_node_row(node, state) for node in state.nodes],
        empty="no nodes",
    )
    print()
    if state.metadata_away_ms:
        ago = duration(state.metadata_away_ms)
        print(f"the metadata's database does not answer: this is how it was {ago} ago, when it was last reached")
    for node_id, leads in state.silent_leaders.items():
        print(f"{counted(leads, 'partition is', 'partitions are')} led by node {node_id}, which does not answer")
    if state.behind_total:
        print(f"{counted(state.behind_total, 'partition')} not whole:")
        print_table(
            ["partition", "leader", "replicas", "in sync", "missing"],
            [_partition_row(one) for one in state.behind[:limit]],
            empty="",
            whole=True,
        )
        if state.behind_total > limit:
            print(f"... and {state.behind_total - limit} more (--limit)")
    elif state.metadata_away_ms:
        print("all partitions had a leader, and all of their replicas were in sync")
    else:
        print("all partitions have a leader, and all of their replicas are in sync")
    if state.moving_total:
        throttled = ", throttled" if state.throttled_topics else ""
        moves_command = command_here("semel partition moves", bootstrap)
        moving = counted(state.moving_total, "partition is", "partitions are")
        print(f"{moving} being moved{throttled}: `{moves_command}` shows how far")


def _print_next_steps(errors: Sequence[Finding], warnings: Sequence[Finding], bootstrap: str) -> None:
    """Print what is to be done: about each kind of error, and where there are few of them about warnings."""
    by_kind: dict[str, list[Finding]] = {}
    for one in errors:
        by_kind.setdefault(one.kind.name, []).append(one)
    shown = 0
    for name, alike in by_kind.items():
        for one in alike[:_STEPS_MAX]:
            _print_step(one, bootstrap)
        shown += len(alike[:_STEPS_MAX])
        if len(alike) > _STEPS_MAX:
            print(f"\n... and {len(alike) - _STEPS_MAX} more: {name}")
    few = warnings[: max(0, _STEPS_MAX - shown)]
    for one in few:
        _print_step(one, bootstrap)
    if errors or warnings:
        more = len(errors) + len(warnings) - shown - len(few)
        what = f"{counted(more, 'more finding')}, and all of them explained" if more > 0 else "all of it explained"
        print(f"\n{what}: {command_here(command('doctor'), bootstrap)}")


def _print_step(one: Finding, bootstrap: str) -> None:
    print(f"\n{one.kind.name}: {one.what}")
    print(f"  next   {one.happens or one.kind.fix}")
    for text in one.commands:
        print(f"         $ {command_here(text, bootstrap)}")


def _node_row(node: NodeState, state: ClusterState) -> tuple[object, ...]:
    return (
        node.node_id,
        node.address or None,
        node.state,
        "controller" if node.node_id == state.controller else "",
        node.leads,
        node.behind,
        node.version or None,
        None if node.free_bytes is None else f"{size(node.free_bytes)} of {size(node.total_bytes or 0)}",
    )


def _partition_row(one: ReplicationState) -> tuple[object, ...]:
    missing = ", ".join(
        f"node {node_id}" + (f" (lacks {counted(lacks, 'record')})" if lacks else "")
        for node_id, lacks in one.lacks.items()
    )
    return (
        partition_argument(one.partition),
        "none" if one.leader is None else one.leader,
        ",".join(map(str, one.replicas)),
        ",".join(map(str, one.isr)) or "none",
        missing or None,
    )
