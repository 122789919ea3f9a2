"""Conversions that more than one service needs, between protobuf messages and the plain data of protocol/api."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from semel.broker.listeners.grpc.errors import item_error
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import IsolationLevel, TopicDescription
from semel.protocol.errors import UsageError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.proto_conversions import producer_of
from semel.protocol.v1 import common_pb2, groups_pb2, metadata_pb2, transactions_pb2
from semel.runtime.turns import in_turns

_Value = TypeVar("_Value")
_Message = TypeVar("_Message")


async def topic_partitions(topics: Iterable[common_pb2.TopicPartitions]) -> tuple[TopicPartition, ...]:
    """Return the partitions of all topics, in order, each once."""
    found = [
        TopicPartition(item.topic, number)
        async for item in in_turns(topics)
        async for number in in_turns(item.partitions)
    ]
    return tuple(dict.fromkeys(found))


async def filled(response: _Message, items: Any, made: Iterable[Any]) -> _Message:
    """Return the response once these messages are in its list `items`. In turns: to copy many takes long, too (S3)."""
    async for message in in_turns(made):
        items.append(message)
    return response


async def unique_items(pairs: Iterable[tuple[TopicPartition, _Value]]) -> Mapping[TopicPartition, _Value]:
    """Return the items by partition. Raises `UsageError` where a partition comes twice: which one would count?"""
    found: dict[TopicPartition, _Value] = {}
    async for tp, value in in_turns(pairs):
        if tp in found:
            raise UsageError(f"{tp} is in the request more than once")
        found[tp] = value
    return found


async def offset_commit(
    request: groups_pb2.CommitOffsetsRequest | transactions_pb2.TxnCommitOffsetsRequest,
) -> OffsetCommitRequest:
    """Return what is to be committed, without the transaction. Raises `UsageError` where a partition comes twice."""
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or None,
        offsets=await unique_items(
            (
                TopicPartition(item.topic, item.partition),
                OffsetAndMetadata(item.offset, item.leader_epoch, item.metadata),
            )
            for item in request.items
        ),
    )


def optional_producer(message: common_pb2.Producer, present: bool) -> ProducerIdAndEpoch:
    return producer_of(message) if present else NO_PRODUCER


def isolation_of(value: common_pb2.IsolationLevel) -> IsolationLevel:
    try:
        return IsolationLevel(value)
    except ValueError:
        raise UsageError(f"there is no isolation level {value}: use READ_UNCOMMITTED or READ_COMMITTED") from None


def topic_id_of(data: bytes) -> TopicId:
    if len(data) != 16:
        raise UsageError(f"a topic id has 16 bytes, not {len(data)}")
    return TopicId(UUID(bytes=data))


def topic_message(result: TopicResult) -> metadata_pb2.Topic:
    """Return a topic, or its error, as the metadata and topic services show it."""
    error = item_error(result.error, result.message)
    if result.topic is None:
        topic_id = b"" if result.topic_id is None else result.topic_id.bytes
        return metadata_pb2.Topic(name=result.name, topic_id=topic_id, error=error)
    return _described(result.topic)


def _described(topic: TopicDescription) -> metadata_pb2.Topic:
    return metadata_pb2.Topic(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.is_internal,
        partitions=[
            metadata_pb2.Partition(
                partition=partition.partition,
                leader_id=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                is_switching=partition.is_switching,
            )
            for partition in topic.partitions
        ],
    )
