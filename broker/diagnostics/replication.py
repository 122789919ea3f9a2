"""What a node tells about the cluster: its nodes, partitions that lack a leader or replicas, internal topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from semel.broker.controller.membership import cordoned_nodes, min_isr_of, partitions_of
from semel.broker.controller.metadata_loss import waits_for_ends
from semel.broker.handlers.topics.rules import internal_topic
from semel.broker.log.throttled_replicas import THROTTLED_REPLICAS
from semel.broker.logs.leader_state import NOT_HEARD
from semel.broker.metadata.image import TopicImage
from semel.broker.services import Services
from semel.protocol.api.diagnostics import (
    InternalTopicFacts,
    NodeFacts,
    PartitionReplicas,
    ReplicaFacts,
    ReplicationFacts,
)
from semel.protocol.ids import NO_LEADER, TopicPartition
from semel.runtime.turns import Turns


def leader_counts(node: Services) -> Counter[int]:
    """Return how many partitions each node leads, by the metadata."""
    return Counter(state.leader for topic in node.metadata.image.topics.values() for state in topic.partitions)


def node_facts(node: Services, leads: Mapping[int, int]) -> tuple[NodeFacts, ...]:
    """Return the cluster's nodes. `leads`: how many partitions each leads."""
    cordoned = cordoned_nodes(node.metadata.image)
    return tuple(
        NodeFacts(
            *(node_id, broker.is_fenced, broker.is_stopping, leads.get(node_id, 0)),
            is_cordoned=node_id in cordoned,
            is_full=broker.is_full,
        )
        for node_id, broker in sorted(node.metadata.image.brokers.items())
    )


async def replication_facts(node: Services, most: int) -> tuple[list[ReplicationFacts], int]:
    """Return partitions without a leader, then those with the fewest replicas in sync, and how many there are."""
    found: list[ReplicationFacts] = []
    turns = Turns()
    for topic, number, state in partitions_of(node.metadata.image):
        await turns.give_way()
        if state.leader != NO_LEADER and set(state.replicas_before).issubset(state.isr):
            continue  # replicas that a move adds are missing to nobody yet
        found.append(
            ReplicationFacts(
                TopicPartition(topic.name, number),
                state.leader,
                state.replicas,
                state.isr,
                state.elr,
                state.last_known_elr,
                min(min_isr_of(topic, node.config.min_insync_replicas), state.replication_factor),
                _missing(node, TopicPartition(topic.name, number)),
                waits_for_ends(state),
            )
        )
    found.sort(key=lambda one: (one.leader != NO_LEADER, len(one.isr) - one.min_insync_replicas, one.partition))
    return found[:most], len(found)


def tight_partitions(topic: TopicImage, min_isr: int, most: int) -> tuple[PartitionReplicas, ...]:
    """Return the first `most` partitions with several replicas that all have to be in sync (`min_isr` of them)."""
    tight = (
        PartitionReplicas(number, state.replicas)
        for number, state in enumerate(topic.partitions)
        if 1 < len(state.replicas) <= min_isr and not state.is_moving
    )
    return tuple(islice(tight, most))


def _missing(node: Services, tp: TopicPartition) -> tuple[ReplicaFacts, ...]:
    """Return how far the replicas are that are not in sync: only the leader knows."""
    partition = node.partition(tp)
    leader = None if partition is None else partition.leader
    if partition is None or leader is None:
        return ()
    told: list[ReplicaFacts] = []
    for replica in leader.replicas:
        if replica not in leader.isr:
            known = leader.follower(replica)
            has_fetched = known is not None and known.broker_epoch != NOT_HEARD
            lacks = max(partition.log_end_offset - known.end_offset, 0) if known is not None and has_fetched else -1
            told.append(ReplicaFacts(replica, lacks))
    return tuple(told)


def throttled_topics(node: Services) -> list[str]:
    """Return the topics with replicas whose copying is throttled (KIP-73), by name."""
    return sorted(
        topic.name
        for topic in node.metadata.image.topics.values()
        if any(topic.configs.get(name) for name in THROTTLED_REPLICAS)
    )


async def moving_partitions(node: Services) -> int:
    """Return how many partitions have replicas that are being moved."""
    moving = 0
    turns = Turns()
    for _, _, state in partitions_of(node.metadata.image):
        await turns.give_way()
        moving += state.is_moving
    return moving


def internal_topic_facts(node: Services) -> tuple[InternalTopicFacts, ...]:
    image = node.metadata.image
    return tuple(_internal(node, topic) for topic in image.topics.values() if topic.is_internal)


def _internal(node: Services, topic: TopicImage) -> InternalTopicFacts:
    wanted = internal_topic(node.config, topic.name, len(node.metadata.image.brokers)).replication_factor
    if topic.is_diskless:
        wanted = 1
    replicas = min(len(state.replicas) for state in topic.partitions)
    return InternalTopicFacts(topic.name, replicas, wanted, min_isr_of(topic, node.config.min_insync_replicas))
