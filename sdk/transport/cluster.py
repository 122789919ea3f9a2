"""What a client knows about the cluster: nodes, topics, leaders. Asked for when missing, after errors, and with age.

The knowledge is an immutable snapshot, replaced as a whole, so any thread may read it without a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from semel.protocol.api.metadata import NodeDescription
from semel.protocol.api.topics import PartitionDescription, TopicDescription
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.ids import NO_LEADER
from semel.protocol.proto_conversions import partition_of, told_topic_id
from semel.protocol.v1 import metadata_pb2
from semel.sdk.transport.item_errors import item_error
from semel.sdk.transport.rpcs import GET_METADATA

if TYPE_CHECKING:
    from semel.protocol.errors import SemelError
    from semel.protocol.ids import TopicId, TopicPartition
    from semel.runtime.clock import Clock
    from semel.sdk.transport.control import Control
    from semel.sdk.transport.options import ClientOptions


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All that was known at one time. `updated`: when, by the client's monotonic clock."""

    cluster_id: str = ""
    nodes: Mapping[int, NodeDescription] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicDescription] = field(default_factory=lambda: MappingProxyType({}))
    updated: float = float("-inf")

    def leader(self, tp: TopicPartition) -> PartitionDescription | None:
        """Return a partition's place if it is known and has a leader."""
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        info = topic.partitions[tp.partition]
        return info if info.leader_id != NO_LEADER and info.leader_id in self.nodes else None

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Return the name of a topic by its id, if it is known."""
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)


class Cluster:
    """Keeps the snapshot. All methods but the properties run on the IO thread."""

    def __init__(self, control: Control, options: ClientOptions, clock: Clock) -> None:
        self._control = control
        self._options = options
        self._now = clock.monotonic
        self._snapshot = ClusterSnapshot()
        self._wanted: set[str] = set()
        self._running: asyncio.Task[ClusterSnapshot] | None = None
        self._running_for: frozenset[str] = frozenset()

    @property
    def snapshot(self) -> ClusterSnapshot:
        """What is known. From any thread."""
        return self._snapshot

    @property
    def is_stale(self) -> bool:
        """Whether what is known is older than metadata_max_age_ms."""
        return self._now() - self._snapshot.updated > self._options.metadata_max_age_ms / 1000

    def data_address(self, node_id: int) -> tuple[str, int]:
        """Return host and port of a node's Kafka listener. Raises `RetriableError` for an unknown node."""
        node = self._snapshot.nodes.get(node_id)
        if node is None:
            raise RetriableError(f"node {node_id} is not in the metadata (yet)", ErrorCode.BROKER_NOT_AVAILABLE)
        return node.kafka_host, node.kafka_port

    def apply_leader(
        self, tp: TopicPartition, leader_id: int, leader_epoch: int, node: NodeDescription | None = None
    ) -> None:
        """Take a newer leader from an answer's CurrentLeader hint (KIP-951)."""
        old = self._snapshot
        topic = old.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return
        if topic.partitions[tp.partition].leader_epoch >= leader_epoch:
            return
        info = topic.partitions[tp.partition]
        changed = PartitionDescription(tp.partition, leader_id, leader_epoch, info.replicas, info.isr)
        partitions = (*topic.partitions[: tp.partition], changed, *topic.partitions[tp.partition + 1 :])
        topics = {**old.topics, topic.name: TopicDescription(topic.name, topic.topic_id, topic.is_internal, partitions)}
        nodes = old.nodes if node is None else MappingProxyType({**old.nodes, node.node_id: node})
        self._snapshot = ClusterSnapshot(old.cluster_id, nodes, MappingProxyType(topics), old.updated)

    def forget(self, topics: Iterable[str]) -> None:
        """Stop asking for these topics."""
        self._wanted.difference_update(topics)

    async def refresh(self, topics: Iterable[str] = (), *, timeout_ms: float | None = None) -> ClusterSnapshot:
        """Ask again for all topics wanted so far and for `topics`; calls at the same time share one request.

        Topics that don't exist are left out of the snapshot. Raises `SemelError` when the cluster can't be asked.
        """
        self._wanted.update(topics)
        if self._running is None or not self._wanted <= self._running_for:
            self._running_for = frozenset(self._wanted)
            self._running = asyncio.get_running_loop().create_task(self._ask(self._running_for, timeout_ms))
            self._running.add_done_callback(self._asked)
        return await asyncio.shield(self._running)

    async def look_up(self, topics: Iterable[str]) -> ClusterSnapshot:
        """Ask once where the partitions of `topics` are, without asking for them again later."""
        names = sorted(topics)
        response = await self._control.call(GET_METADATA, metadata_pb2.GetMetadataRequest(topics=names))
        self._merge(response)
        return self._snapshot

    async def ask_node(self, address: str, *, timeout_ms: float) -> ClusterSnapshot:
        """Ask one node ("host:port"), once, for all topics wanted so far. Raises `SemelError`."""
        request = metadata_pb2.GetMetadataRequest(topics=sorted(self._wanted))
        response = await self._control.call(
            GET_METADATA, request, address=address, attempt_timeout_ms=timeout_ms, retry=False
        )
        self._merge(response)
        return self._snapshot

    async def topic(
        self, name: str, *, timeout_ms: float | None = None, allow_auto_create: bool = False
    ) -> TopicDescription:
        """Return a topic, asking for it where it is not known.

        Raises `FatalError` (UNKNOWN_TOPIC_OR_PARTITION) when there is no such topic, `RetriableError` when the cluster
        can't be asked in time.
        """
        known = self._snapshot.topics.get(name)
        if known is not None:
            return known
        request = metadata_pb2.GetMetadataRequest(topics=[name], allow_auto_create=allow_auto_create)
        response = await self._control.call(GET_METADATA, request, timeout_ms=timeout_ms)
        for topic in response.topics:
            if topic.name == name and topic.HasField("error") and topic.error.code:
                raise _topic_error(item_error(topic.error, f"topic {name!r}"), name)
        self._merge(response)
        found = self._snapshot.topics.get(name)
        if found is None:
            raise _unknown_topic(name)
        self._wanted.add(name)
        return found

    async def all_topics(
        self, *, include_internal: bool = False, timeout_ms: float | None = None
    ) -> list[TopicDescription]:
        """Return every topic of the cluster, by name."""
        request = metadata_pb2.GetMetadataRequest(all_topics=True, include_internal=include_internal)
        response = await self._control.call(GET_METADATA, request, timeout_ms=timeout_ms)
        topics = [_topic_info(topic) for topic in response.topics if not topic.error.code]
        return sorted(topics, key=lambda topic: topic.name)

    async def _ask(self, names: frozenset[str], timeout_ms: float | None) -> ClusterSnapshot:
        request = metadata_pb2.GetMetadataRequest(topics=sorted(names))
        response = await self._control.call(GET_METADATA, request, timeout_ms=timeout_ms)
        self._merge(response)
        return self._snapshot

    def _asked(self, task: asyncio.Task[ClusterSnapshot]) -> None:
        if self._running is task:
            self._running = None
        if not task.cancelled():
            task.exception()  # its waiters have it; a waiter that left shall not make asyncio complain

    def _merge(self, response: metadata_pb2.GetMetadataResponse) -> None:
        nodes = {
            node.node_id: NodeDescription(
                node.node_id, node.kafka_host, node.kafka_port, node.grpc_host, node.grpc_port, node.rack
            )
            for node in response.nodes
        }
        topics = dict(self._snapshot.topics)
        for topic in response.topics:
            if topic.error.code:
                if topic.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    topics.pop(topic.name, None)
                continue
            topics[topic.name] = _newer(topics.get(topic.name), _topic_info(topic))
        self._snapshot = ClusterSnapshot(
            response.cluster_id, MappingProxyType(nodes), MappingProxyType(topics), self._now()
        )


def _topic_info(topic: metadata_pb2.Topic) -> TopicDescription:
    partitions = {
        one.partition: partition_of(one) if not one.error.code else replace(partition_of(one), leader_id=NO_LEADER)
        for one in topic.partitions
    }
    count = max(partitions, default=-1) + 1
    return TopicDescription(
        topic.name,
        told_topic_id(topic),
        topic.is_internal,
        tuple(partitions.get(number, PartitionDescription(number, NO_LEADER, -1)) for number in range(count)),
    )


def _newer(old: TopicDescription | None, new: TopicDescription) -> TopicDescription:
    """Keep of two answers the leader with the higher epoch: answers of different nodes may cross (KIP-320)."""
    if old is None or old.topic_id != new.topic_id:
        return new
    partitions = tuple(
        old.partitions[place.partition]
        if place.partition < len(old.partitions) and old.partitions[place.partition].leader_epoch > place.leader_epoch
        else place
        for place in new.partitions
    )
    return TopicDescription(new.name, new.topic_id, new.is_internal, partitions)


def _unknown_topic(name: str) -> FatalError:
    return FatalError(
        f"there is no topic {name!r}; create it with Admin.create_topic, or `semel topic create {name}`",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def _topic_error(error: SemelError, name: str) -> SemelError:
    return _unknown_topic(name) if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error
