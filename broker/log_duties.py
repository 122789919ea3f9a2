"""What a running node does about its logs: a failed one ends the node, one that could not be opened is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from semel.broker.client_listeners import ClientListeners
from semel.broker.coordinators import Coordinators
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata_follower import MetadataFollower
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_LEADER, TopicPartition

_WATCH_EVERY_S: Final = 1.0
_BRING_BACK_EVERY_S: Final = 0.5


class LogDuties:
    """Two background tasks of a node: `watch` and `bring_back`. Neither returns."""

    def __init__(
        self,
        logs: LogManager,
        metadata: Metadata,
        coordinators: Coordinators,
        follower: MetadataFollower,
        clients: ClientListeners,
        node_id: int,
        fail: Callable[[SemelError], None],
    ) -> None:
        self._logs = logs
        self._metadata = metadata
        self._coordinators = coordinators
        self._follower = follower
        self._clients = clients
        self._node_id = node_id
        self._fail = fail

    async def watch(self) -> None:
        """A log that goes offline has lost its disk, which all logs of the node share, or its directory alone."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            if self._logs.last_unclean.damaged:
                await self._logs.damage_repaired(self._repaired())
            if self._offline_partition() is None:
                continue
            with suppress(OSError):
                await self._logs.maintenance.take_vanished_offline()
            offline = self._offline_partition()
            if offline is not None and offline.offline_error is not None:
                self._fail(offline.offline_error)

    def _repaired(self) -> list[TopicPartition]:
        """Return the partitions that were found damaged and are in sync with a leader on another node.

        A registration takes replicas that are damaged out of sync, so one that is in sync after it has fetched all.
        """
        repaired: list[TopicPartition] = []
        for tp in self._logs.last_unclean.damaged:
            state = self._metadata.image.partition(tp)
            if state is not None and self._node_id in state.isr and state.leader not in (NO_LEADER, self._node_id):
                repaired.append(tp)
        return repaired

    def _offline_partition(self) -> Partition | None:
        """Return a partition that failed while it was open."""
        return next((one for one in self._logs.partitions() if one.offline_error is not None), None)

    async def bring_back(self) -> None:
        """Partitions that could not be made or opened come back once the disk does, coordinators' among them."""
        while True:
            await self._clients.tell_health_of_partitions(all_online=not len(self._logs.offline))
            await asyncio.sleep(_BRING_BACK_EVERY_S)
            back = await self._logs.bring_back()
            for partition in back:
                if partition.leader is not None:
                    self._coordinators.log_is_back(partition)
            if back:
                await self._follower.take_parts([partition.tp for partition in back], self._metadata.image)
