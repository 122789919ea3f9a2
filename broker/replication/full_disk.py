"""Lets others lead what this node leads while its disk refuses producers (`controller/full_disks.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from semel.broker.controller.full_disks import led_elsewhere
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import BrokerFull, Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId
from semel.protocol.wording import counted
from semel.runtime.clock import Clock

_log = logging.getLogger("semel.replication")

AGAIN_S: Final = 2.0
"""How long to wait before the metadata is changed again where it could not be."""
TOGETHER_MAX: Final = 1_000
"""Partitions that others lead by one change of the metadata."""


class FullDisk:
    """What the metadata says of one node's disk, and what it does not lead meanwhile."""

    def __init__(self, node_id: int, metadata: Metadata, clock: Clock, is_refusing: Callable[[], bool]) -> None:
        """is_refusing: says whether the node refuses producers for want of room"""
        self._node_id = node_id
        self._metadata = metadata
        self._clock = clock
        self._is_refusing = is_refusing
        self._not_before = 0.0

    async def look(self, led: Sequence[Partition]) -> None:
        """Say in the metadata what has changed, and give up what others can lead. Never fails.

        led: what this node leads of what other nodes have, too
        """
        is_full = self._is_refusing()
        here = self._metadata.image.brokers.get(self._node_id)
        if here is None or not (is_full or here.is_full) or self._clock.monotonic() < self._not_before:
            return
        # What can't be given up must not keep the rest from it: all are looked at, and the first are changed.
        keys = [(one.topic_id, one.tp.partition) for one in led] if is_full else []
        if not self._changes(self._metadata.image, keys, is_full=is_full):
            return
        done: list[Change] = []

        def decide(image: MetadataImage) -> list[Change]:
            done[:] = self._changes(image, keys, is_full=is_full)
            return done

        try:
            await self._metadata.change(decide)
        except SemelError as error:
            self._not_before = self._clock.monotonic() + AGAIN_S
            _log.warning("others could not be told of the disk here, and this is tried again: %s", error.message)
            return
        if any(isinstance(change, BrokerFull) for change in done) and not is_full:
            _log.info("the disk has room again: this node may lead again")
        moved = sum(isinstance(change, PartitionChanged) for change in done)
        if moved:
            _log.warning(
                "%s led by other nodes now, whose disks have room", counted(moved, "partition is", "partitions are")
            )

    def _changes(self, image: MetadataImage, led: Collection[tuple[TopicId, int]], *, is_full: bool) -> list[Change]:
        changes = led_elsewhere(image, self._node_id, self._metadata.broker_epoch, led, is_full=is_full)
        return changes[:TOGETHER_MAX]
