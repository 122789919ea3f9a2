"""What a leader tells a replica that begins a log: which producers had written before the offset it begins at (P2)."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.log.producer_snapshot import AT_ONCE_MAX, encode_packed
from semel.broker.log.producer_state import PackedEntry
from semel.broker.log.producers_before import producers_before
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.kafka.producers_before import ProducersBefore


def known_producers(node: Services, asked: ProducersBefore) -> Sequence[PackedEntry]:
    """Return all producers that a partition knows now.

    Raises `SemelError`: as `partition_of`, NOT_LEADER_OR_FOLLOWER where this node follows, UNKNOWN_TOPIC_ID where
    another topic has the name by now.
    """
    partition = partition_of(node, asked.tp, asked.leader_epoch)
    if partition.topic_id != asked.topic_id:
        raise error_for(ErrorCode.UNKNOWN_TOPIC_ID, f"{asked.tp} is of another topic by now")
    if partition.leader is None:
        raise error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{asked.tp} is not led by node {node.config.node_id}")
    return partition.log.producer_state.packed()


def page_of(entries: Sequence[PackedEntry], asked: ProducersBefore) -> bytes:
    """Return the page that was asked for, as a producer snapshot. May be called in any thread."""
    return encode_packed(producers_before(entries, asked.offset, asked.after_id))


def takes_long(entries: Sequence[PackedEntry]) -> bool:
    """Say whether a page of so many producers is not to be made where others wait for it (S3)."""
    return len(entries) > AT_ONCE_MAX
