"""AlterPartition: a leader proposes who is in sync, and the newest metadata decides (R5).

A leader that was deposed, or whose proposal is older than the last change, can't shrink or grow the in-sync set: both
epochs are compared. A follower is taken in only if it is alive and has the broker epoch with which it caught up
(KIP-841, KIP-903): one that has restarted since may lack what it fetched. A node that can't write a replica leaves
without being asked: its leader would wait for it, and with it all producers, until it counts as lagging; and where it
leads, nobody could write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from semel.broker.controller.elections import led
from semel.broker.controller.membership import (
    alive_nodes,
    changed,
    follows,
    full_nodes,
    is_enough,
    min_isr_of,
    stopping_nodes,
    with_isr,
)
from semel.broker.controller.moves import completed
from semel.broker.metadata.changes import Change, PartitionChanged, PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_LEADER, TopicId, format_topic_id


@dataclass(frozen=True, slots=True)
class ProposedIsr:
    """What a leader proposes for a partition.

    leader_epoch, partition_epoch: of the state that the proposal replaces
    isr: the members, each with the broker epoch of the fetches by which it caught up. It counts for those who join: who
        is in sync already has not started again, or the partition epoch would be another
    """

    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class IsrResult:
    """The answer to a proposal.

    state: what the partition is now, of an accepted proposal and of one that did not follow; None if that is unknown
    """

    topic_id: TopicId
    partition: int
    error: ErrorCode
    message: str = ""
    state: PartitionState | None = None


class IsrDecision(NamedTuple):
    """Changes of those proposals that are accepted, and the answers to all, in order."""

    changes: list[Change]
    results: list[IsrResult]


def decide_isr(
    image: MetadataImage,
    node_id: int,
    broker_epoch: int,
    proposals: Sequence[ProposedIsr],
    *,
    default_min_isr: int,
    stopping: Collection[int] = (),
) -> IsrDecision:
    """Decide on the proposals of a leader; each succeeds or fails for itself.

    node_id, broker_epoch: of the leader
    """
    decision = IsrDecision([], [])
    proposer = image.brokers.get(node_id)
    decided: dict[tuple[TopicId, int], PartitionState] = {}
    for one in proposals:
        if proposer is None or proposer.epoch != broker_epoch:
            known = "is not registered" if proposer is None else f"has the broker epoch {proposer.epoch} now"
            message = f"node {node_id} {known}, and this is from {broker_epoch}: it has to register again"
            result = IsrResult(one.topic_id, one.partition, ErrorCode.STALE_BROKER_EPOCH, message)
        else:
            result = _decide(image, node_id, one, decided, default_min_isr, stopping, decision.changes)
        decision.results.append(result)
    return decision


def left_by(
    image: MetadataImage,
    node_id: int,
    broker_epoch: int,
    partitions: Mapping[tuple[TopicId, int], bool],
    *,
    default_min_isr: int,
) -> list[Change]:
    """Return how a node leaves the in-sync replicas of partitions that it can't write, and another one leads.

    partitions: of each, whether the node has lost its records, or can't read them

    A follower stays where too few would be left for acks=all (R2): nobody would be helped, and fewer would count as
    complete. One that has lost its records does not: it is not complete. A leader stays where no other one is in sync,
    alive, and to stay. One that has lost its records leaves to an eligible one as well: what that lacks, because it was
    acknowledged by the leader alone (acks=1), is gone here, too.
    Nothing changes for a node that has registered again since.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != broker_epoch:
        return []
    alive, stopping, full = alive_nodes(image), stopping_nodes(image), full_nodes(image)
    changes: list[Change] = []
    for (topic_id, number), is_lost in partitions.items():
        found = image.partition_by_id(topic_id, number)
        if found is None:
            continue
        topic, state = found
        min_isr = min_isr_of(topic, default_min_isr)
        isr = tuple(each for each in state.isr if each != node_id)
        draft = with_isr(state, isr, min_isr, lost={node_id} if is_lost else ())
        if state.leader == node_id:
            draft = led(draft, alive, min_isr=min_isr, stopping=stopping, full=full)
            may_leave = draft.leader in isr or (is_lost and draft.leader not in (node_id, NO_LEADER))
        elif node_id in state.isr:
            may_leave = state.leader in isr and (is_lost or is_enough(state, isr, min_isr))
        else:
            may_leave = is_lost and node_id in state.elr
        if may_leave:
            changes += changed(topic, number, follows(state, draft))
    return changes


def _decide(
    image: MetadataImage,
    node_id: int,
    one: ProposedIsr,
    decided: dict[tuple[TopicId, int], PartitionState],
    default_min_isr: int,
    stopping: Collection[int],
    changes: list[Change],
) -> IsrResult:
    topic = image.topic_by_id(one.topic_id)
    if topic is None:
        message = f"there is no topic with the id {format_topic_id(one.topic_id)}: it may have been deleted"
        return IsrResult(one.topic_id, one.partition, ErrorCode.UNKNOWN_TOPIC_ID, message)
    if not 0 <= one.partition < len(topic.partitions):
        message = f"topic {topic.name} has {len(topic.partitions)} partitions, and none with the number {one.partition}"
        return IsrResult(one.topic_id, one.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    place = one.topic_id, one.partition
    state = decided.get(place, topic.partitions[one.partition])
    error, message = _refusal(image, node_id, one, state, stopping)
    if error is not ErrorCode.NONE:
        named = f"the in-sync replicas of {topic.name}-{one.partition} stay {list(state.isr)}: {message}"
        return IsrResult(one.topic_id, one.partition, error, named, state)
    isr = state.isr
    if set(one.isr) != set(isr):
        isr = tuple(each for each in state.replicas if each in one.isr)
    # Also for the same set: where it is enough by the setting of now, nobody else is eligible any more.
    min_isr = min_isr_of(topic, default_min_isr)
    draft = completed(with_isr(state, isr, min_isr), image, min_isr=min_isr, stopping=stopping)
    after = follows(state, draft)
    if after is not state:
        decided[place] = state = after
        changes.append(PartitionChanged(topic.name, topic.topic_id, one.partition, state))
    return IsrResult(one.topic_id, one.partition, ErrorCode.NONE, state=state)


def _refusal(
    image: MetadataImage, node_id: int, one: ProposedIsr, state: PartitionState, stopping: Collection[int]
) -> tuple[ErrorCode, str]:
    """Return what is wrong with a proposal, in the order in which Kafka looks for it."""
    if one.leader_epoch > state.leader_epoch or one.partition_epoch > state.partition_epoch:
        newer = f"the proposal knows epochs {one.leader_epoch} and {one.partition_epoch}, newer than this metadata"
        return ErrorCode.NOT_CONTROLLER, newer
    if one.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {state.leader_epoch}, not {one.leader_epoch}"
    if node_id != state.leader:
        return ErrorCode.INVALID_REQUEST, f"node {node_id} does not lead it, node {state.leader} does"
    if one.partition_epoch < state.partition_epoch:
        epochs = f"the partition epoch is {state.partition_epoch}, not {one.partition_epoch}"
        return ErrorCode.INVALID_UPDATE_VERSION, epochs
    if node_id not in one.isr:
        return ErrorCode.INVALID_REQUEST, f"node {node_id} leads it, and can't be left out"
    for member, epoch in one.isr.items():
        if member not in state.replicas:
            return ErrorCode.INVALID_REQUEST, f"node {member} has no replica of it"
        if member in state.isr:
            continue
        broker = image.brokers.get(member)
        if broker is None:
            return ErrorCode.INELIGIBLE_REPLICA, f"node {member} is not registered"
        if broker.is_fenced:
            return ErrorCode.INELIGIBLE_REPLICA, f"node {member} is fenced"
        if broker.epoch != epoch:
            restarted = f"node {member} has the broker epoch {broker.epoch}, and caught up with {epoch}"
            return ErrorCode.INELIGIBLE_REPLICA, restarted
        if member in stopping:
            return ErrorCode.INELIGIBLE_REPLICA, f"node {member} shuts down"
    return ErrorCode.NONE, ""
