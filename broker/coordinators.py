"""The two coordinators of a node and the internal topics they live on: created on first use, read when led here.

Each partition is led, read and given up for itself: one that is read slowly, or whose log is offline, keeps no other
from being used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from semel.broker.handlers.partitions.leader_hints import not_here
from semel.broker.handlers.topics.changes import create_internal_topic
from semel.broker.known_topics import AllowedSights, KnownTopics
from semel.broker.logs.partition import Partition
from semel.broker.peers.peers import Peers
from semel.broker.producer_ids import ProducerIds
from semel.broker.routing.fresh_image import FreshImage
from semel.broker.routing.markers import MarkerRouter
from semel.broker.routing.verification import VerificationRouter
from semel.broker.services import Services
from semel.broker.telemetry.tracing import NodeTracing
from semel.group_coordinator.consumer.pattern_matches import PatternMatches
from semel.group_coordinator.coordinator import GroupCoordinator
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import NO_LEADER_EPOCH, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.wording import counted
from semel.runtime.read_barrier import ONE_NODE, ReadBarrier
from semel.runtime.telemetry.buckets import Buckets
from semel.txn_coordinator.coordinator import TransactionCoordinator

_log = logging.getLogger("semel.coordinators")

FIRST_USE_PATIENCE_S: Final = 5.0
"""So long the first users of a new internal topic wait until it can be used; after it, they are told to try again."""
FORGET_PATIENCE_S: Final = 1.0
"""So long a deletion of topics waits until their offsets are forgotten for good: that may need other nodes, of which
the metadata that waits behind it may tell."""


class Coordinators:
    """Transactions and groups of this node."""

    def __init__(
        self,
        node: Services,
        peers: Peers,
        tracing: NodeTracing | None = None,
        transaction_times: Mapping[bool, Buckets] | None = None,
        *,
        barrier: ReadBarrier = ONE_NODE,
    ) -> None:
        """`transaction_times`: where it is recorded how long transactions take that commit (True) and abort.

        `barrier`: what the answers of both pass that rest on no record (R9).
        """
        self._node = node
        config = node.config
        self._fresh = fresh = FreshImage(node.metadata)
        self.verification = VerificationRouter(node, peers, fresh)
        """Where the word on what is in a transaction comes from, whichever node coordinates it."""
        self.producer_ids = ProducerIds(node.metadata, config.node_id)
        self.transactions = TransactionCoordinator(
            partition_count=partial(self._partition_count, TRANSACTIONS_TOPIC),
            open_log=lambda partition: self._log(TRANSACTIONS_TOPIC, partition),
            topic_ready=partial(self._topic_ready, TRANSACTIONS_TOPIC),
            markers=MarkerRouter(node, peers, fresh),
            producer_ids=self.producer_ids,
            clock=node.clock,
            config=config,
            topic_id=node.metadata.topic_id,
            barrier=barrier,
            spans=None if tracing is None else tracing.transactions,
            durations=transaction_times,
        )
        patterns = PatternMatches(node.clock, AllowedSights(node))
        self.groups = GroupCoordinator(
            partition_count=partial(self._partition_count, OFFSETS_TOPIC),
            open_log=lambda partition: self._log(OFFSETS_TOPIC, partition),
            topic_ready=partial(self._topic_ready, OFFSETS_TOPIC),
            transactions=self.verification,
            clock=node.clock,
            config=config,
            topics=KnownTopics(node, patterns),
            patterns=patterns,
            barrier=barrier,
            spans=None if tracing is None else tracing.groups,
        )
        self.load_seconds: dict[str, float] = {}
        """How long reading took, of each internal topic: the last time that partitions of it were read together."""
        self._led: dict[TopicPartition, int] = {}
        """What this node leads, and under which epoch."""
        self._without_log: set[TopicPartition] = set()
        """What of it can't be read, because its log is not open."""
        self._loading: dict[TopicPartition, asyncio.Future[None]] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        """When the reading of each topic began that is under way, and of how many partitions."""
        self._in_use: set[str] = set()
        self._forgetting: set[asyncio.Task[None]] = set()

    # --- Leading partitions -------------------------------------------------------------------------------------------

    def lead(self, tp: TopicPartition, leader_epoch: int) -> None:
        """Coordinate what lives on a partition of an internal topic: this node leads it from now on.

        It is read, and read again when it is led under a higher epoch. Does nothing under one that is known already,
        unless the log was missing then.
        """
        known = self._led.get(tp, NO_LEADER_EPOCH)
        if leader_epoch > known or (leader_epoch == known and tp in self._without_log):
            self._led[tp] = leader_epoch
            self._load(tp)

    def give_up(self, tp: TopicPartition) -> None:
        """Coordinate it no more: callers, those that wait too, have to find the coordinator again."""
        if self._led.pop(tp, None) is not None:
            self._without_log.discard(tp)
            self._coordinator(tp.topic).unload(tp.partition)

    def log_is_back(self, partition: Partition) -> None:
        """Read a partition of an internal topic whose log was offline until now."""
        if partition.tp in self._led:
            self._load(partition.tp)

    def log_is_gone(self, partition: Partition) -> None:
        """Give up a partition of an internal topic whose log went offline, until it is back."""
        if partition.tp in self._led:
            self._load(partition.tp)  # which notes why it can't be used

    async def all_loaded(self, timeout_s: float) -> bool:
        """Wait until all that is being read was read, or the time is over; return which."""
        pending: set[asyncio.Future[None]] = set()
        if self._loading:
            _, pending = await asyncio.wait(self._loading.values(), timeout=timeout_s)
        self._in_use.update(tp.topic for tp in self._led)
        return not pending

    def _coordinator(self, topic: str) -> TransactionCoordinator | GroupCoordinator:
        return self.transactions if topic == TRANSACTIONS_TOPIC else self.groups

    def _load(self, tp: TopicPartition) -> None:
        begun_s, count = self._begun.get(tp.topic, (self._node.clock.monotonic(), 0))
        self._begun[tp.topic] = begun_s, count + 1
        self._without_log.discard(tp)
        if tp.topic == TRANSACTIONS_TOPIC:
            loading = self.transactions.load(tp.partition, self._led[tp])
        else:
            loading = self.groups.load(tp.partition, self._led[tp], self._known_topics())
        self._loading[tp] = loading
        loading.add_done_callback(partial(self._loaded, tp))

    def _loaded(self, tp: TopicPartition, loading: asyncio.Future[None]) -> None:
        """It was read, could not be read, or was given up."""
        if self._loading.get(tp) is not loading:
            return
        del self._loading[tp]
        if any(each.topic == tp.topic for each in self._loading):
            return
        begun_s, count = self._begun.pop(tp.topic)
        self.load_seconds[tp.topic] = self._node.clock.monotonic() - begun_s
        _log.info("the coordinator of %s has read %s", tp.topic, counted(count, "partition"))

    # --- The internal topics ------------------------------------------------------------------------------------------

    async def _topic_ready(self, name: str, *, create: bool = True) -> bool:
        """Say whether a coordinator has its topic, and make it where it is missing: see `TopicReady`."""
        if name in self._in_use:
            return True
        if not create and self._node.metadata.topic(name) is None:
            return False
        await create_internal_topic(self._node, name)
        await self._node.caught_up()
        loading = [each for tp, each in self._loading.items() if tp.topic == name]
        if loading:
            await asyncio.wait(loading, timeout=FIRST_USE_PATIENCE_S)
        self._in_use.add(name)
        return True

    async def topics_deleted(self, names: Sequence[str]) -> None:
        """Have the groups forget their offsets of deleted topics. Transactions pass over partitions that are gone."""
        forgetting = asyncio.get_running_loop().create_task(self._forget(names), name="forget offsets")
        self._forgetting.add(forgetting)
        forgetting.add_done_callback(self._forgetting.discard)
        await asyncio.wait([forgetting], timeout=FORGET_PATIENCE_S)

    async def _forget(self, names: Sequence[str]) -> None:
        try:
            await self.groups.topics_deleted(names)
        except SemelError as error:
            # They go when it is read the next time. A topic made again under the name before that is read from where
            # they say.
            _log.warning("offsets of the deleted topics %s were not all forgotten: %s", ", ".join(names)[:300], error)

    def _known_topics(self) -> Callable[[], Awaitable[frozenset[str]]]:
        """Return what tells the topics that there are: offsets of others are left over from a crash."""
        topics = frozenset(self._node.metadata.image.topics)

        async def known() -> frozenset[str]:
            metadata = self._node.metadata
            if len(metadata.image.brokers) < 2:
                return topics
            # The one that led before may have known of topics that this node has not heard of (R8).
            failure = await asyncio.shield(self._fresh.begin())
            if failure is not None:
                raise failure
            return frozenset(metadata.image.topics)

        return known

    async def close(self) -> None:
        """Give everything up: callers that wait have to find their coordinator again."""
        for forgetting in tuple(self._forgetting):
            forgetting.cancel()
        await asyncio.gather(*self._forgetting, return_exceptions=True)
        self._led.clear()
        self.verification.close()
        await self.transactions.close()
        self.groups.close()

    def _partition_count(self, name: str) -> int:
        """Keys are bound to the number of partitions that the topic was made with, whatever is configured here."""
        topic = self._node.metadata.topic(name)
        if topic is None:
            raise RetriableError(f"{name} is not there yet; find the coordinator again", ErrorCode.NOT_COORDINATOR)
        return len(topic.partitions)

    def _log(self, topic: str, number: int) -> Partition:
        tp = TopicPartition(topic, number)
        partition = self._node.partition(tp)
        if partition is None:
            self._without_log.add(tp)
            raise not_here(self._node, tp)
        return partition
