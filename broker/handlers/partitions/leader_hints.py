"""Where to go instead: an answer that sends a client away names the leader (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import NO_LEADER, NO_LEADER_EPOCH, TopicPartition
from semel.protocol.kafka.api import NodeEndpoint

if TYPE_CHECKING:
    from semel.broker.services import Services

HINTED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors after which a client looks for the leader."""


def current_leader(node: Services, tp: TopicPartition) -> tuple[int, int]:
    """Return the leader and its epoch, -1 for both where there is none."""
    topic = node.metadata.topic(tp.topic)
    if topic is None or not 0 <= tp.partition < len(topic.partitions):
        return NO_LEADER, NO_LEADER_EPOCH
    state = topic.partitions[tp.partition]
    if state.leader == NO_LEADER:
        # Apache Kafka names the epoch. librdkafka takes that for a leader, and loses count of the partitions.
        return NO_LEADER, NO_LEADER_EPOCH
    here = node.partition(tp)
    # A partition that is here knows its epoch no later than the metadata.
    epoch = state.leader_epoch if here is None else max(state.leader_epoch, here.leader_epoch)
    return state.leader, epoch


def leader_endpoints(node: Services, leaders: Iterable[int], listener: str) -> list[NodeEndpoint]:
    """Return where the leaders that an answer names listen to clients that came by the listener of this name.

    One that has no such listener is left out, as in Kafka.
    """
    named = {leader for leader in leaders if leader != NO_LEADER}
    brokers = node.metadata.image.brokers if named else {}
    return [
        NodeEndpoint(broker.node_id, endpoint.host, endpoint.port, broker.rack or None)
        for leader in named
        if (broker := brokers.get(leader)) is not None and (endpoint := broker.kafka_at(listener)) is not None
    ]


def not_here(node: Services, tp: TopicPartition) -> SemelError:
    """Return why a partition is not on this node: led by another one, offline, or nowhere."""
    leader, _ = current_leader(node, tp)
    if leader == node.config.node_id:
        offline = node.logs.offline.get(tp)
        if offline is None:
            return error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} is about to be led by this node: try again shortly")
        return error_for(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the log of {tp} is offline: {offline.kind.value}; `semel doctor` says what to do",
        )
    if leader != NO_LEADER:
        return error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is led by node {leader}: go there")
    topic = node.metadata.topic(tp.topic)
    if topic is None:
        message = f"there is no topic {tp.topic[:300]!r}: create it, or check its name"
    elif not 0 <= tp.partition < len(topic.partitions):
        message = f"topic {tp.topic} has the partitions 0 to {len(topic.partitions) - 1}, not {tp.partition}"
    else:
        return error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} has no leader now: try again shortly")
    return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
