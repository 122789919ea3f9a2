"""A plan that balances a cluster, or empties nodes: which replicas are to be on which nodes.

What always holds: a partition keeps its number of replicas, each on another node, in no fewer racks than before. Nodes
that may not get more get nothing, and no disk gets more than its free bytes less a tenth. Partitions that are being
moved already, or have no leader, stay as they are. Those with replicas that are not in sync, as when a node is away,
are moved off nodes that are emptied and nowhere else.

Within that, nodes that are to be emptied lose all replicas, and partitions use as many racks as they can. Then
replicas, preferred leaders, bytes, bytes written and bytes sent are spread evenly over the nodes, and so is each topic,
as far as that is worth the copies. The same cluster always gives the same plan. A plan that is carried out leaves
nothing to do.

Where one partition alone makes a node send more than the others, no move spreads that, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from semel.protocol.ids import INTERNAL_TOPICS
from semel.sdk.balancing.climbing import Climb
from semel.sdk.balancing.cost import DEFAULT_WEIGHTS, Weights
from semel.sdk.balancing.forced import empty_nodes, use_racks
from semel.sdk.balancing.hot import hot_partitions
from semel.sdk.balancing.layout import Layout
from semel.sdk.balancing.model import ClusterModel, PartitionModel
from semel.sdk.balancing.results import Impossible, LeftAlone, Move, Plan

STEPS_MAX: Final = 100_000
"""Steps after which a search ends with what it has: many times what a cluster of 10,000 partitions needs."""

_NOT_WHOLE: Final = "not all of its replicas are in sync: plan again when they are"


def plan(
    cluster: ClusterModel,
    *,
    empty: Collection[int] = (),
    weights: Weights = DEFAULT_WEIGHTS,
    steps_max: int = STEPS_MAX,
) -> Plan:
    """Return the moves that balance a cluster, and empty some of its nodes.

    The cluster ends no more uneven than it is, but for the moves that emptying nodes and using all racks ask for.
    A plan for the cluster as it is after these moves has none, unless `steps_max` or a full disk ended the search.

    empty:     ids of the nodes that are to have no replica in the end; they get none either
    weights:   how much each goal counts
    steps_max: 0 or more; with 0 there are only the moves that have to be

    Raises `ValueError`: a node that is to be emptied is not in the cluster, or `steps_max` is negative.
    """
    unknown = sorted(set(empty).difference(each.node_id for each in cluster.nodes))
    if unknown:
        raise ValueError(f"node {unknown[0]} can't be emptied: it is not in the cluster")
    if steps_max < 0:
        raise ValueError(f"steps_max can't be {steps_max}: give 0 or more")
    layout = Layout(cluster, empty, weights)
    alive = {each.node_id for each in cluster.nodes if each.is_alive}
    left_alone = {number: why for number, one in enumerate(layout.partitions) if (why := _why_left_alone(one, alive))}
    movable = [number for number in range(len(layout.partitions)) if number not in left_alone]
    emptied, impossible = empty_nodes(layout, movable)
    movable = [number for number in movable if number not in impossible]
    whole = [number for number in movable if layout.is_whole(number)]
    spread, lacking = use_racks(layout, whole)
    left_alone |= dict.fromkeys(set(movable).difference(whole), _NOT_WHOLE)
    layout.weigh()
    is_complete = _balance(layout, movable, steps_max)
    moves = _moves(layout, emptied, spread)
    after = cluster.moved({move.partition: move.after for move in moves})
    return Plan(
        moves,
        before=cluster.totals(),
        after=after.totals(),
        impossible=tuple(
            Impossible(layout.partitions[number].partition, why)
            for number, why in sorted((impossible | lacking).items())
        ),
        left_alone=tuple(
            LeftAlone(layout.partitions[number].partition, why) for number, why in sorted(left_alone.items())
        ),
        is_complete=is_complete,
        hot=hot_partitions(after, empty),
    )


def _why_left_alone(one: PartitionModel, alive: Collection[int]) -> str:
    if one.is_moving:
        return "its replicas are being moved already: plan again when they are where they go"
    return _no_leader(one, alive) if one.leader is None else ""


def _no_leader(one: PartitionModel, alive: Collection[int]) -> str:
    """Return that nobody leads a partition, and the ways out: while no replica is alive, none can be elected either."""
    away = sorted(set(one.replicas).difference(alive))
    start = f"start {'node' if len(away) == 1 else 'nodes'} {', '.join(map(str, away))} again"
    if len(away) < len(one.replicas):
        elect = "elect one that may lack records, by `semel partition elect --unclean`"
        return f"it has no leader to copy from: {f'{start}, or {elect}' if away else elect}"
    delete = "" if one.partition.topic in INTERNAL_TOPICS else ", or delete the topic"
    lost = "its directory is" if len(away) == 1 else "their directories are"
    return (
        f"it has no leader to copy from, and no node that is alive has it: {start}, with --accept-data-loss if {lost} "
        f"lost{delete}"
    )


def _balance(layout: Layout, movable: list[int], steps_max: int) -> bool:
    """Search until nothing gains anything; return whether that was reached within so many steps."""
    climb = Climb(layout, movable, steps_max)
    # Once more from where it ended, as the next plan will: what it would find belongs to this one.
    while climb.run():
        layout.settle()
    return not climb.is_cut_off


def _moves(layout: Layout, emptied: Iterable[int], spread: Iterable[int]) -> tuple[Move, ...]:
    """Return all moves in the order in which they are best done."""
    have_to, for_racks = frozenset(emptied), frozenset(spread)
    layout.restore_home()
    found: list[tuple[tuple[int, float, int], Move]] = []
    for number, one in enumerate(layout.partitions):
        ids = layout.node_ids
        after = ordered(one.replicas, [ids[node] for node in layout.replicas[number]], ids[layout.leaders[number]])
        if after == one.replicas:
            continue
        copied_bytes = one.size_bytes * len(set(after).difference(one.replicas))
        rank, gain_per_byte = 0, 0.0
        if number in have_to:
            leaving = sorted(layout.emptied.intersection(map(ids.index, one.replicas)))
            reason = _to_be_emptied([ids[node] for node in leaving])
        elif number in for_racks:
            rank, reason = 1, "racks"
        elif set(after) == set(one.replicas):
            rank, reason = 2, "leader only"
        else:
            rank, reason = 3, "balance"
            gain_per_byte = layout.gain_of_all(number) / max(copied_bytes, 1)
        found.append(((rank, -gain_per_byte, number), Move(one.partition, one.replicas, after, copied_bytes, reason)))
    return tuple(move for _, move in sorted(found, key=lambda each: each[0]))


def _to_be_emptied(node_ids: list[int]) -> str:
    if len(node_ids) == 1:
        return f"node {node_ids[0]} is to be emptied"
    return f"nodes {', '.join(map(str, node_ids[:-1]))} and {node_ids[-1]} are to be emptied"


def ordered(before: tuple[int, ...], after: Collection[int], leader: int) -> tuple[int, ...]:
    """Return replicas in an order as it was: those that stay keep their places, and new ones take those of the others.

    The preferred leader is first. It changes places with the one that was there.

    >>> ordered((1, 2, 3), {1, 3, 4}, leader=1), ordered((1, 2, 3), {1, 2, 3}, leader=3)
    ((1, 4, 3), (3, 2, 1))
    """
    added = iter(sorted(set(after).difference(before)))
    replicas = [each if each in after else next(added) for each in before]
    place = replicas.index(leader)
    replicas[0], replicas[place] = replicas[place], replicas[0]
    return tuple(replicas)
