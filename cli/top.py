"""`semel top`: what a cluster does now, refreshed every second: traffic, transactions, lag, disks, replication."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    Bootstrap,
    command_app,
    command_here,
    counted,
    examples,
    fails_well,
    open_admin,
    print_table,
    printable,
)
from semel.cli.live import every_s_of, show_again
from semel.protocol.api.diagnostics import NO_TIME, Severity
from semel.protocol.wording import command, duration, partition_argument, size

if TYPE_CHECKING:
    from semel.protocol.api.diagnostics import GroupFacts, HeldPartition, NodeSnapshot, OpenTransaction
    from semel.sdk.admin.cluster_calls import ReplicasOfNodes
    from semel.sdk.admin.rates import Flow
    from semel.sdk.diagnosis.findings import Diagnosis

app = command_app()

_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Look:
    """What the nodes said at one moment. `at_s`: by the monotonic clock."""

    at_s: float
    diagnosis: Diagnosis
    replicas: ReplicasOfNodes


@app.command(
    epilog=examples(
        "semel top",
        "semel top --every 5s --limit 20 --bootstrap log1.example.com:9094",
        "semel top --count 1    # once, for a script or a bug report",
        exit_codes="0 it was ended by Ctrl-C, or was shown as often as --count says; 2 the command line is wrong; 3 no "
        "node answers",
    )
)
@fails_well
def top(
    every: Annotated[str, typer.Option(metavar=DURATION, help=f"How often it is refreshed. {DURATION_HELP}")] = "1s",
    count: Annotated[
        int, typer.Option(min=0, metavar="N", help="End when it was shown so often; 0: run until Ctrl-C.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=1, max=200, metavar="N", help="How many rows each table has.")] = _ROWS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show what a cluster does now, and refresh it: traffic, open transactions, lag, disks and replication.

    WRITTEN is what producers wrote (of a node: what its disk took, replicas of others among it), and SENT what
    consumers were sent, both per second. The topics with the most traffic come first, the groups that are furthest
    behind, the transactions that have been open for longest, and the partitions where one holds back readers of
    committed records. What is wrong is said in one line: `semel doctor` explains it. Nothing is changed.
    """
    every_s = every_s_of(every, "--every")
    with open_admin(bootstrap, client_id="semel-top") as admin:
        before: list[Look] = []

        def look() -> None:
            while True:
                now = Look(time.monotonic(), admin.diagnose(), admin.replicas())
                if before:
                    break
                before.append(now)
                time.sleep(every_s)  # rates need two looks
            print_look(before.pop(), now, limit, bootstrap)
            before.append(now)

        show_again(look, every_s, count)


def print_look(before: Look, now: Look, limit: int, bootstrap: str) -> None:
    """Print what there is now, with rates since the look before."""
    from semel.sdk.admin.rates import node_flows, topic_flows, topic_sizes
    from semel.sdk.diagnosis.cluster_state import state_of_cluster

    cluster = now.diagnosis.cluster
    state = state_of_cluster(cluster)
    seconds = max(now.at_s - before.at_s, 0.001)
    flows = topic_flows(before.replicas, now.replicas, seconds)
    up = sum(node.state == "up" for node in state.nodes)
    behind = f"{counted(state.behind_total, 'partition')} not whole" if state.behind_total else "all partitions whole"
    written, sent = sum(one.written for one in flows.values()), sum(one.sent for one in flows.values())
    print(
        f"{time.strftime('%H:%M:%S')}  {up} of {counted(len(state.nodes), 'node')} up, {behind}; "
        f"written {_rate(written)}, sent {_rate(sent)}"
    )
    _print_findings(now.diagnosis, bootstrap)
    print()
    node_rates = node_flows(before.replicas, now.replicas, seconds)
    told = {node.node_id: node for node in cluster.nodes}
    print_table(
        ["node", "state", "leads", "written", "sent", "sync", "free"],
        [
            (node.node_id, node.state, node.leads, *_of(node_rates.get(node.node_id)), *_disk(told.get(node.node_id)))
            for node in state.nodes
        ],
        empty="no nodes",
    )
    sizes = topic_sizes(now.replicas)
    busiest = sorted(sizes, key=lambda name: (-_traffic(flows, name), -sizes[name], name))
    _section("topics", len(busiest), limit)
    print_table(
        ["topic", "written", "sent", "size"],
        [(name, *_of(flows.get(name)), size(sizes[name])) for name in busiest[:limit]],
        empty="no topics",
    )
    groups = sorted((one for node in cluster.nodes for one in node.groups), key=lambda one: (-one.lag, one.group_id))
    _section("groups", sum(node.groups_total for node in cluster.nodes), limit)
    print_table(["group", "state", "members", "lag", "worst"], list(map(_group, groups[:limit])), empty="no groups")
    opened = sorted(_opened(cluster.nodes), key=lambda one: one[1].start_ms - one[0])
    _section("transactions", sum(node.transactions_total for node in cluster.nodes), limit)
    print_table(
        ["transactional id", "state", "for", "partitions"],
        [_transaction(now_ms, one) for now_ms, one in opened[:limit]],
        empty="none is open",
    )
    held = sorted(_held(cluster.nodes), key=lambda one: one[1].since_ms - one[0])
    if held:
        _section("partitions whose committed records wait", sum(node.held_total for node in cluster.nodes), limit)
        print_table(
            ["partition", "records", "for", "producer"],
            [_waiting(now_ms, one) for now_ms, one in held[:limit]],
            empty="",
        )


def _print_findings(diagnosis: Diagnosis, bootstrap: str) -> None:
    wrong = [one for one in diagnosis.findings if one.severity is not Severity.INFO]
    if wrong:
        worst = max(wrong, key=lambda one: one.severity.rank)
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        doctor = command_here(command("doctor"), bootstrap)
        print(f"{worst.severity.value}: {printable(worst.what)}{more}: {doctor}")


def _section(name: str, total: int, limit: int) -> None:
    print(f"\n{name}: {total:,}" + (f", the first {limit}" if total > limit else ""))


def _rate(bytes_per_s: float) -> str:
    return f"{size(round(bytes_per_s))}/s"


def _of(flow: Flow | None) -> tuple[str | None, str | None]:
    return (None, None) if flow is None else (_rate(flow.written), _rate(flow.sent))


def _traffic(flows: Mapping[str, Flow], name: str) -> float:
    flow = flows.get(name)
    return 0.0 if flow is None else flow.written + flow.sent


def _disk(node: NodeSnapshot | None) -> tuple[str | None, str | None]:
    if node is None:
        return None, None
    disk = node.disk
    free = f"{size(disk.free_bytes)} of {size(disk.total_bytes)}" if disk.total_bytes >= 0 else None
    return (f"{disk.sync_ms_recent:.1f} ms" if disk.syncs else None), free


def _group(one: GroupFacts) -> tuple[Any, ...]:
    worst = f"{partition_argument(one.worst)} ({one.worst_lag:,})" if one.lag else None
    return one.group_id, one.state, one.members, f"{one.lag:,}", worst


def _opened(nodes: Iterable[NodeSnapshot]) -> Iterator[tuple[int, OpenTransaction]]:
    return ((node.now_ms, one) for node in nodes for one in node.transactions)


def _held(nodes: Iterable[NodeSnapshot]) -> Iterator[tuple[int, HeldPartition]]:
    return ((node.now_ms, one) for node in nodes for one in node.held)


def _transaction(now_ms: int, one: OpenTransaction) -> tuple[Any, ...]:
    return one.key or one.transactional_id, one.state, _since(now_ms, one.start_ms), one.partitions_total


def _waiting(now_ms: int, one: HeldPartition) -> tuple[Any, ...]:
    waiting = f"{one.high_watermark - one.last_stable_offset:,}"
    return partition_argument(one.partition), waiting, _since(now_ms, one.since_ms), one.producer_id


def _since(now_ms: int, then_ms: int) -> str | None:
    return None if then_ms == NO_TIME else duration(max(0, now_ms - then_ms))
