"""Metadata's response, versions 0 to 13, written by hand: it names every partition of a cluster to any client, and
through kio's classes 20,000 partitions would keep all other clients of a node waiting for a third of a second.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId
from semel.protocol.kafka.api import NodeEndpoint
from semel.protocol.kafka.wire import WireWriter, join_parts

METADATA_MAX_VERSION: Final = 13

_FIRST_FLEXIBLE: Final = 9
_UNTIL_EPOCHS: Final = struct.Struct(">hii")
_WITH_EPOCHS: Final = struct.Struct(">hiii")


class MetadataPartition(NamedTuple):
    """One partition. `leader_id` is -1 where it has no leader; `offline_replicas` are on nodes whose disk failed."""

    error: ErrorCode
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class MetadataTopic(NamedTuple):
    """One topic, or what is wrong with it. `name` is None for an id that is unknown, from version 12 on."""

    error: ErrorCode
    name: str | None
    topic_id: TopicId
    is_internal: bool
    partitions: Sequence[MetadataPartition]
    authorized_operations: int


class MetadataResponse(NamedTuple):
    """The cluster as a client sees it. `controller_id` is -1 where no node is the controller."""

    brokers: Sequence[NodeEndpoint]
    cluster_id: str | None
    controller_id: int
    topics: Sequence[MetadataTopic]
    cluster_authorized_operations: int
    throttle_time_ms: int = 0

    def build(self, version: int) -> bytes:
        """Return the body of a response of `version`."""
        assert 0 <= version <= METADATA_MAX_VERSION
        flexible = version >= _FIRST_FLEXIBLE
        writer = WireWriter()
        if version >= 3:
            writer.write_int32(self.throttle_time_ms)
        self._write_brokers(writer, version)
        if version >= 2:
            writer.write_string(self.cluster_id, flexible)
        if version >= 1:
            writer.write_int32(self.controller_id)
        writer.write_count(len(self.topics), flexible)
        for topic in self.topics:
            _write_topic(writer, topic, version)
        if 8 <= version <= 10:
            writer.write_int32(self.cluster_authorized_operations)
        if version >= 13:
            writer.write_int16(ErrorCode.NONE)
        if flexible:
            writer.write_no_tags()
        return join_parts(writer.finish())

    def _write_brokers(self, writer: WireWriter, version: int) -> None:
        flexible = version >= _FIRST_FLEXIBLE
        writer.write_count(len(self.brokers), flexible)
        for broker in self.brokers:
            writer.write_int32(broker.node_id)
            writer.write_string(broker.host, flexible)
            writer.write_int32(broker.port)
            if version >= 1:
                writer.write_string(broker.rack, flexible)
            if flexible:
                writer.write_no_tags()


def _write_topic(writer: WireWriter, topic: MetadataTopic, version: int) -> None:
    flexible = version >= _FIRST_FLEXIBLE
    writer.write_int16(topic.error)
    writer.write_string(topic.name, flexible)
    if version >= 10:
        writer.write_fixed(topic.topic_id.bytes)
    if version >= 1:
        writer.write_int8(topic.is_internal)
    writer.write_count(len(topic.partitions), flexible)
    parts: list[bytes] = []
    for error, number, leader_id, leader_epoch, replicas, isr, offline_replicas in topic.partitions:
        if version >= 7:
            parts.append(_WITH_EPOCHS.pack(error, number, leader_id, leader_epoch))
        else:
            parts.append(_UNTIL_EPOCHS.pack(error, number, leader_id))
        parts.append(_nodes(replicas, flexible))
        parts.append(_nodes(isr, flexible))
        if version >= 5:
            parts.append(_nodes(offline_replicas, flexible))
        if flexible:
            parts.append(b"\0")
    writer.write_fixed(b"".join(parts))
    if version >= 8:
        writer.write_int32(topic.authorized_operations)
    if flexible:
        writer.write_no_tags()


@functools.lru_cache(maxsize=4096)
def _nodes(nodes: tuple[int, ...], flexible: bool) -> bytes:
    """There are only a few different sets of replicas."""
    writer = WireWriter()
    writer.write_count(len(nodes), flexible)
    for node_id in nodes:
        writer.write_int32(node_id)
    return join_parts(writer.finish())
