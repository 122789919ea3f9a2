"""Takes this node out of what it can't write: the disk is full or fails, or a partition's directory is gone.

Nobody else knows of that. A leader would wait for such a follower for replica.lag.time.max.ms, and producers would try
such a leader for ever, though others have all of its records. The replica joins the in-sync set again as any other
does, by its leader's proposal, once it has caught up (R5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from semel.broker.controller.isr import left_by
from semel.broker.metadata.changes import Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId
from semel.protocol.wording import counted
from semel.runtime.clock import Clock
from semel.runtime.turns import in_turns

_log = logging.getLogger("semel.replication")

AGAIN_S: Final = 2.0
"""How long to wait before it is looked again whether to leave a partition: where it stayed because too few would have
been left, and where its leader took it in again before it had more."""
TOGETHER_MAX: Final = 1_000
"""Partitions that are left by one change: a full disk is that of all partitions of a node."""
_TOLD_MAX: Final = 20


class Reason(NamedTuple):
    """Why a partition can't be written. is_lost: its records are lost here, or can't be read."""

    text: str
    is_lost: bool = False


class UnwritableReplicas:
    """The in-sync sets that one node leaves, and what it lets others lead."""

    def __init__(self, node_id: int, metadata: Metadata, clock: Clock, default_min_isr: Callable[[], int]) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._clock = clock
        self._default_min_isr = default_min_isr
        self._not_before: dict[tuple[TopicId, int], float] = {}

    async def leave(self, reasons: Mapping[tuple[TopicId, int], Reason]) -> None:
        """Leave the next ones of these partitions that others can go on with. Never fails.

        reasons: why each can't be written
        """
        now, image = self._clock.monotonic(), self._metadata.image
        self._not_before = {key: until for key, until in self._not_before.items() if until > now}
        wanted: dict[tuple[TopicId, int], bool] = {}
        async for key in in_turns(reasons):
            # Those that can't be left, or were, must not keep the rest from it.
            if key not in self._not_before and self._has_part(image, key):
                wanted[key] = reasons[key].is_lost
                if len(wanted) == TOGETHER_MAX:
                    break
        self._not_before |= dict.fromkeys(wanted, now + AGAIN_S)
        if not self._changes(image, wanted):
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
                "it: %s", change.name, change.partition, reasons[change.topic_id, change.partition].text,
            )  # fmt: skip
        if len(told) > _TOLD_MAX:
            _log.error("so do those of %s", counted(len(told) - _TOLD_MAX, "other partition"))

    def _has_part(self, image: MetadataImage, key: tuple[TopicId, int]) -> bool:
        """Say whether others have a partition, too, and count on this node."""
        found = image.partition_by_id(*key)
        if found is None:
            return False
        _, state = found
        return len(state.replicas) > 1 and (self._node_id in state.isr or self._node_id in state.elr)

    def _changes(self, image: MetadataImage, wanted: Mapping[tuple[TopicId, int], bool]) -> list[Change]:
        return left_by(
            image, self._node_id, self._metadata.broker_epoch, wanted, default_min_isr=self._default_min_isr()
        )
