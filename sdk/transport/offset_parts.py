"""Commits of many offsets go in several requests (S2): a node takes 4 MiB in one request without records, and about a
megabyte of records that one commit makes, since they are one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeVar

from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.ids import TopicPartition
from semel.protocol.v1 import groups_pb2

PART_BYTES_MAX: Final = 500_000
"""The most bytes of the records that a request makes: half of what a node takes in one."""
_RECORD_BYTES: Final = 70
"""What an offset's record has beside the names and the metadata, at most."""


class Message(Protocol):
    """A message of Protocol Buffers."""

    def ByteSize(self) -> int: ...  # noqa: N802 - its name there


M = TypeVar("M", bound=Message)


def offset_items(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> Iterator[groups_pb2.CommitOffsetsRequest.Item]:
    """Yield the offsets as a request to commit them has them."""
    for tp, place in offsets.items():
        yield groups_pb2.CommitOffsetsRequest.Item(
            topic=tp.topic,
            partition=tp.partition,
            offset=place.offset,
            leader_epoch=place.leader_epoch,
            metadata=place.metadata,
        )


def in_parts(items: Iterable[M], group: str) -> Iterator[list[M]]:
    """Yield the offsets of a group in lists that fit into a request each, in their order."""
    around = len(group.encode()) + _RECORD_BYTES  # each record names the group
    part: list[M] = []
    size = 0
    for item in items:
        more = item.ByteSize() + around
        if part and size + more > PART_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(item)
        size += more
    if part:
        yield part
