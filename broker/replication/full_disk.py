"""Lets others lead what this node leads while its disk refuses producers (`controller/full_disks.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from semel.broker.controller.full_disks import able_to_lead, disk_told, led_elsewhere, successor
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import BrokerFull, Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId
from semel.protocol.wording import counted
from semel.runtime.clock import Clock
from semel.runtime.turns import in_turns

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
        self._settled: MetadataImage | None = None
        """By this image nothing more can be given up."""

    async def look(self, led: Collection[Partition]) -> None:
        """Say in the metadata what has changed, and give up the next ones that others can lead. Never fails.

        led: what this node leads of what other nodes have, too
        """
        is_full, image = self._is_refusing(), self._metadata.image
        here = image.brokers.get(self._node_id)
        if here is None or not (is_full or here.is_full) or self._clock.monotonic() < self._not_before:
            return
        wanted: list[tuple[TopicId, int]] = []
        if is_full and image is not self._settled:
            wanted = await self._wanted(image, led)
            if not wanted:
                self._settled = image
        done: list[Change] = []

        def decide(image: MetadataImage) -> list[Change]:
            epoch = self._metadata.broker_epoch
            done[:] = disk_told(image, self._node_id, epoch, is_full=is_full)
            done.extend(led_elsewhere(image, self._node_id, epoch, wanted))
            return done

        if not wanted and not decide(image):
            return
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

    async def _wanted(self, image: MetadataImage, led: Collection[Partition]) -> list[tuple[TopicId, int]]:
        """Return the first partitions that others can lead by this image, looking at all in turns (S3)."""
        able = able_to_lead(image, self._node_id)
        found: list[tuple[TopicId, int]] = []
        if able:
            async for one in in_turns(led):
                state = image.partition(one.tp)
                if state is not None and successor(state, self._node_id, able) is not None:
                    found.append((one.topic_id, one.tp.partition))
                    if len(found) == TOGETHER_MAX:
                        break
        return found
