"""Markers: a coordinator's decision, written to the partitions of the transaction (T3, P9, P10).

Only this node's own coordinators write them, by plain calls; what a client asks for goes to a coordinator (S1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from semel.broker.handlers.partitions import partition_of
from semel.broker.log.producer_state import NO_COORDINATOR_EPOCH
from semel.broker.services import Services
from semel.protocol.api.transactions import TxnMarker
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.runtime.turns import Turns

logger = logging.getLogger("semel.markers")

_FENCED: Final = frozenset({ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class LocalMarkerWriter:
    """Writes markers to partitions of this node (`MarkerWriter` of the transaction coordinator)."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def write_markers(self, marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
        """Write a marker to each of its partitions and wait until all are committed.

        In `__consumer_offsets` it goes through the group coordinator, so that the offsets pending in the transaction
        are published before this returns (O1, KAFKA-17507). Where a partition refuses it for the sake of a coordinator
        that never was, it is written all the same: a client once forged a marker there.
        """
        errors = await self._write(marker, {})
        fenced = [tp for tp, code in errors.items() if code in _FENCED]
        forged = {tp: epoch for tp in fenced if (epoch := self._forged_epoch(tp, marker)) is not None}
        if not forged:
            return errors
        again = await self._write(replace(marker, partitions=tuple(forged)), forged)
        for tp, code in again.items():
            if code is ErrorCode.NONE:
                logger.warning(
                    "overruled a forged marker: partition=%s producer_id=%d its coordinator epoch=%d, which no "
                    "coordinator ever had (the latest is %d): a client wrote it. The real %s marker is in the log now. "
                    "If a transaction was open there, the forged one had ended it in this partition alone",
                    tp,
                    marker.producer.producer_id,
                    forged[tp],
                    marker.coordinator_epoch,
                    "commit" if marker.committed else "abort",
                )
        return {**errors, **again}

    def partition_exists(self, tp: TopicPartition) -> bool:
        return self._node.metadata.image.partition(tp) is not None

    async def _write(self, marker: TxnMarker, forged: Mapping[TopicPartition, int]) -> dict[TopicPartition, ErrorCode]:
        errors: dict[TopicPartition, ErrorCode] = {}
        waits: dict[TopicPartition, asyncio.Future[None]] = {}
        # A transaction of thousands of partitions takes turns; it ends, whoever asked for the end may be gone (S3).
        turns = Turns(ends_with_caller=False)
        try:
            for tp in marker.partitions:
                # Those of one turn are appended before the first wait, so one sync of the journal serves them all.
                errors[tp] = self._begin(tp, marker, forged.get(tp, NO_COORDINATOR_EPOCH), waits)
                await turns.give_way()
        except BaseException:
            for wait in waits.values():
                wait.cancel()
            raise
        for tp, outcome in zip(waits, await asyncio.gather(*waits.values(), return_exceptions=True), strict=True):
            if isinstance(outcome, SemelError):
                errors[tp] = outcome.code
            elif isinstance(outcome, BaseException):
                raise outcome
        return errors

    def _begin(
        self,
        tp: TopicPartition,
        marker: TxnMarker,
        forged_epoch: int,
        waits: dict[TopicPartition, asyncio.Future[None]],
    ) -> ErrorCode:
        """Write the marker to one partition, and put into `waits` what is to be waited for."""
        try:
            if tp.topic == OFFSETS_TOPIC:
                publish = self._node.groups.write_marker(
                    tp.partition,
                    marker.producer,
                    marker.coordinator_epoch,
                    marker.committed,
                    marker.version,
                    forged_epoch=forged_epoch,
                )
                waits[tp] = asyncio.ensure_future(publish)
            elif (committed := self._append(tp, marker, forged_epoch)) is not None:
                waits[tp] = committed
        except SemelError as error:
            return error.code
        return ErrorCode.NONE

    def _append(self, tp: TopicPartition, marker: TxnMarker, forged_epoch: int) -> asyncio.Future[None] | None:
        """Append to an ordinary partition; return what to wait for, None where the marker is there and committed."""
        partition = partition_of(self._node, tp)
        offset = partition.append_marker(
            marker.producer, marker.coordinator_epoch, marker.committed, marker.version, forged_epoch=forged_epoch
        )
        if offset is None:
            # The first one may not be committed yet, and only a committed marker counts.
            offset = partition.log_end_offset - 1
            if offset < partition.high_watermark:
                return None
        return asyncio.ensure_future(partition.wait_committed(offset))

    def _forged_epoch(self, tp: TopicPartition, marker: TxnMarker) -> int | None:
        """Return the coordinator epoch recorded on `tp` for the marker's producer, where it can only be forged.

        The marker must come from the latest coordinator of its transactional id, by the word of the metadata: then a
        higher epoch was given to nobody. A coordinator that was replaced stays fenced (P9).
        """
        metadata, partition = self._node.metadata, self._node.partition(tp)
        if metadata.controller_epoch < 0 or partition is None:
            return None  # somebody else may be changing the metadata
        latest: int | None = latest_coordinator_epoch(self._node)
        if marker.coordinator >= 0:
            latest = metadata.leader_epoch(TopicPartition(TRANSACTIONS_TOPIC, marker.coordinator))
        entry = partition.log.producer_state.entry(marker.producer.producer_id)
        if entry is None or latest is None or latest != marker.coordinator_epoch or entry.coordinator_epoch <= latest:
            return None
        return entry.coordinator_epoch


def latest_coordinator_epoch(node: Services) -> int:
    """Return the highest epoch that a coordinator of transactions has; 0 where there is none yet."""
    topic = node.metadata.topic(TRANSACTIONS_TOPIC)
    return 0 if topic is None else max(state.leader_epoch for state in topic.partitions)
