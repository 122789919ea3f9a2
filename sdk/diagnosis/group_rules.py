"""What is found about groups. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from semel.protocol.api.diagnostics import NO_TIME, GroupFacts, NodeSnapshot, Severity, Thresholds
from semel.protocol.wording import command, counted, duration, moment
from semel.sdk.diagnosis.findings import KINDS, Cluster, Finding


def group_findings(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    """Groups that are behind, that nobody reads for, and that rebalance too often."""
    for node in cluster.nodes:
        for group in node.groups:
            yield from _restless(node, group, thresholds)
            if group.lag <= 0:
                continue
            if group.members == 0:
                yield _empty(node, group, thresholds)
            elif (finding := _behind(node, group, thresholds)) is not None:
                yield finding


def _restless(node: NodeSnapshot, group: GroupFacts, thresholds: Thresholds) -> Iterator[Finding]:
    recent = [time for time in group.rebalances_ms if node.now_ms - time <= thresholds.rebalance_window_ms]
    if len(recent) < thresholds.rebalances:
        return
    # Without members nobody waits for a rebalance: each start and stop of a lone consumer counted as one.
    is_empty = group.members == 0
    yield Finding(
        KINDS["group-rebalancing"],
        Severity.INFO if is_empty else Severity.WARNING,
        group.group_id,
        f"group {group.group_id!r} rebalanced {len(recent)} times in the last "
        f"{duration(thresholds.rebalance_window_ms)}, the last time {duration(node.now_ms - recent[-1])} ago; it is "
        f"{group.state} with {counted(group.members, 'member')}",
        since_ms=recent[0],
        happens="nothing while it has no members" if is_empty else "it continues as long as members come and go",
        commands=(command("group", "describe", group.group_id),),
        node_id=node.node_id,
    )


def _empty(node: NodeSnapshot, group: GroupFacts, thresholds: Thresholds) -> Finding:
    what = f"group {group.group_id!r} has no members, and {counted(group.lag, 'record')} not read by it"
    commands = (
        command("group", "describe", group.group_id),
        command("group", "delete", group.group_id, "--yes"),
    )
    happens = ""
    is_near = False
    if group.expires_ms != NO_TIME:
        left_ms = max(group.expires_ms - node.now_ms, 0)
        is_near = left_ms <= thresholds.expiry_ms
        happens = f"its offsets begin to be forgotten at {moment(group.expires_ms)} (in {duration(left_ms)})"
    return Finding(
        KINDS["group-expiring" if is_near else "group-without-members"],
        Severity.WARNING if is_near else Severity.INFO,
        group.group_id,
        what,
        since_ms=group.last_commit_ms,
        happens=happens,
        commands=commands,
        node_id=node.node_id,
    )


def _behind(node: NodeSnapshot, group: GroupFacts, thresholds: Thresholds) -> Finding | None:
    unread_ms = 0 if group.unread_since_ms == NO_TIME else node.now_ms - group.unread_since_ms
    if group.lag <= thresholds.lag_records and unread_ms <= thresholds.lag_ms:
        return None
    committed = (
        "has never committed"
        if group.last_commit_ms == NO_TIME
        else f"committed last {duration(node.now_ms - group.last_commit_ms)} ago"
    )
    age = f", the first unread one {duration(unread_ms)} old" if unread_ms else ""
    return Finding(
        KINDS["group-lagging"],
        Severity.WARNING,
        group.group_id,
        f"group {group.group_id!r} is {counted(group.lag, 'record')} behind, {group.worst_lag} of them in "
        f"{group.worst}{age}; it is {group.state} with {counted(group.members, 'member')}, and {committed}",
        since_ms=group.unread_since_ms,
        commands=(command("group", "describe", group.group_id),),
        node_id=node.node_id,
    )
