"""Carries out on this node what the metadata says: makes and deletes logs, hands settings on, loads coordinators.

One change after the other, in their order. Whatever waits for the disk does so off the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.broker.handlers.topic_rules import topic_log_config
from semel.broker.log_manager import LogManager, NewPartition
from semel.broker.metadata.changes import Change, ConfigsChanged, PartitionsAdded, TopicCreated, TopicDeleted
from semel.broker.metadata.image import BROKER_RESOURCE, MetadataImage, TopicImage
from semel.broker.node_log import counted
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from semel.broker.config import NodeConfig
    from semel.broker.coordinators import Coordinators

logger = logging.getLogger("semel.metadata")

_NAMED_MAX = 5


class MetadataFollower:
    """Follows the changes that `follow` is told of, in `run`; `caught_up` waits for all so far."""

    def __init__(
        self,
        logs: LogManager,
        coordinators: Coordinators,
        configure: Callable[[MetadataImage], None],
        config: Callable[[], NodeConfig],
    ) -> None:
        """`configure` takes over the node's dynamic settings from an image; `config` gives the node's settings."""
        self._logs = logs
        self._coordinators = coordinators
        self._configure = configure
        self._config = config
        self._pending: deque[tuple[Change, MetadataImage]] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def follow(self, change: Change, image: MetadataImage) -> None:
        """Take up a change that has just been applied (a listener of `Metadata`)."""
        if isinstance(change, ConfigsChanged) and change.resource == BROKER_RESOURCE:
            # Handlers that run next must see the new settings already.
            self._configure(image)
        self._pending.append((change, image))
        self._idle.clear()
        self._work.set()

    async def caught_up(self) -> None:
        """Wait until everything that `follow` was told of is done."""
        await self._idle.wait()

    async def run(self) -> None:
        """Carry changes out until cancelled."""
        while True:
            await self._work.wait()
            while self._pending:
                change, image = self._pending[0]
                try:
                    await self._carry_out(change, image)
                except Exception:
                    # The change is in the log: it can't be refused any more, and the next ones must go on.
                    logger.exception("a change of the metadata could not be carried out: %s", change)
                self._pending.popleft()
            self._work.clear()
            self._idle.set()

    async def reconcile(self, image: MetadataImage) -> None:
        """Make up for what a crash between the metadata's entry and the logs left out.

        The folder is of this cluster (its id was checked), so a log that the metadata does not know was deleted.
        """
        for partition in self._logs.partitions():
            tp, topic = partition.tp, image.topic_by_id(partition.topic_id)
            if topic is None or topic.name != tp.topic or tp.partition >= len(topic.partitions):
                logger.info("deleting the log of %s, which was deleted", tp)
                self._delete_log(tp)
        self._tell_of_missing(image)
        for topic in image.topics.values():
            await self._create_logs(topic, 0)
            if topic.is_internal:
                self._coordinators.begin_loading(topic)

    def _tell_of_missing(self, image: MetadataImage) -> None:
        """A crash amid the creation of a topic leaves logs out; so does whoever moves folders, or starts in another."""
        node_id = self._config().node_id
        missing = [
            str(tp)
            for topic in image.topics.values()
            for number, state in enumerate(topic.partitions)
            if node_id in state.replicas and self._logs.partition(tp := TopicPartition(topic.name, number)) is None
        ]
        if missing:
            logger.warning(
                "%s not in the data folder, to be made anew, empty: %s%s. If there were records, stop the node and "
                "bring the folders back before anything is written",
                counted(len(missing), "log"), ", ".join(missing[:_NAMED_MAX]),
                ", ..." if len(missing) > _NAMED_MAX else "",
            )  # fmt: skip

    async def _carry_out(self, change: Change, image: MetadataImage) -> None:
        match change:
            case TopicCreated():
                topic = image.topics[change.name]
                await self._create_logs(topic, 0)
                if topic.is_internal:
                    self._coordinators.begin_loading(topic)
            case PartitionsAdded():
                await self._create_logs(image.topics[change.name], change.first)
            case TopicDeleted():
                await self._topic_deleted(change)
            case ConfigsChanged(resource=resource) if resource == BROKER_RESOURCE:
                for topic in image.topics.values():
                    self._update_config(topic)
            case ConfigsChanged():
                self._update_config(image.topics[change.name])
            case _:
                pass

    async def _create_logs(self, topic: TopicImage, first: int) -> None:
        """Make this node's logs that are missing. One that fails is offline, and is tried again at the next start."""
        config = topic_log_config(self._config(), topic.configs)
        node_id = self._config().node_id
        wanted = [
            NewPartition(TopicPartition(topic.name, number), topic.topic_id, config, state.leader_epoch)
            for number, state in enumerate(topic.partitions[first:], start=first)
            if node_id in state.replicas
        ]
        for tp, error in (await self._logs.create_partitions(wanted)).items():
            logger.error("the log of %s could not be made, so it is offline: %s", tp, error)

    async def _topic_deleted(self, change: TopicDeleted) -> None:
        for partition in self._logs.partitions():
            if partition.topic_id == change.topic_id:
                await asyncio.sleep(0)
                self._delete_log(partition.tp)
        await self._coordinators.topic_deleted(change.name)

    def _delete_log(self, tp: TopicPartition) -> None:
        try:
            self._logs.delete_partition(tp)
        except (SemelError, OSError) as error:
            # The next start finds a log that the metadata does not know, and deletes it.
            logger.error("the log of the deleted %s could not be put away: %s", tp, error)

    def _update_config(self, topic: TopicImage) -> None:
        self._logs.update_config(topic.name, topic_log_config(self._config(), topic.configs))
