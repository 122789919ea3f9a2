"""WriteTxnMarkers: a coordinator's decision, written to the partitions of the transaction (T3, P9, P10)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from semel.broker.handlers.partitions import partition_of
from semel.broker.services import Services
from semel.protocol.api.transactions import TxnMarker
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition


class LocalMarkerWriter:
    """Writes markers to partitions of this node (`MarkerWriter` of the transaction coordinator)."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def write_markers(self, marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
        """Write a marker to each of its partitions and wait until all are committed.

        In `__consumer_offsets` it goes through the group coordinator, so that the offsets pending in the transaction
        are published before this returns (O1, KAFKA-17507).
        """
        errors: dict[TopicPartition, ErrorCode] = {}
        waits: list[tuple[TopicPartition, asyncio.Future[None] | asyncio.Task[None]]] = []
        for tp in marker.partitions:
            # All are appended before the first wait, so one sync of the journal serves them all.
            try:
                if tp.topic == OFFSETS_TOPIC:
                    publish = self._node.groups.write_marker(
                        tp.partition, marker.producer, marker.coordinator_epoch, marker.committed, marker.version
                    )
                    waits.append((tp, asyncio.ensure_future(publish)))
                elif (committed := self._append(tp, marker)) is not None:
                    waits.append((tp, committed))
                errors[tp] = ErrorCode.NONE
            except SemelError as error:
                errors[tp] = error.code
        for tp, outcome in zip(
            [tp for tp, _ in waits],
            await asyncio.gather(*(wait for _, wait in waits), return_exceptions=True),
            strict=True,
        ):
            if isinstance(outcome, SemelError):
                errors[tp] = outcome.code
            elif isinstance(outcome, BaseException):
                raise outcome
        return errors

    def partition_exists(self, tp: TopicPartition) -> bool:
        return self._node.metadata.image.partition(tp) is not None

    def _append(self, tp: TopicPartition, marker: TxnMarker) -> asyncio.Future[None] | None:
        """Append to an ordinary partition; return what to wait for, None where the marker is there and committed."""
        partition = partition_of(self._node, tp)
        offset = partition.append_marker(marker.producer, marker.coordinator_epoch, marker.committed, marker.version)
        if offset is None:
            # The first one may not be committed yet, and only a committed marker counts.
            offset = partition.log_end_offset - 1
            if offset < partition.high_watermark:
                return None
        return asyncio.ensure_future(partition.wait_committed(offset))
