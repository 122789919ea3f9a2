"""What a leader tells a replica that begins a log: which producers had written before the offset it begins at (P2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.producer_snapshot import AT_ONCE_MAX, encode_packed
from semel.broker.log.producer_state import PackedEntry
from semel.broker.log.producers_before import producers_before
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.kafka.producers_before import ProducersBefore
from semel.runtime.turns import Turns

_BATCHES_A_TURN: Final = 200


async def known_producers(node: Services, asked: ProducersBefore) -> Sequence[PackedEntry]:
    """Return the producers that a partition knows, but for those whose last marker is not committed.

    A replica that was told of such a marker, and is elected without it, would take it for written (P9). So it hears
    nothing of its producer, and learns of it as it replicates the marker. To wait until that is committed would not do:
    it may take just this replica to commit it (R5).

    Raises `SemelError`: as `partition_of`, NOT_LEADER_OR_FOLLOWER where this node follows, UNKNOWN_TOPIC_ID where
    another topic has the name by now, KAFKA_STORAGE_ERROR where the log can't be read.
    """
    partition = partition_of(node, asked.tp, asked.leader_epoch)
    if partition.topic_id != asked.topic_id:
        raise error_for(ErrorCode.UNKNOWN_TOPIC_ID, f"{asked.tp} is of another topic by now")
    if partition.leader is None:
        raise error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{asked.tp} is not led by node {node.config.node_id}")
    entries = partition.log.producer_state.packed()
    try:
        ended = await _ended_from(partition.log, partition.high_watermark, partition.log_end_offset)
    except OSError as error:
        raise error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"{asked.tp} can't be read: {error}") from error
    return [entry for entry in entries if entry[1] not in ended] if ended else entries


async def _ended_from(log: PartitionLog, offset: int, end: int) -> set[int]:
    """Return the producers with markers in [offset, end). In turns (S3). Raises `SemelError` and `OSError`."""
    ended: set[int] = set()
    turns = Turns()
    while offset < end:
        headers = list(islice(log.headers(offset, end), _BATCHES_A_TURN))
        if not headers:
            break
        ended.update(header.producer_id for header in headers if header.is_control)
        offset = headers[-1].next_offset
        await turns.give_way()
    return ended


def page_of(entries: Sequence[PackedEntry], asked: ProducersBefore) -> tuple[bytes, bool]:
    """Return the page that was asked for, as a producer snapshot, and whether more follow. In any thread."""
    page, has_more = producers_before(entries, asked.offset, asked.after_id)
    return encode_packed(page), has_more


def takes_long(entries: Sequence[PackedEntry]) -> bool:
    """Say whether a page of so many producers is not to be made where others wait for it (S3)."""
    return len(entries) > AT_ONCE_MAX
