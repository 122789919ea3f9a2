"""Takes the markers of a decision to the nodes that lead its partitions (T3).

An attempt goes where the metadata says now. Where it did not succeed, the metadata is read again before this returns,
and the coordinator's `MarkerSender` makes the next attempt, for as long as it takes (T4). Only that the topic was
deleted ends it (R8).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import replace
from typing import Final

from semel.broker.handlers.write_txn_markers import MARKERS_WAIT_S, LocalMarkerWriter
from semel.broker.peers.peers import Peers
from semel.broker.peers.requests import WriteMarkers
from semel.broker.routing.fresh_image import FreshImage
from semel.broker.services import Services
from semel.protocol.api.transactions import TxnMarker
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER, TopicId, TopicPartition
from semel.runtime.turns import in_turns

_log = logging.getLogger("semel.markers")

PARTITIONS_MAX: Final = 10_000
"""Of one marker in one request."""

_SETTLED: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
)
"""Answers that another leader would give, too."""

_Errors = Mapping[TopicPartition, ErrorCode]


class MarkerRouter:
    """`MarkerWriter` of the transaction coordinator, for partitions wherever they are led."""

    def __init__(self, node: Services, peers: Peers, fresh: FreshImage) -> None:
        self._node = node
        self._peers = peers
        self._fresh = fresh
        self._alone = LocalMarkerWriter(node)
        # Partitions of other nodes wait for those of this one: see `MARKERS_WAIT_S`.
        self._here = LocalMarkerWriter(node, MARKERS_WAIT_S)

    async def write_markers(self, marker: TxnMarker) -> _Errors:
        """Write a marker to each of its partitions. See `LocalMarkerWriter.write_markers`."""
        if len(self._node.metadata.image.brokers) < 2:
            return await self._alone.write_markers(marker)
        errors, groups = await self._by_leader(marker)
        here = groups.pop(self._node.config.node_id, [])
        if not groups and not errors:
            return await self._alone.write_markers(marker)
        calls: list[Awaitable[_Errors]] = [
            self._send(node_id, replace(marker, partitions=tuple(partitions[first : first + PARTITIONS_MAX])))
            for node_id, partitions in groups.items()
            for first in range(0, len(partitions), PARTITIONS_MAX)
        ]
        if here:
            calls.append(self._here.write_markers(replace(marker, partitions=tuple(here))))
        for found in await asyncio.gather(*calls):
            errors.update(found)
        if any(error not in _SETTLED for error in errors.values()):
            await self._fresh.read()
        return errors

    async def deleted(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, TopicId]
    ) -> frozenset[TopicPartition]:
        """Return those whose topics were deleted (R8). See `LocalMarkerWriter.deleted`."""
        return await self._alone.deleted(partitions, topic_ids)

    async def _by_leader(
        self, marker: TxnMarker
    ) -> tuple[dict[TopicPartition, ErrorCode], dict[int, list[TopicPartition]]]:
        """Return the partitions of each node, and what there is to say of those that none leads."""
        image = self._node.metadata.image
        errors: dict[TopicPartition, ErrorCode] = {}
        groups: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        async for tp in in_turns(marker.partitions):
            topic_id = marker.topic_ids.get(tp.topic)
            topic = image.topic(tp.topic) if topic_id is None else image.topic_by_id(topic_id)
            if topic is None or tp.partition >= len(topic.partitions):
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif (leader := topic.partitions[tp.partition].leader) == NO_LEADER:
                errors[tp] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                groups[leader].append(tp)
        return errors, groups

    async def _send(self, node_id: int, marker: TxnMarker) -> _Errors:
        """Ask another node to write its part."""
        try:
            [errors] = await self._peers.ask(node_id, WriteMarkers((marker,)))
        except SemelError as error:
            _log.info("markers did not get to node %d, trying again: %s", node_id, error.message)
            # Whatever the code of this failure is: it says nothing about a partition.
            return dict.fromkeys(marker.partitions, ErrorCode.NETWORK_EXCEPTION)
        return {tp: errors.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in marker.partitions}
