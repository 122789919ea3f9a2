"""`semel node`: list the nodes of a cluster, keep new replicas away from one, empty it, and remove it."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    command_here,
    confirm,
    counted,
    examples,
    fail,
    fails_well,
    open_admin,
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
    node_state,
    plan_as_json,
    print_plan,
    throttle_rate,
    throttled,
)
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.wording import size

if TYPE_CHECKING:
    from semel.sdk.balancing.results import Plan

app = command_app("List the nodes of a cluster, keep new replicas away from one, empty it, and remove it.")

NodeId = Annotated[int, typer.Argument(metavar="NODE", min=0, max=INT32_MAX, help="The node's number (node.id).")]


@app.command("list", epilog=examples("semel node list --json"))
@fails_well
@watchable
def list_nodes(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the nodes with what is on their disks.

    A cordoned node gets no new replicas. What a node that does not answer has is not known.
    """
    with open_admin(bootstrap) as admin:
        nodes, replicas = admin.nodes(), admin.replicas()
    if as_json:
        print_json(
            [
                {
                    "node_id": node.node_id,
                    "rack": node.rack or None,
                    "alive": node.is_alive,
                    "stopping": node.is_stopping,
                    "full": node.is_full,
                    "cordoned": node.is_cordoned,
                    "listeners": [asdict(each) for each in node.listeners],
                    "replicas": len(here.sizes) if here is not None else None,
                    "bytes": sum(here.sizes.values()) if here is not None else None,
                    "free_bytes": here.free_bytes if here is not None and here.free_bytes >= 0 else None,
                }
                for node in nodes
                for here in [replicas.nodes.get(node.node_id)]
            ]
        )
        return
    rows = []
    for node in nodes:
        here = replicas.nodes.get(node.node_id)
        rows.append(
            (
                node.node_id,
                node.rack or None,
                node_state(node),
                None if here is None else len(here.sizes),
                None if here is None else size(sum(here.sizes.values())),
                None if here is None or here.free_bytes < 0 else size(here.free_bytes),
            )
        )
    print_table(["node", "rack", "state", "replicas", "bytes", "free"], rows, empty="no nodes")


@app.command(epilog=examples("semel node cordon 2"))
@fails_well
def cordon(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Have a node get no new replicas. Those that it has stay there, and it may lead them.

    It is the node's setting cordoned.log.dirs. The node need not be alive.
    """
    with open_admin(bootstrap) as admin:
        admin.cordon_node(node)
    print(
        f"node {node} gets no new replicas: `{command_here(f'semel node uncordon {node}', bootstrap)}` takes that back"
    )


@app.command(epilog=examples("semel node uncordon 2"))
@fails_well
def uncordon(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Let a node get new replicas again. What was moved away from it comes back by `semel cluster balance`."""
    with open_admin(bootstrap) as admin:
        admin.cordon_node(node, False)
    print(f"node {node} may get new replicas")


@app.command(
    epilog=examples(
        "semel node drain 2 --dry-run",
        "semel node drain 2",
        "semel node drain 2 --throttle 50MB/s",
        exit_codes="0 the node has no replicas any more; 1 not all could be moved; 2 the command line is wrong; "
        "3 no node answers",
    )
)
@fails_well
def drain(
    node: NodeId,
    dry_run: DryRun = False,
    yes: Yes = False,
    at_once: AtOnce = AT_ONCE,
    throttle: Throttle = None,
    ignore_racks: Annotated[
        bool, typer.Option("--ignore-racks", help="Also where a partition is in fewer racks then than now.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Empty a node: cordon it, and move all of its replicas to other nodes, while they are used.

    Then it can be stopped and removed. It works for a dead node, too, as far as others have the records. Interrupted,
    what has begun continues; give the same command again for the rest.
    """
    rate = throttle_rate(throttle)
    with open_admin(bootstrap) as admin:
        plan = _plan(admin, node, ignore_racks)
        if as_json:
            print_json(plan_as_json(plan))
        else:
            print_plan(plan, admin.nodes())
        left = next(one.replicas for one in plan.after if one.node_id == node)
        if left and (dry_run or not plan.moves):
            raise fail(_can_not_empty(node, left, plan) + _racks_hint(admin, node, plan), ExitCode.REFUSED)
        if dry_run:
            return
        if not yes:
            stay = counted(left, "replica that can't be moved stays", "replicas that can't be moved stay")
            question = f"Cordon node {node}, and move {counted(len(plan.moves), 'partition')} away from it"
            question += f" ({stay})?" if left else "?"
            confirm(question, err=True)
        admin.cordon_node(node)
        with throttled(admin, rate, bootstrap) as throttling:
            while True:
                # Plan again: new topics came to it until it was cordoned, and other moves end meanwhile.
                plan = _plan(admin, node, ignore_racks)
                moves = [move for move in plan.moves if node in move.before]
                if not moves:
                    break
                try:
                    carry_out_and_tell(admin, moves, at_once, throttling, bootstrap)
                except typer.Exit:  # some could not be moved, for instance because another command moves them
                    uncordon = command_here(f"semel node uncordon {node}", bootstrap)
                    print(
                        f"semel: node {node} stays cordoned: give the same command again for the rest, or `{uncordon}`",
                        file=sys.stderr,
                    )
                    raise
        left = next(one.replicas for one in plan.before if one.node_id == node)
        why = _can_not_empty(node, left, plan) + _racks_hint(admin, node, plan) if left else ""
    if left:
        uncordon = command_here(f"semel node uncordon {node}", bootstrap)
        raise fail(f"{why}. It stays cordoned, and gets no new replicas, until `{uncordon}`", ExitCode.REFUSED)
    stop = f"stop it, then `{command_here(f'semel node remove {node}', bootstrap)}`"
    done = f"node {node} has no replicas. To take it out of the cluster, {stop}"
    print(done, file=sys.stderr if as_json else sys.stdout)


def _can_not_empty(node: int, left: int, plan: Plan) -> str:
    reasons = {*(one.reason for one in plan.impossible), *(one.reason for one in plan.left_alone)}
    return f"{counted(left, 'replica')} of node {node} can't be moved: {'; '.join(sorted(reasons)[:3])}"


def _racks_hint(admin: semel.Admin, node: int, plan: Plan) -> str:
    """Return what to say where racks alone are in the way."""
    if not plan.impossible or len(_plan(admin, node, ignore_racks=True).impossible) == len(plan.impossible):
        return ""
    return ". --ignore-racks moves them into racks that the partition is in already"


def _plan(admin: semel.Admin, node: int, ignore_racks: bool) -> Plan:
    from semel.sdk.balancing.carrying_out import read_cluster
    from semel.sdk.balancing.planner import plan

    cluster = read_cluster(admin, without=[node])
    if node not in {one.node_id for one in cluster.nodes}:
        known = ", ".join(str(one.node_id) for one in cluster.nodes)
        raise fail(f"there is no node {node}: the cluster has the nodes {known}", ExitCode.REFUSED)
    if ignore_racks:
        cluster = replace(cluster, nodes=tuple(replace(one, rack="") for one in cluster.nodes))
    return plan(cluster, empty=[node], steps_max=0)


@app.command(epilog=examples("semel node remove 2"))
@fails_well
def remove(node: NodeId, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Remove a node from the cluster for good. It must be stopped, and have no replicas: `semel node drain` first.

    Its number is free then. A process that still runs as this node stops.
    """
    if not yes:
        confirm(f"Remove node {node} from the cluster?")
    with open_admin(bootstrap) as admin:
        admin.unregister_node(node)
    print(f"node {node} is removed")
