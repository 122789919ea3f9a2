"""What the metadata is at one moment: an immutable image, made by applying the change log from its beginning.

`MetadataImage.apply_all` is the one place where metadata changes: live changes, replay and followers all go through it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from semel.broker.metadata.chain import START, Position
from semel.broker.metadata.changes import (
    ADDED_TO_REGISTRATIONS,
    METADATA_VERSION,
    AclsChanged,
    BrokerFenced,
    BrokerFull,
    BrokerRegistered,
    BrokerStopping,
    BrokerUnfenced,
    BrokerUnregistered,
    Change,
    ClientQuotasChanged,
    ClusterCreated,
    ConfigsChanged,
    CredentialsChanged,
    DelegationTokensChanged,
    Endpoint,
    MetadataCorruptError,
    MetadataVersionRaised,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
    decode_acl,
    decode_delegation_token,
    decode_partition,
    decode_quota,
    decode_registration,
    decode_upsertion,
    defaults_of,
    encode_fields,
    encode_value,
    to_json,
)
from semel.protocol.acls import Acl
from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.ids import INTERNAL_TOPICS, TopicId, TopicPartition, format_topic_id, parse_topic_id
from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.protocol.quotas import QuotaAlteration, QuotaEntity, sorted_quotas
from semel.protocol.scram import Upsertion, Verifier

TOPIC_RESOURCE: Final = "TOPIC"
BROKER_RESOURCE: Final = "BROKER"
ALL_NODES_ID: Final = -1
"""Stands for a node's id where a setting is for all nodes that have no value of their own."""

NO_QUOTAS: Final[Mapping[QuotaEntity, Mapping[str, float]]] = MappingProxyType({})

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


DISKLESS_SETTING: Final = "diskless.enable"
REMOTE_SETTING: Final = "remote.storage.enable"


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def is_diskless(self) -> bool:
        """Whether no node has its records on the disk alone: any node may lead its partitions (KIP-1163). Those that
        are still being switched are not so yet: see `has_diskless`.
        """
        return self.configs.get(DISKLESS_SETTING, "").strip().lower() == "true"

    def has_diskless(self, state: PartitionState) -> bool:
        """Whether a partition of it that is in this state is diskless by now."""
        return self.is_diskless and not state.is_switching


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A node as it registered last.

    epoch: the number of that change in the log. 0 where an older version wrote the snapshot and the node did not start
        since
    """

    node_id: int
    incarnation: str
    directory_id: str
    kafka_host: str
    kafka_port: int
    grpc_host: str
    grpc_port: int
    rack: str
    peer_host: str = ""
    peer_port: int = 0
    is_clean: bool = True
    durability: str = "disk"
    secret_mark: str = ""
    metadata_version: int = 1
    epoch: int = 0
    is_fenced: bool = False
    is_stopping: bool = False
    is_full: bool = False
    kafka_listeners: tuple[Endpoint, ...] = ()
    grpc_listeners: tuple[Endpoint, ...] = ()
    has_store: bool = True

    def kafka_at(self, listener: str) -> Endpoint | None:
        """Return where clients of the Kafka listeners of this name reach it; None where it has none of the name."""
        return _of_name(self.all_kafka_listeners, listener)

    def grpc_at(self, listener: str) -> Endpoint | None:
        """Return the same of its gRPC listeners."""
        return _of_name(self.all_grpc_listeners, listener)

    def kafka_beside(self, listener: str) -> Endpoint:
        """Return where clients of a gRPC listener exchange records: the one of that name, or else the main one."""
        return self.kafka_at(listener) or self.all_kafka_listeners[0]

    def grpc_beside(self, listener: str) -> Endpoint:
        """Return where clients of a Kafka listener reach gRPC: the listener of that name, or else the main one."""
        return self.grpc_at(listener) or self.all_grpc_listeners[0]

    @property
    def all_kafka_listeners(self) -> tuple[Endpoint, ...]:
        """Where clients reach it, by the name of each Kafka listener, the main one first. A node that has one without
        a name, or is of an older version, has the one that is named `default`."""
        return self.kafka_listeners or (Endpoint(DEFAULT_LISTENER, self.kafka_host, self.kafka_port),)

    @property
    def all_grpc_listeners(self) -> tuple[Endpoint, ...]:
        """The same of its gRPC listeners."""
        return self.grpc_listeners or (Endpoint(DEFAULT_LISTENER, self.grpc_host, self.grpc_port),)


def _of_name(listeners: Iterable[Endpoint], name: str) -> Endpoint | None:
    return next((each for each in listeners if each.listener == name), None)


_REGISTERED: Final = tuple(one.name for one in fields(BrokerRegistered))
_UNWRITTEN: Final = defaults_of(BrokerImage, {*ADDED_TO_REGISTRATIONS, "epoch", "is_fenced", "is_stopping", "is_full"})


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All of the cluster's metadata after the change numbered `sequence` (0: before the first).

    digest: of that change, which stands for all changes up to it (R10)
    version: what may be written: all nodes read it (`METADATA_VERSION`)
    highest_leader_epoch: of all partitions that are there; those that were deleted since the snapshot count, too
    users: what proves their passwords, by their names, in the order of mechanisms
    delegation_tokens: by their ids, those that have expired with them until they are removed
    """

    sequence: int
    digest: str
    cluster_id: str
    brokers: Mapping[int, BrokerImage]
    topics: Mapping[str, TopicImage]
    topic_names: Mapping[TopicId, str]
    broker_configs: Mapping[int, Mapping[str, str]]
    next_producer_id: int
    partition_count: int
    version: int = 1
    highest_leader_epoch: int = field(default=0, compare=False)
    acls: frozenset[Acl] = frozenset()
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=lambda: NO_QUOTAS)
    users: Mapping[str, tuple[Verifier, ...]] = field(default_factory=lambda: MappingProxyType({}))
    delegation_tokens: Mapping[str, DelegationToken] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def position(self) -> Position:
        return Position(self.sequence, self.digest)

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def partition_by_id(self, topic_id: TopicId, number: int) -> tuple[TopicImage, PartitionState] | None:
        """Return a partition's topic and state, None where there is no such partition, or no more."""
        topic = self.topic_by_id(topic_id)
        if topic is None or not 0 <= number < len(topic.partitions):
            return None
        return topic, topic.partitions[number]

    def apply(self, change: Change, position: Position) -> MetadataImage:
        """Return the image after `change`, which is at `position`. Raises `MetadataCorruptError` for a gap."""
        return self.apply_all(((position, change),))

    def apply_all(self, changes: Iterable[tuple[Position, Change]]) -> MetadataImage:
        """Return the image after changes in order. The tables are copied once, however many changes there are.

        Raises `MetadataCorruptError` for a gap.
        """
        draft = _Draft(self)
        for position, change in changes:
            draft.apply(change, position)
        return draft.image()


class _Table(Generic[_Key, _Item]):
    """A table of an image in the making: the image's own until it is first written to, then a copy."""

    __slots__ = ("_is_copy", "items")

    def __init__(self, items: Mapping[_Key, _Item]) -> None:
        self.items = items
        self._is_copy = False

    def writable(self) -> dict[_Key, _Item]:
        if not self._is_copy:
            # `dict(items)` would hash every key again, which a topic's id does in Python: making topics took seconds.
            self.items = self.items.copy() if isinstance(self.items, MappingProxyType) else dict(self.items)
            self._is_copy = True
        assert isinstance(self.items, dict)
        return self.items

    def frozen(self) -> Mapping[_Key, _Item]:
        return MappingProxyType(self.items) if isinstance(self.items, dict) else self.items


class _Draft:
    """An image in the making. An image for each of many new topics would cost memory by the square of their number."""

    def __init__(self, image: MetadataImage) -> None:
        self._position = image.position
        self._cluster_id = image.cluster_id
        self._brokers = _Table(image.brokers)
        self._topics = _Table(image.topics)
        self._topic_names = _Table(image.topic_names)
        self._broker_configs = _Table(image.broker_configs)
        self._next_producer_id = image.next_producer_id
        self._partition_count = image.partition_count
        self._version = image.version
        self._highest_leader_epoch = image.highest_leader_epoch
        self._acls = image.acls
        self._client_quotas = _Table(image.client_quotas)
        self._users = _Table(image.users)
        self._delegation_tokens = _Table(image.delegation_tokens)
        self._states: dict[str, list[PartitionState]] = {}

    def image(self) -> MetadataImage:
        self._set_changed_partitions()
        return MetadataImage(
            sequence=self._position.sequence,
            digest=self._position.digest,
            cluster_id=self._cluster_id,
            brokers=self._brokers.frozen(),
            topics=self._topics.frozen(),
            topic_names=self._topic_names.frozen(),
            broker_configs=self._broker_configs.frozen(),
            next_producer_id=self._next_producer_id,
            partition_count=self._partition_count,
            version=self._version,
            highest_leader_epoch=self._highest_leader_epoch,
            acls=self._acls,
            client_quotas=self._client_quotas.frozen(),
            users=self._users.frozen(),
            delegation_tokens=self._delegation_tokens.frozen(),
        )

    def apply(self, change: Change, position: Position) -> None:
        last = self._position.sequence
        if position.sequence != last + 1:
            raise MetadataCorruptError(f"metadata change {position.sequence} came after {last}: changes are missing")
        self._position = position
        if type(change) is PartitionChanged:
            self._partition_changed(change)
            return
        self._set_changed_partitions()
        match change:
            case ClusterCreated(cluster_id=cluster_id):
                self._cluster_id = cluster_id
            case BrokerRegistered():
                registered = {name: getattr(change, name) for name in _REGISTERED}
                self._brokers.writable()[change.node_id] = BrokerImage(**registered, epoch=position.sequence)
            case BrokerFenced() | BrokerUnfenced():
                broker = self._current(change)
                self._brokers.writable()[change.node_id] = replace(broker, is_fenced=isinstance(change, BrokerFenced))
            case BrokerStopping():
                self._brokers.writable()[change.node_id] = replace(self._current(change), is_stopping=True)
            case BrokerFull():
                self._brokers.writable()[change.node_id] = replace(self._current(change), is_full=change.is_full)
            case BrokerUnregistered():
                del self._brokers.writable()[self._current(change).node_id]
                self._broker_configs.writable().pop(change.node_id, None)
            case TopicCreated():
                topic = TopicImage(change.name, change.topic_id, change.partitions, _frozen(change.configs))
                self._saw_epochs(change.partitions)
                self._set_topic(topic)
                self._topic_names.writable()[topic.topic_id] = topic.name
            case TopicDeleted():
                gone = self._existing(change.name, change.topic_id)
                del self._topics.writable()[gone.name]
                self._topic_names.writable().pop(gone.topic_id, None)
                self._partition_count -= len(gone.partitions)
            case PartitionsAdded():
                topic = self._existing(change.name, change.topic_id)
                if change.first != len(topic.partitions):
                    raise MetadataCorruptError(f"partitions of {topic.name} were added at {change.first}")
                self._set_topic(replace(topic, partitions=topic.partitions + change.partitions))
                self._saw_epochs(change.partitions)
            case ConfigsChanged():
                self._configs_changed(change)
            case ProducerIdsAllocated():
                self._next_producer_id = change.first + change.count
            case MetadataVersionRaised():
                self._version = _readable(change.version)
            case AclsChanged():
                self._acls_changed(change)
            case ClientQuotasChanged():
                self._client_quotas_changed(change)
            case CredentialsChanged():
                self._credentials_changed(change)
            case DelegationTokensChanged():
                self._delegation_tokens_changed(change)

    def _current(
        self, change: BrokerFenced | BrokerUnfenced | BrokerStopping | BrokerFull | BrokerUnregistered
    ) -> BrokerImage:
        broker = self._brokers.items.get(change.node_id)
        if broker is None or broker.epoch != change.epoch:
            known = "which never registered" if broker is None else f"whose broker epoch is {broker.epoch}"
            raise MetadataCorruptError(
                f"a change is about node {change.node_id} with the broker epoch {change.epoch}, {known}"
            )
        return broker

    def _existing(self, name: str, topic_id: TopicId) -> TopicImage:
        topic = self._topics.items.get(name)
        if topic is None or topic.topic_id != topic_id:
            raise MetadataCorruptError(
                f"a change is about topic {name} ({format_topic_id(topic_id)}), which is not there"
            )
        return topic

    def _set_topic(self, topic: TopicImage) -> None:
        before = self._topics.items.get(topic.name)
        self._partition_count += len(topic.partitions) - (len(before.partitions) if before is not None else 0)
        self._topics.writable()[topic.name] = topic

    def _partition_changed(self, change: PartitionChanged) -> None:
        """Note a state. Topics get theirs together: when a node fails, thousands of a topic's partitions change."""
        topic = self._existing(change.name, change.topic_id)
        states = self._states.get(topic.name)
        if states is None:
            states = self._states[topic.name] = list(topic.partitions)
        before = states[change.partition]
        if change.state.partition_epoch != before.partition_epoch + 1:
            raise MetadataCorruptError(
                f"{topic.name}-{change.partition} goes from partition epoch {before.partition_epoch} "
                f"to {change.state.partition_epoch}"
            )
        states[change.partition] = change.state
        self._saw_epochs((change.state,))

    def _saw_epochs(self, states: Iterable[PartitionState]) -> None:
        self._highest_leader_epoch = max(self._highest_leader_epoch, _highest_leader_epoch(states))

    def _set_changed_partitions(self) -> None:
        for name, states in self._states.items():
            self._set_topic(replace(self._topics.items[name], partitions=tuple(states)))
        self._states.clear()

    def _acls_changed(self, change: AclsChanged) -> None:
        if not self._acls.isdisjoint(change.added) or not self._acls.issuperset(change.removed):
            raise MetadataCorruptError("a change adds an ACL that is there already, or removes one that is not there")
        self._acls = self._acls.difference(change.removed).union(change.added)

    def _client_quotas_changed(self, change: ClientQuotasChanged) -> None:
        quotas = self._client_quotas.writable()
        for entity, values in ((each.entity, each.values) for each in change.quotas):
            before = quotas.get(entity, {})
            if any(value is None and key not in before for key, value in values.items()):
                raise MetadataCorruptError(f"a change removes a quota of {entity} that is not there")
            after = {key: value for key, value in {**before, **values}.items() if value is not None}
            if after:
                quotas[entity] = MappingProxyType(after)
            else:
                quotas.pop(entity, None)

    def _credentials_changed(self, change: CredentialsChanged) -> None:
        users = self._users.writable()
        for user, mechanism in change.removed:
            left = tuple(each for each in users.get(user, ()) if each.mechanism != mechanism)
            if len(left) == len(users.get(user, ())):
                raise MetadataCorruptError(f"a change removes a password of user {user!r} that is not there")
            users[user] = left
            if not left:
                del users[user]
        for user, verifier in change.upserted:
            others = (each for each in users.get(user, ()) if each.mechanism != verifier.mechanism)
            users[user] = tuple(sorted((*others, verifier), key=lambda each: each.mechanism))

    def _delegation_tokens_changed(self, change: DelegationTokensChanged) -> None:
        tokens = self._delegation_tokens.writable()
        for token_id in change.removed:
            if tokens.pop(token_id, None) is None:
                raise MetadataCorruptError(f"a change removes the delegation token {token_id!r}, which is not there")
        tokens.update((token.token_id, token) for token in change.stored)

    def _configs_changed(self, change: ConfigsChanged) -> None:
        if change.resource == TOPIC_RESOURCE:
            topic = self._topics.items.get(change.name)
            if topic is None:
                raise MetadataCorruptError(f"a change of configs is about topic {change.name}, which is not there")
            self._set_topic(replace(topic, configs=_changed(topic.configs, change.values)))
            return
        node_id = int(change.name)
        configs = _changed(self._broker_configs.items.get(node_id, {}), change.values)
        self._broker_configs.writable()[node_id] = configs


EMPTY_IMAGE: Final = MetadataImage(
    sequence=START.sequence,
    digest=START.digest,
    cluster_id="",
    brokers=MappingProxyType({}),
    topics=MappingProxyType({}),
    topic_names=MappingProxyType({}),
    broker_configs=MappingProxyType({}),
    next_producer_id=0,
    partition_count=0,
)


def encode_image(image: MetadataImage) -> str:
    """Return the snapshot of an image: JSON that `decode_image` reads."""
    return to_json(
        {
            "format": 1,
            "sequence": image.sequence,
            "cluster_id": image.cluster_id,
            "next_producer_id": image.next_producer_id,
            **({"version": image.version} if image.version > 1 else {}),
            "brokers": [encode_fields(broker, _UNWRITTEN) for broker in image.brokers.values()],
            "topics": [
                [topic.name, format_topic_id(topic.topic_id), encode_value(topic.partitions), dict(topic.configs)]
                for topic in image.topics.values()
            ],
            "broker_configs": {str(node_id): dict(configs) for node_id, configs in image.broker_configs.items()},
            **({"acls": encode_value(tuple(sorted(image.acls)))} if image.acls else {}),
            **(
                {"client_quotas": [encode_value(QuotaAlteration(*each)) for each in sorted_quotas(image.client_quotas)]}
                if image.client_quotas
                else {}
            ),
            **({"users": _encoded_users(image.users)} if image.users else {}),
            **(
                {"delegation_tokens": encode_value(tuple(image.delegation_tokens.values()))}
                if image.delegation_tokens
                else {}
            ),
        }
    )


def decode_image(payload: str, digest: str) -> MetadataImage:
    """Return the image of a snapshot. Raises `MetadataCorruptError`.

    digest: of the last change in it, which the database has beside the snapshot
    """
    try:
        data: dict[str, Any] = json.loads(payload)
        if data["format"] != 1:
            raise ValueError(f"its format {data['format']} is unknown: it needs a newer semel")
        version = _readable(data.get("version", 1))
        topics = [
            TopicImage(name, parse_topic_id(topic_id), tuple(map(decode_partition, states)), _frozen(configs))
            for name, topic_id, states, configs in data["topics"]
        ]
        return MetadataImage(
            sequence=data["sequence"],
            digest=digest,
            cluster_id=data["cluster_id"],
            brokers=_frozen(
                {fields["node_id"]: BrokerImage(**decode_registration(fields)) for fields in data["brokers"]}
            ),
            topics=_frozen({topic.name: topic for topic in topics}),
            topic_names=_frozen({topic.topic_id: topic.name for topic in topics}),
            broker_configs=_frozen({int(key): _frozen(configs) for key, configs in data["broker_configs"].items()}),
            next_producer_id=data["next_producer_id"],
            partition_count=sum(len(topic.partitions) for topic in topics),
            version=version,
            highest_leader_epoch=max((_highest_leader_epoch(topic.partitions) for topic in topics), default=0),
            acls=frozenset(map(decode_acl, data.get("acls", ()))),
            client_quotas=_frozen(dict(map(_client_quota, data.get("client_quotas", ())))),
            users=_decoded_users(map(decode_upsertion, data.get("users", ()))),
            delegation_tokens=_frozen(
                {each.token_id: each for each in map(decode_delegation_token, data.get("delegation_tokens", ()))}
            ),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise MetadataCorruptError(f"a snapshot of the metadata can't be read: {error}") from error


def _client_quota(stored: list[Any]) -> tuple[QuotaEntity, Mapping[str, float]]:
    quota = decode_quota(stored)
    return quota.entity, _frozen({key: value for key, value in quota.values.items() if value is not None})


def _encoded_users(users: Mapping[str, tuple[Verifier, ...]]) -> Any:
    return [encode_value(Upsertion(name, each)) for name in sorted(users) for each in users[name]]


def _decoded_users(passwords: Iterable[Upsertion]) -> Mapping[str, tuple[Verifier, ...]]:
    users: dict[str, tuple[Verifier, ...]] = {}
    for name, verifier in passwords:
        users[name] = (*users.get(name, ()), verifier)
    return MappingProxyType(users)


def _highest_leader_epoch(states: Iterable[PartitionState]) -> int:
    return max((state.leader_epoch for state in states), default=0)


def _readable(version: int) -> int:
    """Return a version of the metadata. Raises `MetadataCorruptError` for one that this Semel does not read."""
    if version > METADATA_VERSION:
        raise MetadataCorruptError(
            f"the metadata has version {version}, and this semel reads up to {METADATA_VERSION}: all nodes of the "
            "cluster ran a newer semel, so install that one here"
        )
    return version


def _frozen(items: Mapping[_Key, _Item]) -> Mapping[_Key, _Item]:
    return MappingProxyType(dict(items))


def _changed(configs: Mapping[str, str], values: Mapping[str, str | None]) -> Mapping[str, str]:
    merged = {**configs, **values}
    return MappingProxyType({name: value for name, value in merged.items() if value is not None})
