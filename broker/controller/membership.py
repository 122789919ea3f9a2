"""Which replicas of a partition have every committed record: those in sync, and the eligible ones (KIP-966).

A record is committed when every in-sync replica has it and they are at least min.insync.replicas (R1). So a replica
that leaves when they become too few misses nothing until they are enough again: it stays eligible. The leader may know
another min.insync.replicas than the node that decided that. So it commits nothing while any replica is eligible, and
asks to end that once enough are in sync by its own setting (`LeaderState.has_min_isr`, `LeaderState.wanted_isr`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from semel.broker.metadata.changes import PartitionChanged, PartitionState
from semel.broker.metadata.image import BrokerImage, MetadataImage, TopicImage
from semel.protocol.errors import ErrorCode, FatalError, error_for
from semel.protocol.ids import TopicPartition

CORDONED_SETTING: Final = "cordoned.log.dirs"
MIN_ISR_SETTING: Final = "min.insync.replicas"


def min_isr_of(topic: TopicImage, default: int) -> int:
    """Return min.insync.replicas of a topic.

    default: the nodes' own setting, where the topic has none. It must be the same on all nodes of a cluster
    """
    return int(topic.configs.get(MIN_ISR_SETTING, default))


def alive_nodes(image: MetadataImage) -> frozenset[int]:
    """Return the nodes that are registered and not fenced."""
    return frozenset(node_id for node_id, broker in image.brokers.items() if not broker.is_fenced)


def stopping_nodes(image: MetadataImage) -> frozenset[int]:
    """Return the nodes that are about to stop."""
    return frozenset(node_id for node_id, broker in image.brokers.items() if broker.is_stopping)


def full_nodes(image: MetadataImage) -> frozenset[int]:
    """Return the nodes whose disks have no room for producers."""
    return frozenset(node_id for node_id, broker in image.brokers.items() if broker.is_full)


def cordoned_nodes(image: MetadataImage) -> frozenset[int]:
    """Return the nodes that are to get no new replicas (KIP-1066)."""
    return frozenset(
        node_id for node_id, values in image.broker_configs.items() if "*" in values.get(CORDONED_SETTING, "")
    )


def is_enough(state: PartitionState, isr: Collection[int], min_isr: int) -> bool:
    """Say whether records are committed with the in-sync replicas `isr`. More than all replicas can't be asked for."""
    return len(isr) >= max(1, min(min_isr, state.replication_factor))


def with_isr(
    state: PartitionState,
    isr: Sequence[int],
    min_isr: int,
    *,
    lost: Collection[int] = (),
    emptied: Collection[int] = (),
) -> PartitionState:
    """Return a state with other in-sync replicas, and the eligible ones that follow from it. Its epochs are as before.

    lost: replicas that may lack records which they had
    emptied: of these, the ones that have nothing
    """
    if is_enough(state, isr, min_isr):
        return replace(state, isr=tuple(isr), elr=(), last_known_elr=())
    complete = {*state.isr, *state.elr}
    elr = tuple(each for each in state.replicas if each in complete and each not in isr and each not in lost)
    known = {*complete, *state.last_known_elr}.difference(isr, elr, emptied)
    last_known_elr = tuple(each for each in state.replicas if each in known)
    return replace(state, isr=tuple(isr), elr=elr, last_known_elr=last_known_elr)


def follows(before: PartitionState, draft: PartitionState, *, is_new_reign: bool = False) -> PartitionState:
    """Return `draft` with the epochs that it has as the change after `before`; `before` itself where nothing changed.

    is_new_reign: the leader begins again, though it may be the same node

    It does where a replica leaves: that may come back with nothing, and what it fetched before must not count then.
    """
    if draft == before and not is_new_reign:
        return before
    begins = is_new_reign or draft.leader != before.leader or not set(before.replicas).issubset(draft.replicas)
    return replace(draft, leader_epoch=before.leader_epoch + begins, partition_epoch=before.partition_epoch + 1)


def partitions_of(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionState]]:
    """Go through all partitions."""
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            yield topic, number, state


def changed(topic: TopicImage, number: int, after: PartitionState) -> list[PartitionChanged]:
    """Return the change of a partition to `after`: none where that is its state already."""
    if after is topic.partitions[number]:
        return []
    return [PartitionChanged(topic.name, topic.topic_id, number, after)]


def existing_node(image: MetadataImage, node_id: int) -> BrokerImage:
    """Return a registered node. Raises `FatalError` (BROKER_ID_NOT_REGISTERED)."""
    broker = image.brokers.get(node_id)
    if broker is None:
        known = ", ".join(map(str, sorted(image.brokers)))
        raise FatalError(
            f"there is no node {node_id}, or no longer: the cluster has the nodes {known}",
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        )
    return broker


def existing(image: MetadataImage, tp: TopicPartition) -> tuple[TopicImage, PartitionState]:
    """Return a partition's topic and state. Raises `SemelError` (UNKNOWN_TOPIC_OR_PARTITION)."""
    topic, state = image.topic(tp.topic), image.partition(tp)
    if topic is None or state is None:
        name = TopicPartition(tp.topic[:300], tp.partition)
        raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}: check its name")
    return topic, state
