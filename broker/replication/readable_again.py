"""Tells the cluster of this node's replicas that could not be read at its start, and can be now (R4)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from semel.broker.controller.readable_again import readable_again
from semel.broker.logs.manager import LogManager
from semel.broker.metadata.changes import Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.wording import counted
from semel.runtime.clock import Clock
from semel.runtime.turns import in_turns

_log = logging.getLogger("semel.replication")

AGAIN_S: Final = 2.0
"""How long to wait before the metadata is changed again where it could not be."""
TOGETHER_MAX: Final = 1_000
"""Partitions that one change makes eligible again."""
_LOGGED_MAX: Final = 20


class ReadableAgain:
    """What one run of a node tells of them, in `look`."""

    def __init__(
        self, node_id: int, metadata: Metadata, logs: LogManager, clock: Clock, default_min_isr: Callable[[], int]
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._logs = logs
        self._clock = clock
        self._default_min_isr = default_min_isr
        self._not_before = 0.0

    async def look(self) -> None:
        """Tell of those that are open again, and forget those that nobody waits for. Never fails.

        The metadata must know this run of the node.
        """
        unreported = self._logs.unreported
        is_settled = unreported.is_written and not unreported.not_read
        if is_settled or self._clock.monotonic() < self._not_before:
            return
        image = self._metadata.image
        waiting = {key async for key in in_turns(unreported.not_read) if self._is_waited_for(image, key)}
        try:
            unreported.write_again()
            if over := unreported.not_read - waiting:
                unreported.was_read(over)
        except OSError as error:
            self._not_before = self._clock.monotonic() + AGAIN_S
            _log.warning("what is known of damaged and unreadable logs is not noted yet: %s", error)
        open_again = [key async for key in in_turns(waiting) if self._is_whole(image, key)][:TOGETHER_MAX]
        if not open_again:
            return
        done: list[Change] = []

        def decide(image: MetadataImage) -> list[Change]:
            epoch, min_isr = self._metadata.broker_epoch, self._default_min_isr()
            done[:] = readable_again(image, self._node_id, epoch, open_again, default_min_isr=min_isr)
            return done

        if not decide(image):
            return
        try:
            await self._metadata.change(decide)
        except SemelError as error:
            self._not_before = self._clock.monotonic() + AGAIN_S
            _log.warning("replicas that can be read again could not be told of; it is tried again: %s", error.message)
            return
        changes = [change for change in done if isinstance(change, PartitionChanged)]
        for change in changes[:_LOGGED_MAX]:
            _log.info("%s-%d can be read again, and has all that it had", change.name, change.partition)
        if len(changes) > _LOGGED_MAX:
            _log.info("so can %s", counted(len(changes) - _LOGGED_MAX, "other partition"))

    def _is_waited_for(self, image: MetadataImage, key: tuple[TopicId, int]) -> bool:
        """Say whether this node counts as one that was complete, and is not."""
        found = image.partition_by_id(*key)
        return found is not None and self._node_id in found[1].last_known_elr

    def _is_whole(self, image: MetadataImage, key: tuple[TopicId, int]) -> bool:
        """Say whether a log is open, and has lost nothing."""
        found = image.partition_by_id(*key)
        partition = None if found is None else self._logs.partition(TopicPartition(found[0].name, key[1]))
        return (
            partition is not None
            and partition.topic_id == key[0]
            and partition.offline_error is None
            and not self._logs.unreported.may_be_damaged(key)
        )
