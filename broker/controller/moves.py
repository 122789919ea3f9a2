"""Moving a partition's replicas to other nodes (AlterPartitionReassignments, KIP-455).

The new replicas are added first. The old ones leave in one change, once all new ones are in sync and enough of those
that stay are, so that min.insync.replicas holds all the time. Until then the move can be cancelled, which takes the
added replicas away again. If the leader leaves, the first replica that stays and is in sync leads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from semel.broker.controller.diskless import led_by
from semel.broker.controller.elections import led
from semel.broker.controller.membership import (
    alive_nodes,
    changed,
    cordoned_nodes,
    existing,
    follows,
    full_nodes,
    is_enough,
    min_isr_of,
    partitions_of,
    with_isr,
)
from semel.broker.metadata.changes import MOVES_VERSION, Change, PartitionChanged, PartitionState
from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.ids import NO_LEADER, TopicPartition

_NAMED_MAX: Final = 10


def begin_move(
    image: MetadataImage,
    tp: TopicPartition,
    replicas: Sequence[int],
    *,
    default_min_isr: int,
    stopping: Collection[int] = (),
    may_change_factor: bool = True,
) -> list[PartitionChanged]:
    """Return the change after which a partition's replicas move to the nodes `replicas`, the preferred leader first.

    A second move replaces the first; cancelled, the partition has what it had before the first. No change where it has
    these replicas already. Raises `SemelError`: INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR,
    UNKNOWN_TOPIC_OR_PARTITION, and UNSUPPORTED_VERSION while a node of the cluster does not read of moves.

    may_change_factor: there may be more or fewer replicas than before
    """
    topic, state = existing(image, tp)
    _check_nodes(image, tp, state, replicas)
    before = state.replicas_before
    if not may_change_factor and len(replicas) != len(before):
        raise UsageError(
            f"{tp} has {len(before)} replicas, and {len(replicas)} were asked for though their number is not to change",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    if topic.has_diskless(state):
        return _move_diskless(image, tp, topic, state, replicas, stopping)
    merged = (*replicas, *(each for each in state.replicas if each not in replicas))
    draft = replace(
        state,
        replicas=merged,
        adding=tuple(each for each in merged if each not in before),
        removing=tuple(each for each in merged if each not in replicas),
    )
    draft = completed(draft, image, min_isr=min_isr_of(topic, default_min_isr), stopping=stopping)
    if draft.is_moving and image.version < MOVES_VERSION:
        if draft.removing:
            old = min(image.brokers.values(), key=lambda broker: broker.metadata_version)
            raise FatalError(
                f"the replicas of {tp} can't be moved to {list(replicas)[:_NAMED_MAX]} yet: node {old.node_id} runs a "
                "semel that does not know of moves. Upgrade all nodes first",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        draft = replace(draft, adding=())  # as older versions do it: they are replicas at once
    # The only replica has led on after each of its restarts. With others there are followers that tell epochs apart.
    is_new_reign = draft.leader != NO_LEADER and len(state.replicas) == 1 < len(draft.replicas)
    return changed(topic, tp.partition, follows(state, draft, is_new_reign=is_new_reign))


def cancel_move(
    image: MetadataImage, tp: TopicPartition, *, default_min_isr: int, stopping: Collection[int] = ()
) -> list[PartitionChanged]:
    """Return the change after which a partition has the replicas again that it had before it was moved.

    Where too few of them are in sync now, they are moved back: the added ones leave once enough are.
    Raises `SemelError`: NO_REASSIGNMENT_IN_PROGRESS; INVALID_REPLICA_ASSIGNMENT where one that would go has all that is
    committed, and none of those that would be left can lead; UNKNOWN_TOPIC_OR_PARTITION.
    """
    topic, state = existing(image, tp)
    if not state.is_moving:
        raise FatalError(f"the replicas of {tp} are not being moved", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    before = state.replicas_before
    isr, min_isr = tuple(each for each in state.isr if each in before), min_isr_of(topic, default_min_isr)
    if is_enough(state, state.isr, min_isr) and not is_enough(state, isr, min_isr):
        added = tuple(each for each in state.replicas if each not in before)
        draft = replace(state, replicas=(*before, *added), adding=added, removing=added)
        return changed(topic, tp.partition, follows(state, draft))
    draft = replace(state, replicas=before, adding=(), removing=())
    draft = with_isr(draft, isr, min_isr)
    draft = led(draft, alive_nodes(image), min_isr=min_isr, stopping=stopping, full=full_nodes(image))
    if draft.leader == NO_LEADER and not {*state.isr, *state.elr}.issubset(before):
        raise FatalError(
            f"the move of {tp} can't be cancelled now: of the replicas from before, {list(before)}, none could lead. "
            "Try again when one of them is in sync",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    return changed(topic, tp.partition, follows(state, draft))


def completed(
    draft: PartitionState, image: MetadataImage, *, min_isr: int, stopping: Collection[int] = ()
) -> PartitionState:
    """Return a state in the making without the replicas that leave, once the others can do without them.

    Its epochs are as before. `draft` itself where nothing is moved, or not ready for that.
    """
    if not draft.is_moving:
        return draft
    after = draft.replicas_after
    isr = tuple(each for each in draft.isr if each in after)
    moved = replace(draft, replicas=after, adding=(), removing=())
    if not set(draft.adding).intersection(after).issubset(isr) or not is_enough(moved, isr, min_isr):
        return draft
    alive, full = alive_nodes(image), full_nodes(image)
    moved = led(with_isr(moved, isr, min_isr), alive, min_isr=min_isr, stopping=stopping, full=full)
    return draft if moved.leader == NO_LEADER else moved


def completed_moves(image: MetadataImage, *, default_min_isr: int, stopping: Collection[int] = ()) -> list[Change]:
    """Return the changes that complete the moves that have become possible otherwise than by an in-sync replica more:
    a node is there again that can lead, or a lower min.insync.replicas is enough.
    """
    changes: list[Change] = []
    for topic, number, state in partitions_of(image):
        if state.is_moving:
            draft = completed(state, image, min_isr=min_isr_of(topic, default_min_isr), stopping=stopping)
            changes += changed(topic, number, follows(state, draft))
    return changes


def _move_diskless(
    image: MetadataImage,
    tp: TopicPartition,
    topic: TopicImage,
    state: PartitionState,
    replicas: Sequence[int],
    stopping: Collection[int],
) -> list[PartitionChanged]:
    """Return the change by which another node leads a diskless partition, at once: there is nothing to copy."""
    if len(replicas) != 1:
        raise UsageError(
            f"{tp} is diskless and has one replica, on the node that leads it: name one node, not {len(replicas)}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    (leader,) = replicas
    if leader == state.leader:
        return []
    if leader not in alive_nodes(image) or leader in stopping:
        raise _refusal(f"{tp} can't be led by node {leader}, which is not alive, or stops")
    return changed(topic, tp.partition, follows(state, led_by(leader, state)))


def _check_nodes(image: MetadataImage, tp: TopicPartition, state: PartitionState, replicas: Sequence[int]) -> None:
    listed = list(replicas)[:_NAMED_MAX]
    if not replicas or len(set(replicas)) < len(replicas) or any(each not in image.brokers for each in replicas):
        known = ", ".join(map(str, sorted(image.brokers)))
        raise _refusal(f"the replicas of {tp} can't be {listed}: name nodes of the cluster ({known}), each once")
    cordoned = cordoned_nodes(image).intersection(replicas).difference(state.replicas)
    if cordoned:
        barred = min(cordoned)
        raise _refusal(f"{tp} can't get a replica on node {barred}, which is cordoned: `semel node uncordon {barred}`")
    alone = [each for each in replicas if not image.brokers[each].peer_port]
    if alone and set(replicas) != set(state.replicas):
        raise _refusal(f"node {alone[0]} can't have a replica of {tp} beside others: it has no peer.listen")


def _refusal(message: str) -> UsageError:
    return UsageError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
