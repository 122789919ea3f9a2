"""Markers: a coordinator's decision, written to the partitions of the transaction that this node leads (T3, P9, P10).

Coordinators alone write them: this node's own by plain calls, those of other nodes by the listener of the peers. What a
client asks for goes to a coordinator (S1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.log.producer_state import NO_COORDINATOR_EPOCH
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.api.transactions import TxnMarker
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicId, TopicPartition, format_topic_id
from semel.runtime.turns import Turns

_log = logging.getLogger("semel.markers")

MARKERS_WAIT_S: Final = 2.0
"""So long the coordinator of a transaction on several nodes waits for markers to be committed before it looks again
where those that are missing belong. One partition that can't commit now must not hold up the others."""

_FENCED: Final = frozenset({ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class LocalMarkerWriter:
    """Writes markers to partitions of this node (`MarkerWriter` of the transaction coordinator)."""

    def __init__(self, node: Services, wait_s: float | None = None) -> None:
        """wait_s: how long a marker may take to be committed; then its partition gets REQUEST_TIMED_OUT."""
        self._node = node
        self._wait_s = wait_s

    async def write_markers(self, marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
        """Write a marker to each of its partitions and wait until all are committed.

        In `__consumer_offsets` it goes through the group coordinator, so that the offsets pending in the transaction
        are published before this returns (O1, KAFKA-17507). Where a partition refuses it for the sake of a coordinator
        that never was, it is written all the same: a client once forged a marker there.
        """
        errors = await self._write(marker, {})
        fenced = [tp for tp, code in errors.items() if code in _FENCED]
        forged = await self._forged_epochs(fenced, marker) if fenced else {}
        if not forged:
            return errors
        again = await self._write(replace(marker, partitions=tuple(forged)), forged)
        for tp, code in again.items():
            if code is ErrorCode.NONE:
                _log.warning(
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

    async def deleted(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, TopicId]
    ) -> frozenset[TopicPartition]:
        """Return those of a transaction's partitions whose topics were deleted (R8).

        Their topics were known when they were added to the transaction, so one that is not in metadata read since then
        is deleted. What this node holds may be older. Raises `SemelError` where the metadata can't be read.
        """
        metadata = self._node.metadata
        unknown = [tp for tp in partitions if not _is_known(metadata.image, tp, topic_ids.get(tp.topic))]
        if not unknown:
            return frozenset()
        image = await metadata.refresh()
        return frozenset(tp for tp in unknown if not _is_known(image, tp, topic_ids.get(tp.topic)))

    async def _write(self, marker: TxnMarker, forged: Mapping[TopicPartition, int]) -> dict[TopicPartition, ErrorCode]:
        errors: dict[TopicPartition, ErrorCode] = {}
        waits: dict[TopicPartition, asyncio.Future[None]] = {}
        # A transaction of thousands of partitions takes turns; it ends even when the caller is gone (S3).
        turns = Turns(ends_with_caller=False)
        try:
            for tp in marker.partitions:
                # Those of one turn are appended before the first wait, so one sync of the journal serves them all.
                errors[tp] = self._begin(tp, marker, forged.get(tp, NO_COORDINATOR_EPOCH), waits)
                await turns.give_way()
            if waits and self._wait_s is not None:
                await asyncio.wait(waits.values(), timeout=self._wait_s)
                for tp in [tp for tp, wait in waits.items() if not wait.done()]:
                    waits.pop(tp).cancel()
                    errors[tp] = ErrorCode.REQUEST_TIMED_OUT
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
            self._check_topic(tp, marker)
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

    def _check_topic(self, tp: TopicPartition, marker: TxnMarker) -> None:
        """Refuse the marker where another topic has the name by now (R8). Raises UNKNOWN_TOPIC_ID."""
        partition, topic_id = self._node.partition(tp), marker.topic_ids.get(tp.topic)
        if partition is not None and topic_id is not None and partition.topic_id != topic_id:
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"{tp} is of topic {format_topic_id(partition.topic_id)}, and the transaction is on "
                f"{format_topic_id(topic_id)}",
            )

    def _append(self, tp: TopicPartition, marker: TxnMarker, forged_epoch: int) -> asyncio.Future[None] | None:
        """Append to an ordinary partition; return what to wait for, None where the marker is there and committed."""
        partition = partition_of(self._node, tp)
        offset = partition.append_marker(
            marker.producer, marker.coordinator_epoch, marker.committed, marker.version, forged_epoch=forged_epoch
        )
        if offset is None:
            # The first one may not be committed yet, and only a committed marker counts (D5).
            offset = partition.log_end_offset - 1
            if offset < partition.high_watermark:
                return None
        return asyncio.ensure_future(partition.wait_committed(offset))

    async def _forged_epochs(self, fenced: Collection[TopicPartition], marker: TxnMarker) -> dict[TopicPartition, int]:
        """Return the coordinator epochs recorded for the marker's producer, of the partitions where they are forged.

        The marker must come from the latest coordinator of its transactional id, by metadata that is read after the
        epoch was recorded: then a higher one was given to nobody. A coordinator that was replaced stays fenced (P9).
        """
        recorded: dict[TopicPartition, int] = {}
        for tp in fenced:
            partition = self._node.partition(tp)
            entry = None if partition is None else partition.log.producer_state.entry(marker.producer.producer_id)
            if entry is not None:
                recorded[tp] = entry.coordinator_epoch
        try:
            image = await self._node.metadata.refresh()
        except SemelError as error:
            _log.warning("whether a marker was forged can't be told now: %s", error.message)
            return {}
        latest = _coordinator_epoch(image, marker.coordinator)
        if latest is None or latest != marker.coordinator_epoch:
            return {}
        return {tp: epoch for tp, epoch in recorded.items() if epoch > latest}


def _is_known(image: MetadataImage, tp: TopicPartition, topic_id: TopicId | None) -> bool:
    """Say whether a partition is there: of the topic with this id, or of any by the name where no id is known."""
    topic = image.topic(tp.topic) if topic_id is None else image.topic_by_id(topic_id)
    return topic is not None and tp.partition < len(topic.partitions)


def latest_coordinator_epoch(node: Services) -> int:
    """Return the highest epoch that a coordinator of transactions has; 0 where there is none yet."""
    return _coordinator_epoch(node.metadata.image, -1) or 0


def _coordinator_epoch(image: MetadataImage, number: int) -> int | None:
    """Return the epoch of the coordinator on a partition, the highest of all for -1; None for one that is not there."""
    if number >= 0:
        state = image.partition(TopicPartition(TRANSACTIONS_TOPIC, number))
        return None if state is None else state.leader_epoch
    topic = image.topic(TRANSACTIONS_TOPIC)
    return 0 if topic is None else max(state.leader_epoch for state in topic.partitions)
