"""What a leader tells a replica that begins a log: which producers had written before the offset it begins at (P2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.log.producer_snapshot import AT_ONCE_MAX, encode_packed
from semel.broker.log.producer_state import PackedEntry
from semel.broker.log.producers_before import producers_before
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.kafka.producers_before import ProducersBefore

COMMITTED_WITHIN_S: Final = 3.0
"""How long to wait for that. A replica asks again."""


async def known_producers(node: Services, asked: ProducersBefore) -> Sequence[PackedEntry]:
    """Return all producers that a partition knows, once all that they are known by is committed.

    A replica is told of batches and markers behind the offset by what they have taken away. It must not lead without
    them: a marker would count as written that its log does not have (P9). Committed, they are in the log of whoever is
    elected.

    Raises `SemelError`: as `partition_of`, NOT_LEADER_OR_FOLLOWER where this node follows, UNKNOWN_TOPIC_ID where
    another topic has the name by now, REQUEST_TIMED_OUT where it is not committed yet.
    """
    partition = partition_of(node, asked.tp, asked.leader_epoch)
    if partition.topic_id != asked.topic_id:
        raise error_for(ErrorCode.UNKNOWN_TOPIC_ID, f"{asked.tp} is of another topic by now")
    if partition.leader is None:
        raise error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{asked.tp} is not led by node {node.config.node_id}")
    entries, end = partition.log.producer_state.packed(), partition.log_end_offset
    if end > partition.high_watermark:
        try:
            async with asyncio.timeout(COMMITTED_WITHIN_S):
                await partition.wait_committed(end - 1)
        except TimeoutError:
            raise error_for(
                ErrorCode.REQUEST_TIMED_OUT, f"{asked.tp} is committed up to {partition.high_watermark} of {end}"
            ) from None
    return entries


def page_of(entries: Sequence[PackedEntry], asked: ProducersBefore) -> tuple[bytes, bool]:
    """Return the page that was asked for, as a producer snapshot, and whether more follow. In any thread."""
    page, has_more = producers_before(entries, asked.offset, asked.after_id)
    return encode_packed(page), has_more


def takes_long(entries: Sequence[PackedEntry]) -> bool:
    """Say whether a page of so many producers is not to be made where others wait for it (S3)."""
    return len(entries) > AT_ONCE_MAX
