"""The two coordinators of a node and the internal topics they live on: created on first use, loaded when led here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Protocol

from semel.broker.handlers.known_topics import KnownTopics
from semel.broker.handlers.leader_hints import not_here
from semel.broker.handlers.producer_ids import ProducerIds
from semel.broker.handlers.topics import create_internal_topic
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.logs.partition import Partition
from semel.broker.metadata.image import TopicImage
from semel.broker.parts_config import group_config, transaction_config
from semel.broker.services import Services
from semel.broker.telemetry.tracing import NodeTracing
from semel.group_coordinator.consumer.pattern_matches import PatternMatches
from semel.group_coordinator.service import GroupService
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.wording import counted
from semel.txn_coordinator.service import TransactionService

logger = logging.getLogger("semel.coordinators")

FORGET_PAUSE_S = 0.1
FORGET_PAUSE_S_MAX = 5.0


class _Coordinator(Protocol):
    def load(self, partition: int, leader_epoch: int) -> Awaitable[None]: ...

    def unload(self, partition: int) -> None: ...


class Coordinators:
    """Transactions and groups of this node."""

    def __init__(self, node: Services, tracing: NodeTracing | None = None) -> None:
        self._node = node
        config = node.config
        self.producer_ids = ProducerIds(node.metadata, config.node_id)
        self.transactions = TransactionService(
            partition_count=self._partition_count(TRANSACTIONS_TOPIC, config.transaction_state_log_num_partitions),
            open_log=lambda partition: self._log(TRANSACTIONS_TOPIC, partition),
            markers=LocalMarkerWriter(node),
            producer_ids=self.producer_ids,
            clock=node.clock,
            config=transaction_config(config),
            spans=None if tracing is None else tracing.transactions,
        )
        patterns = PatternMatches(node.clock)
        self.groups = GroupService(
            partition_count=self._partition_count(OFFSETS_TOPIC, config.offsets_topic_num_partitions),
            open_log=lambda partition: self._log(OFFSETS_TOPIC, partition),
            transactions=self.transactions,
            clock=node.clock,
            config=group_config(config),
            topics=KnownTopics(node, patterns),
            patterns=patterns,
            spans=None if tracing is None else tracing.groups,
        )
        self.load_seconds: dict[str, float] = {}
        """How long reading each internal topic took, the last time."""
        self._loading: dict[str, asyncio.Future[None]] = {}
        self._ready: set[str] = set()
        self._deleted_while_loading: set[str] = set()

    def begin_loading(self, topic: TopicImage) -> None:
        """Read the partitions of an internal topic that this node leads."""
        coordinator: _Coordinator = self.transactions if topic.name == TRANSACTIONS_TOPIC else self.groups
        loads = [
            asyncio.ensure_future(coordinator.load(number, state.leader_epoch))
            for number, state in enumerate(topic.partitions)
            if state.leader == self._node.config.node_id
        ]
        topics = frozenset(self._node.metadata.image.topics)
        self._loading[topic.name] = asyncio.ensure_future(self._finish_loading(topic.name, loads, topics))

    def log_is_back(self, partition: Partition) -> None:
        """Read a partition of an internal topic whose log was offline until now."""
        topic = self._node.metadata.topic(partition.tp.topic)
        if topic is None or not topic.is_internal:
            return
        coordinator: _Coordinator = self.transactions if topic.name == TRANSACTIONS_TOPIC else self.groups
        coordinator.load(partition.tp.partition, partition.leader_epoch)

    def log_is_gone(self, partition: Partition) -> None:
        """Give up a partition of an internal topic whose log went offline, until it is back."""
        topic = self._node.metadata.topic(partition.tp.topic)
        if topic is None or not topic.is_internal:
            return
        coordinator: _Coordinator = self.transactions if topic.name == TRANSACTIONS_TOPIC else self.groups
        coordinator.unload(partition.tp.partition)
        coordinator.load(partition.tp.partition, partition.leader_epoch)  # which notes why it can't be used

    async def topic_ready(self, name: str) -> None:
        """Create an internal topic where it is missing, and wait until its coordinator has read it."""
        if name in self._ready:
            return
        await create_internal_topic(self._node, name)
        await self._node.caught_up()
        loading = self._loading.get(name)
        if loading is None:
            raise RetriableError(f"{name} is not led by this node", ErrorCode.NOT_COORDINATOR)
        await asyncio.shield(loading)

    async def all_loaded(self, timeout_s: float) -> bool:
        """Wait until all that is being read was read, or the time is over; return which."""
        if not self._loading:
            return True
        _, pending = await asyncio.wait(self._loading.values(), timeout=timeout_s)
        return not pending

    async def topics_deleted(self, names: Sequence[str]) -> None:
        """Have the groups forget their offsets of deleted topics. Transactions pass over partitions that are gone."""
        if OFFSETS_TOPIC not in self._ready:
            self._deleted_while_loading.update(names)
            return
        try:
            await self.groups.topics_deleted(names)
        except SemelError as error:
            # They go at the next start. A topic made again under the name before that is read from where they say.
            logger.warning("offsets of the deleted topics %s were not all forgotten: %s", ", ".join(names)[:300], error)

    async def close(self) -> None:
        """Give everything up: what waits is told to find its coordinator again."""
        for loading in self._loading.values():
            loading.cancel()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        await self.transactions.close()
        self.groups.close()

    async def _finish_loading(self, name: str, loads: Sequence[asyncio.Future[None]], topics: frozenset[str]) -> None:
        """`topics` are those there were when the loading began; who uses the coordinator waits for the end of this."""
        begun = self._node.clock.monotonic()
        await asyncio.gather(*loads)
        if name == OFFSETS_TOPIC:
            await self._forget_offsets_of_others(topics)
        self.load_seconds[name] = self._node.clock.monotonic() - begun
        self._ready.add(name)
        logger.info("the coordinator of %s has read its %s", name, counted(len(loads), "partition"))

    async def _forget_offsets_of_others(self, topics: frozenset[str]) -> None:
        """A crash may come between a topic's deletion and that of its offsets, which would count for its successor."""
        pause_s = FORGET_PAUSE_S
        while True:
            try:
                await self.groups.topics_left(topics - self._deleted_while_loading)
                return
            except SemelError as error:
                logger.warning("offsets of deleted topics could not be forgotten, trying again: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, FORGET_PAUSE_S_MAX)

    def _partition_count(self, topic: str, default: int) -> int:
        """Keys are bound to the number of partitions that the topic was made with, whatever is configured now."""
        existing = self._node.metadata.topic(topic)
        return default if existing is None else len(existing.partitions)

    def _log(self, topic: str, number: int) -> Partition:
        partition = self._node.partition(TopicPartition(topic, number))
        if partition is None:
            raise not_here(self._node, TopicPartition(topic, number))
        return partition
