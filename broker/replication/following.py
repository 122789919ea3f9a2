"""One step of following: what to ask the leader of a partition for, and what to do with its answer (R1, R3)."""

from __future__ import annotations

import logging
from enum import Enum

from semel.broker.logs.divergence import cut_to_follow, is_compacted_away
from semel.broker.logs.partition import Partition
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse

_log = logging.getLogger("semel.replication")


class Followed(Enum):
    """What became of an answer."""

    TAKEN_IN = "what it brought is in the log"
    CUT = "the log was cut, and is asked for from there"
    LATE = "the log, or its part, is another one by now"
    REFUSED = "the leader has refused"
    BEHIND = "what this log needs next is deleted at the leader"


def next_fetch(partition: Partition, max_bytes: int, noted_start: int) -> FetchPartition:
    """Return what to ask the leader for, once everything in the log is durable: the offset says so to the leader.

    noted_start: where the disk says that the log starts. The leader hears of no other start: a deletion counts once it
        outlives a power cut here (D1)
    """
    log = partition.log
    return FetchPartition(
        partition.tp.topic,
        partition.topic_id,
        partition.tp.partition,
        log.log_end_offset,
        max_bytes,
        partition.leader_epoch,
        partition.last_epoch,
        min(log.log_start_offset, noted_start),
    )


def is_still_true(partition: Partition, item: FetchPartition) -> bool:
    """Say whether what was to be asked still tells what this replica has: its part may have changed, or its log."""
    return (
        partition.leader is None
        and partition.leader_epoch == item.current_leader_epoch
        and partition.offline_error is None
        and partition.durable_end == partition.log_end_offset == item.fetch_offset
    )


def take_in(partition: Partition, asked: FetchPartition, answer: FetchPartitionResponse) -> Followed:
    """Do what the leader's answer says. Raises `SemelError` where the log can't take it."""
    log = partition.log
    if (
        partition.leader is not None
        or partition.offline_error is not None
        or partition.leader_epoch != asked.current_leader_epoch
        or log.log_end_offset != asked.fetch_offset
        or partition.last_epoch != asked.last_fetched_epoch
    ):
        return Followed.LATE
    if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE and answer.log_start_offset > log.log_end_offset:
        return Followed.BEHIND
    if answer.error is not ErrorCode.NONE:
        return Followed.REFUSED
    if answer.diverging_epoch >= 0 or answer.diverging_end_offset >= 0:
        _cut(partition, answer.diverging_epoch, answer.diverging_end_offset)
        return Followed.CUT
    records = answer.records
    if records is not None and len(records):
        assert isinstance(records, (bytes, bytearray, memoryview))
        partition.replicate(records)
    partition.leader_committed(answer.high_watermark)
    start = min(answer.log_start_offset, partition.high_watermark)
    if start > log.log_start_offset:
        partition.leader_deleted(start)
    return Followed.TAKEN_IN


def _cut(partition: Partition, epoch: int, end: int) -> None:
    log = partition.log
    own = log.end_offset_for_epoch(epoch)
    cut = cut_to_follow(end, log.log_end_offset if own is None else own.end_offset, log.log_end_offset)
    before = log.log_end_offset
    committed = partition.high_watermark
    if keeps := is_compacted_away(cut, committed, end, is_compacted=partition.config.is_compacted):
        cut = committed
    is_cut = partition.truncate_to(cut)
    if keeps:
        partition.continue_in_epoch(epoch)
    if is_cut:
        _log.info(
            "%s: cut from %d to %d to follow its leader in epoch %d, whose epoch %d ended at %d",
            partition.tp, before, log.log_end_offset, partition.leader_epoch, epoch, end,
        )  # fmt: skip
