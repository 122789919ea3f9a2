"""What is asked and answered about topics, their settings and their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_LEADER_EPOCH, TopicId, TopicPartition

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
SPECIAL_TIMESTAMPS = frozenset(range(EARLIEST_PENDING_UPLOAD_TIMESTAMP, 0))


class IsolationLevel(IntEnum):
    """What a reader may see: everything below the high watermark, or committed transactions only (L2, L3)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 takes the node's default number of partitions or replicas.

    `assignments`: the nodes of each partition's replicas, the leader's first, in place of both numbers.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition's place. `leader_id` is NO_LEADER where it has none now.

    is_switching: its topic is diskless, and it is still on the disks of its replicas
    """

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    is_switching: bool = False


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions, by number from 0."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ListOffset:
    """The answer for one partition. `offset` is -1 where no record is at or after the timestamp asked for."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """Timestamps in milliseconds, or one of SPECIAL_TIMESTAMPS.

    `leader_epochs`: the epochs of those partitions' leaders that the caller knows, to be told where they are over.
    """

    timestamps: Mapping[TopicPartition, int]
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
