"""What can happen to the cluster's metadata: the kinds of entries in the change log, with their JSON form.

The log is for ever, so a kind is never changed in a way that an older entry would be misread: fields are added with
defaults, or a new kind is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from semel.protocol.ids import TopicId, format_topic_id, parse_topic_id


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who has a partition. `partition_epoch` counts the changes of this state: changes compare and set on it (R5)."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    cluster_id: str


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A node started. `incarnation` is new for every start; `directory_id` is its data folder's."""

    node_id: int
    incarnation: str
    directory_id: str
    kafka_host: str
    kafka_port: int
    grpc_host: str
    grpc_port: int
    rack: str = ""


@dataclass(frozen=True, slots=True)
class TopicCreated:
    name: str
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """`partitions` come after the `first` that the topic had."""

    name: str
    topic_id: TopicId
    first: int
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A new leader or in-sync set. `state.partition_epoch` is one more than that of the state it replaces."""

    name: str
    topic_id: TopicId
    partition: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """`resource` is TOPIC or BROKER, `values` of None go back to the default. A broker's name is its id, -1 for all."""

    resource: str
    name: str
    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """The ids from `first` to `first + count - 1` belong to one node from now on, used or not."""

    node_id: int
    first: int
    count: int


Change: TypeAlias = (
    ClusterCreated
    | BrokerRegistered
    | TopicCreated
    | TopicDeleted
    | PartitionsAdded
    | PartitionChanged
    | ConfigsChanged
    | ProducerIdsAllocated
)

KINDS: Final[Mapping[str, type[Change]]] = {
    "cluster-created": ClusterCreated,
    "broker-registered": BrokerRegistered,
    "topic-created": TopicCreated,
    "topic-deleted": TopicDeleted,
    "partitions-added": PartitionsAdded,
    "partition-changed": PartitionChanged,
    "configs-changed": ConfigsChanged,
    "producer-ids-allocated": ProducerIdsAllocated,
}
_KIND_OF: Final[Mapping[type[Change], str]] = {made: kind for kind, made in KINDS.items()}


class MetadataCorruptError(ValueError):
    """An entry of the change log or a snapshot can't be read."""


def encode_change(change: Change) -> tuple[str, str]:
    """Return the kind and the JSON payload of a change."""
    return _KIND_OF[type(change)], to_json({name: encode_value(getattr(change, name)) for name in change.__slots__})


def decode_change(kind: str, payload: str) -> Change:
    """Return the change that `encode_change` wrote. Raises `MetadataCorruptError`."""
    made = KINDS.get(kind)
    if made is None:
        raise MetadataCorruptError(f"the metadata has a change of the unknown kind {kind!r}: it needs a newer semel")
    try:
        fields: dict[str, Any] = json.loads(payload)
        if "topic_id" in fields:
            fields["topic_id"] = parse_topic_id(fields["topic_id"])
        if "partitions" in fields:
            fields["partitions"] = tuple(decode_partition(state) for state in fields["partitions"])
        if "state" in fields:
            fields["state"] = decode_partition(fields["state"])
        return made(**fields)
    except (TypeError, ValueError, KeyError) as error:
        raise MetadataCorruptError(f"a change of kind {kind} in the metadata can't be read: {error}") from error


def encode_value(value: Any) -> Any:
    """Return the JSON form of a field: topic ids as Kafka's text, partitions as arrays (there are many)."""
    match value:
        case PartitionState():
            return [value.leader, value.leader_epoch, value.replicas, value.isr, value.partition_epoch]
        case tuple():
            return [encode_value(item) for item in value]
        case Mapping():
            return dict(value)
        case str() | int() | None:
            return value
        case _:
            return format_topic_id(value)


def decode_partition(state: list[Any]) -> PartitionState:
    leader, leader_epoch, replicas, isr, partition_epoch = state
    return PartitionState(leader, leader_epoch, tuple(replicas), tuple(isr), partition_epoch)


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
