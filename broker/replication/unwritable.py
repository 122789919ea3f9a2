"""Takes this node out of what it can't write: the disk is full or fails, or a partition's directory is gone.

Nobody else knows of that. A leader would wait for such a follower for replica.lag.time.max.ms, and producers would try
such a leader for ever, though others have all of its records. The replica joins the in-sync set again as any other
does, by its leader's proposal, once it has caught up (R5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final

from semel.broker.controller.isr import left_by
from semel.broker.metadata.changes import Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId
from semel.protocol.wording import counted
from semel.runtime.clock import Clock

_log = logging.getLogger("semel.replication")

AGAIN_S: Final = 2.0
"""How long to wait before it is looked again whether to leave a partition: where it stayed because too few would have
been left, and where its leader took it in again before it had more."""
TOGETHER_MAX: Final = 1_000
"""Partitions that are left by one change: a full disk is that of all partitions of a node."""
_TOLD_MAX: Final = 20


class UnwritableReplicas:
    """The in-sync sets that one node leaves, and what it lets others lead."""

    def __init__(self, node_id: int, metadata: Metadata, clock: Clock, default_min_isr: Callable[[], int]) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._clock = clock
        self._default_min_isr = default_min_isr
        self._not_before: dict[tuple[TopicId, int], float] = {}

    async def leave(self, reasons: Mapping[tuple[TopicId, int], str]) -> None:
        """Leave those of these partitions that others can go on with. Never fails.

        reasons: why each can't be written
        """
        now = self._clock.monotonic()
        self._not_before = {key: until for key, until in self._not_before.items() if until > now}
        wanted = list(islice((key for key in reasons if key not in self._not_before), TOGETHER_MAX))
        self._not_before |= dict.fromkeys(wanted, now + AGAIN_S)
        if not self._changes(self._metadata.image, wanted):
            return
        left: list[Change] = []

        def decide(image: MetadataImage) -> list[Change]:
            left[:] = self._changes(image, wanted)
            return left

        try:
            await self._metadata.change(decide)
        except SemelError as error:
            _log.warning("in-sync replicas could not be left, and this is tried again: %s", error.message)
            return
        told = [change for change in left if isinstance(change, PartitionChanged)]
        for change in told[:_TOLD_MAX]:
            _log.error(
                "%s-%d: this replica leaves the in-sync replicas until it can be written, and others continue without "
                "it: %s", change.name, change.partition, reasons[change.topic_id, change.partition],
            )  # fmt: skip
        if len(told) > _TOLD_MAX:
            _log.error("so do those of %s", counted(len(told) - _TOLD_MAX, "other partition"))

    def _changes(self, image: MetadataImage, wanted: Collection[tuple[TopicId, int]]) -> list[Change]:
        return left_by(
            image, self._node_id, self._metadata.broker_epoch, wanted, default_min_isr=self._default_min_isr()
        )
