"""What a plan is made from is asked of a cluster, and a plan is carried out on it, a few partitions at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import NO_LEADER, TopicPartition
from semel.sdk.admin.rates import fetched_between, sizes_of
from semel.sdk.balancing.model import ClusterModel, NodeModel, PartitionModel
from semel.sdk.balancing.results import Move

if TYPE_CHECKING:
    from semel.sdk.admin.api import Admin

_LOOK_EVERY_S: Final = 0.5
_ORDERS_AT_ONCE: Final = 500
"""Moves that copy nothing cost the cluster a change of its metadata each."""
_LOOKS_AT_CHANGED: Final = 10
"""So often a partition has to look as if somebody else had moved it: a node may know later than others where it is."""


def read_cluster(
    admin: Admin, *, without: Collection[int] = (), measure_s: float = 0.0, sleep: Callable[[float], None] = time.sleep
) -> ClusterModel:
    """Ask a cluster for its nodes, and for where replicas are and how large.

    without:   nodes that are to get nothing more, besides those that are dead, stopping, full or cordoned
    measure_s: for so many seconds it is measured how many bytes come into each partition, and how many of it consumers
               read; 0: none count

    Raises `SemelError`.
    """
    moving = {one.partition for one in admin.reassignments()}
    before: dict[TopicPartition, int] = {}
    fetched: Mapping[TopicPartition, int] = {}
    if measure_s:
        replicas_before = admin.replicas()
        before = sizes_of(replicas_before)
        sleep(measure_s)
        replicas = admin.replicas()
        fetched = fetched_between(replicas_before, replicas)
    else:
        replicas = admin.replicas()
    sizes = sizes_of(replicas)
    # Topics before nodes: a node that comes meanwhile, and gets a replica, is known then.
    topics = admin.topics(include_internal=True)
    nodes = []
    for node in admin.nodes():
        known = replicas.nodes.get(node.node_id)
        is_barred = not node.is_alive or node.is_stopping or node.is_cordoned or node.is_alone or node.is_full
        may_get_more = not is_barred and node.node_id not in without
        free_bytes = known.free_bytes if known is not None and known.free_bytes >= 0 else None
        nodes.append(NodeModel(node.node_id, node.rack, node.is_alive, may_get_more, free_bytes))
    partitions = []
    for topic in topics:
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition)
            size_bytes = sizes.get(tp, 0)
            grown = max(0, size_bytes - before[tp]) if tp in before else 0  # less where old records went meanwhile
            partitions.append(
                PartitionModel(
                    tp,
                    one.replicas,
                    None if one.leader_id == NO_LEADER else one.leader_id,
                    frozenset(one.isr),
                    size_bytes,
                    bytes_in_per_s=grown / measure_s if measure_s else 0.0,
                    bytes_out_per_s=fetched.get(tp, 0) / measure_s if measure_s else 0.0,
                    is_moving=tp in moving,
                )
            )
    try:
        return ClusterModel(tuple(nodes), tuple(partitions))
    except ValueError as error:
        raise RetriableError(f"the cluster changed while it was read ({error}): try again") from error


@dataclass(slots=True)
class Progress:
    """How far a plan is. `moving`: what is copied now, with where it goes."""

    total: int
    total_bytes: int
    done: int = 0
    done_bytes: int = 0
    moving: dict[TopicPartition, Move] = field(default_factory=dict)
    failed: dict[TopicPartition, SemelError] = field(default_factory=dict)
    """What could not be moved, or was moved otherwise by somebody else meanwhile."""
    not_led: dict[TopicPartition, SemelError] = field(default_factory=dict)
    """What was moved, and is not led by its preferred replica."""


def carry_out(
    admin: Admin,
    moves: Sequence[Move],
    *,
    at_once: int,
    tell: Callable[[Progress], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Progress:
    """Move replicas as planned, and have the preferred ones lead. Returns when all is done that could be.

    at_once: so many partitions are copied at the same time
    tell:    called after every look at the cluster

    What has begun continues where this is interrupted. Raises `SemelError` where the cluster can't be asked.
    """
    progress = Progress(len(moves), sum(move.copied_bytes for move in moves))
    orders = iter([move for move in moves if not move.is_copy])
    copies = iter([move for move in moves if move.is_copy])
    changed: Counter[TopicPartition] = Counter()
    for part in _parts(orders):
        _begin(admin, part, progress)
        _end(admin, progress, changed)
        tell(progress)
    while True:
        copied_now = sum(move.is_copy for move in progress.moving.values())
        _begin(admin, list(islice(copies, max(0, at_once - copied_now))), progress)
        _end(admin, progress, changed)
        tell(progress)
        if not progress.moving:
            if progress.done + len(progress.failed) == progress.total:
                break
            continue
        sleep(_LOOK_EVERY_S)
    to_lead = [
        move.partition for move in moves if move.after[0] != move.before[0] and move.partition not in progress.failed
    ]
    for tp, error in admin.elect_leaders(to_lead).items():
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED:
            progress.not_led[tp] = error
    return progress


def _parts(moves: Iterator[Move]) -> Iterator[list[Move]]:
    while part := list(islice(moves, _ORDERS_AT_ONCE)):
        yield part


def _begin(admin: Admin, moves: Sequence[Move], progress: Progress) -> None:
    if not moves:
        return
    under_way = {one.partition: one for one in admin.reassignments()}
    there = _replicas(admin)
    planned = []
    for move in moves:
        begun = under_way.get(move.partition)
        # What goes where it should already is begun, no matter by whom: the plan may be older than that.
        if there.get(move.partition) == move.before or (begun is not None and begun.target == move.after):
            planned.append(move)
        else:
            # Since the plan was made. Carried out all the same, it would undo what somebody else wants.
            progress.failed[move.partition] = _changed(move, there)
    outcomes = admin.reassign_partitions({move.partition: move.after for move in planned})
    for move in planned:
        error = outcomes[move.partition]
        if error is None:
            progress.moving[move.partition] = move
        else:
            progress.failed[move.partition] = error


def _end(admin: Admin, progress: Progress, changed: Counter[TopicPartition]) -> None:
    """Look which moves are complete. `changed`: how often each looked as if somebody else had moved it."""
    if not progress.moving:
        return
    moving = {one.partition for one in admin.reassignments()}
    ended = [tp for tp in progress.moving if tp not in moving]
    if not ended:
        return
    there = _replicas(admin)
    for tp in ended:
        move = progress.moving[tp]
        if there.get(tp) == move.after:
            progress.done += 1
            progress.done_bytes += move.copied_bytes
        else:
            changed[tp] += 1
            if changed[tp] < _LOOKS_AT_CHANGED:
                continue
            progress.failed[tp] = _changed(move, there)
        del progress.moving[tp]


def _replicas(admin: Admin) -> Mapping[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(topic.name, one.partition): one.replicas
        for topic in admin.topics(include_internal=True)
        for one in topic.partitions
    }


def _changed(move: Move, there: Mapping[TopicPartition, tuple[int, ...]]) -> FatalError:
    tp = move.partition
    now = f"its replicas are {list(there[tp])}" if tp in there else "it is not there any more"
    return FatalError(
        f"{tp} was not moved to {list(move.after)}: somebody else changed it meanwhile, and {now}",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    )
