"""What can happen to the cluster's metadata: the kinds of entries in the change log, with their JSON form.

The log is for ever, so a kind is never changed in a way that an older entry would be misread: fields are added with
defaults, or a new kind is made.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from semel.protocol.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.ids import TopicId, format_topic_id, parse_topic_id
from semel.protocol.quotas import CLIENT_ID, IP, USER, QuotaAlteration, QuotaEntity
from semel.protocol.scram import KEY_BYTES, Deletion, Upsertion, Verifier


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who has a partition. `partition_epoch` counts the changes of this state: changes compare and set on it (R5).

    leader: a node's id, or `NO_LEADER`: no replica that has all committed records is alive
    elr: replicas out of `isr` that have every committed record all the same, because none was committed since they
        left: `isr` has had fewer members than min.insync.replicas ever since (KIP-966, eligible leader replicas)
    last_known_elr: replicas that were in `isr` or `elr` until they restarted without their last records: where nobody
        else is left, an operator begins with these
    adding, removing: of `replicas`, while they are being moved (KIP-455): those that the move has added, and those that
        leave once the others are in sync. Without the first they are those from before, without the second those to be
    is_switching: it is still on the disks of its replicas, though its topic is diskless: its leader has yet to copy it
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_switching: bool = False

    @property
    def is_moving(self) -> bool:
        """Whether its replicas are being moved."""
        return bool(self.adding or self.removing)

    @property
    def replicas_before(self) -> tuple[int, ...]:
        """The replicas from before the move, which a cancelled one leaves."""
        return tuple(each for each in self.replicas if each not in self.adding) if self.adding else self.replicas

    @property
    def replicas_after(self) -> tuple[int, ...]:
        """The replicas that there are to be, the preferred leader first."""
        return tuple(each for each in self.replicas if each not in self.removing) if self.removing else self.replicas

    @property
    def replication_factor(self) -> int:
        """How many replicas it has; until a move is complete, as many as before it."""
        return len(self.replicas_before)


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    cluster_id: str


class Endpoint(NamedTuple):
    """Where clients reach a listener.

    listener: its name, in lower case
    """

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A node started. Its broker epoch is the number of this entry, and it is not fenced.

    incarnation: new for every start
    directory_id: of its data directory
    peer_host, peer_port: where the other nodes reach it, the host with `tls://` before it where it encrypts; port 0
                          where it does not listen to them
    is_clean: it was stopped, not killed, in its former start: its logs have all that they had then
    durability: "disk" if it counts a record as its own only once that is synced, "os" if the page cache is enough
    secret_mark: the same for all nodes that have the same cluster secret; "" without one
    metadata_version: the newest that the node reads and writes
    kafka_host, kafka_port, grpc_host, grpc_port: where clients reach its main listener of each protocol
    kafka_listeners, grpc_listeners: where they reach its listeners that have names, the main one first; none where
                                     it has the one that is named `default`. From `LISTENERS_VERSION` on
    has_store: False where it has no remote storage. From `STORES_VERSION` on; before it, nobody said so
    """

    node_id: int
    incarnation: str
    directory_id: str
    kafka_host: str
    kafka_port: int
    grpc_host: str
    grpc_port: int
    rack: str = ""
    peer_host: str = ""
    peer_port: int = 0
    is_clean: bool = True
    durability: str = "disk"
    secret_mark: str = ""
    metadata_version: int = 1
    kafka_listeners: tuple[Endpoint, ...] = ()
    grpc_listeners: tuple[Endpoint, ...] = ()
    has_store: bool = True


@dataclass(frozen=True, slots=True)
class BrokerFenced:
    """A node is taken for dead: it is no replica's leader and in no in-sync set until it is unfenced, or registers.

    epoch: its broker epoch, so that a node that has registered meanwhile is not fenced for what its former self did
    """

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerUnfenced:
    """A fenced node gave a sign of life under the same broker epoch."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerStopping:
    """A node is about to stop: it is given nothing to lead any more, and joins no in-sync set, until it registers.

    epoch: its broker epoch
    """

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerFull:
    """A node's disk has no room for producers, or has some again: others lead in its place until then.

    epoch: its broker epoch. A node that registers has room, until it says otherwise
    """

    node_id: int
    epoch: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    """A node is gone for good. It was fenced, and had no replicas; its settings go with it.

    epoch: its broker epoch. A process that still runs under it is over
    """

    node_id: int
    epoch: int


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
class MetadataVersionRaised:
    """From now on what older versions do not read may be written: all nodes that there are read it."""

    version: int


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """The ids from `first` to `first + count - 1` belong to one node from now on, used or not."""

    node_id: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AclsChanged:
    """ACLs that there are from now on, and such that there are no more: none of the former existed, all others did."""

    added: tuple[Acl, ...] = ()
    removed: tuple[Acl, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientQuotasChanged:
    """Quotas of clients that are set, or removed where their value is None: none of those is missing before."""

    quotas: tuple[QuotaAlteration, ...]


@dataclass(frozen=True, slots=True)
class CredentialsChanged:
    """Users' passwords that there are from now on, each in place of the former one for its mechanism, and such that
    there are no more: all of these did exist. They are secrets: no text of this has them (KIP-554).
    """

    upserted: tuple[Upsertion, ...] = ()
    removed: tuple[Deletion, ...] = ()


@dataclass(frozen=True, slots=True)
class DelegationTokensChanged:
    """Delegation tokens that there are from now on, each in place of the former one with its id, and ids of such that
    there are no more: all of these did exist. What proves a token is made of its id and the nodes' secret, and is not
    here.
    """

    stored: tuple[DelegationToken, ...] = ()
    removed: tuple[str, ...] = ()


Change: TypeAlias = (
    ClusterCreated
    | BrokerRegistered
    | BrokerFenced
    | BrokerFull
    | BrokerStopping
    | BrokerUnfenced
    | BrokerUnregistered
    | TopicCreated
    | TopicDeleted
    | PartitionsAdded
    | PartitionChanged
    | ConfigsChanged
    | ProducerIdsAllocated
    | MetadataVersionRaised
    | AclsChanged
    | ClientQuotasChanged
    | CredentialsChanged
    | DelegationTokensChanged
)

KINDS: Final[Mapping[str, type[Change]]] = {
    "cluster-created": ClusterCreated,
    "broker-registered": BrokerRegistered,
    "broker-fenced": BrokerFenced,
    "broker-unfenced": BrokerUnfenced,
    "broker-stopping": BrokerStopping,
    "broker-full": BrokerFull,
    "broker-unregistered": BrokerUnregistered,
    "topic-created": TopicCreated,
    "topic-deleted": TopicDeleted,
    "partitions-added": PartitionsAdded,
    "partition-changed": PartitionChanged,
    "configs-changed": ConfigsChanged,
    "producer-ids-allocated": ProducerIdsAllocated,
    "metadata-version-raised": MetadataVersionRaised,
    "acls-changed": AclsChanged,
    "client-quotas-changed": ClientQuotasChanged,
    "credentials-changed": CredentialsChanged,
    "delegation-tokens-changed": DelegationTokensChanged,
}
_KIND_OF: Final[Mapping[type[Change], str]] = {made: kind for kind, made in KINDS.items()}

METADATA_VERSION: Final = 10
"""The newest version of the metadata that this Semel reads and writes.

What an older version would not read is written only where the image's `version` is high enough. So a change of a new
kind, or a field that is added to one, raises this number; `MetadataVersionRaised` follows once all nodes know it.
"""
MOVES_VERSION: Final = 2
"""From this version on a partition's state tells which replicas are being moved."""
LEAVING_VERSION: Final = 2
"""From this version on nodes may be cordoned and unregistered."""
THROTTLES_VERSION: Final = 2
"""From this version on replicas may be throttled: nodes read these settings of topics and nodes."""
FULL_DISKS_VERSION: Final = 3
"""From this version on nodes say whether their disks have room."""
RUNS_NOTED_VERSION: Final = 4
"""Nodes that know this version note each of their runs in their data directory, before they register."""
ACLS_VERSION: Final = 4
"""From this version on there are ACLs."""
CLIENT_QUOTAS_VERSION: Final = 5
"""From this version on there are client quotas."""
CREDENTIALS_VERSION: Final = 5
"""From this version on there are users' passwords."""
DELEGATION_TOKENS_VERSION: Final = 6
"""From this version on there are delegation tokens."""
REMOTE_STORAGE_VERSION: Final = 7
"""From this version on topics may have remote storage: nodes read these settings of topics and nodes."""
DISKLESS_VERSION: Final = 8
"""From this version on topics may be diskless: nodes read these settings, and elect any node to lead them."""
SWITCHES_VERSION: Final = 9
"""From this version on topics may become diskless: a partition's state tells that its leader has yet to copy it."""
COMPACTED_SWITCHES_VERSION: Final = 10
"""From this version on compacted topics may become diskless, those of the coordinators among them."""
STORES_VERSION: Final = 9
"""From this version on a node says so where it has no remote storage."""
LISTENERS_VERSION: Final = 6
"""From this version on nodes may have several listeners of one protocol, with names."""

ADDED_TO_REGISTRATIONS: Final = frozenset(
    {
        "peer_host",
        "peer_port",
        "is_clean",
        "durability",
        "secret_mark",
        "metadata_version",
        "kafka_listeners",
        "grpc_listeners",
        "has_store",
    }
)
"""Fields that older versions did not write."""


def defaults_of(made: type[Any], names: Iterable[str]) -> Mapping[str, object]:
    """Return the defaults of fields of a dataclass."""
    return MappingProxyType({one.name: one.default for one in fields(made) if one.name in names})


_UNWRITTEN: Final[Mapping[type[Change], Mapping[str, object]]] = {
    BrokerRegistered: defaults_of(BrokerRegistered, ADDED_TO_REGISTRATIONS)
}
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class MetadataCorruptError(ValueError):
    """An entry of the change log or a snapshot can't be read."""


def encode_change(change: Change) -> tuple[str, str]:
    """Return the kind and the JSON payload of a change."""
    return _KIND_OF[type(change)], to_json(encode_fields(change, _UNWRITTEN.get(type(change), _NOTHING)))


def encode_fields(item: Any, unwritten: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a dataclass with slots as JSON. Those in `unwritten` that have the value there are left out.

    So what an older version would have written too has the same bytes still: digests are made of them.
    """
    values = {name: getattr(item, name) for name in item.__slots__}
    return {
        name: encode_value(value) for name, value in values.items() if name not in unwritten or value != unwritten[name]
    }


def decode_change(kind: str, payload: str) -> Change:
    """Return the change that `encode_change` wrote. Raises `MetadataCorruptError`."""
    made = KINDS.get(kind)
    if made is None:
        raise MetadataCorruptError(f"the metadata has a change of the unknown kind {kind!r}: it needs a newer semel")
    try:
        fields: dict[str, Any] = json.loads(payload)
        unknown = sorted(fields.keys() - made.__slots__)
        if unknown:
            raise ValueError(f"it has the unknown field {unknown[0]!r}: that needs a newer semel")
        if "topic_id" in fields:
            fields["topic_id"] = parse_topic_id(fields["topic_id"])
        if "partitions" in fields:
            fields["partitions"] = tuple(decode_partition(state) for state in fields["partitions"])
        if "state" in fields:
            fields["state"] = decode_partition(fields["state"])
        if made is BrokerRegistered:
            fields = decode_registration(fields)
        if made is AclsChanged:
            fields = {name: tuple(map(decode_acl, acls)) for name, acls in fields.items()}
        if made is ClientQuotasChanged:
            fields = {name: tuple(map(decode_quota, quotas)) for name, quotas in fields.items()}
        if made is CredentialsChanged:
            fields = {
                "upserted": tuple(map(decode_upsertion, fields.get("upserted", ()))),
                "removed": tuple(Deletion(*each) for each in fields.get("removed", ())),
            }
        if made is DelegationTokensChanged:
            fields = {
                "stored": tuple(map(decode_delegation_token, fields.get("stored", ()))),
                "removed": tuple(fields.get("removed", ())),
            }
        return made(**fields)
    except (TypeError, ValueError, KeyError) as error:
        raise MetadataCorruptError(f"a change of kind {kind} in the metadata can't be read: {error}") from error


def encode_value(value: Any) -> Any:
    """Return the JSON form of a field: topic ids as Kafka's text, partitions as arrays (there are many)."""
    match value:
        case PartitionState():
            state = [value.leader, value.leader_epoch, value.replicas, value.isr, value.partition_epoch]
            if value.is_switching:
                return [*state, value.elr, value.last_known_elr, value.adding, value.removing, 1]
            if value.is_moving:
                return [*state, value.elr, value.last_known_elr, value.adding, value.removing]
            return [*state, value.elr, value.last_known_elr] if value.elr or value.last_known_elr else state
        case QuotaAlteration():
            return [dict(value.entity.parts), dict(value.values)]
        case Verifier():
            keys = (value.salt, value.stored_key, value.server_key)
            return [value.mechanism, value.iterations, *(b64encode(key).decode() for key in keys)]
        case DelegationToken():
            return [getattr(value, name) for name in DelegationToken.__slots__]
        case tuple():
            return [encode_value(item) for item in value]
        case Mapping():
            return dict(value)
        case str() | int() | None:
            return value
        case _:
            return format_topic_id(value)


def decode_partition(state: list[Any]) -> PartitionState:
    """Return the state that `encode_value` wrote: lists that are empty at its end are left out, two at a time."""
    leader, leader_epoch, replicas, isr, partition_epoch, *more = state
    if len(more) not in (0, 2, 4, 5):
        raise ValueError(f"the state of a partition has {len(state)} fields")
    elr, last_known_elr, adding, removing = map(tuple, (*more[:4], *([],) * (4 - len(more)))[:4])
    is_switching = len(more) == 5 and bool(more[4])
    return PartitionState(
        leader, leader_epoch, tuple(replicas), tuple(isr), partition_epoch,
        elr, last_known_elr, adding, removing, is_switching,
    )  # fmt: skip


def decode_registration(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a registration, or of a node's image, that `encode_fields` wrote."""
    listeners = {
        name: tuple(Endpoint(*each) for each in fields[name])
        for name in ("kafka_listeners", "grpc_listeners")
        if name in fields
    }
    return {**fields, **listeners}


def decode_acl(values: list[Any]) -> Acl:
    """Return the ACL that `encode_value` wrote."""
    resource_type, name, pattern, principal, host, operation, permission = values
    return Acl(
        ResourceType(resource_type),
        name,
        PatternType(pattern),
        principal,
        host,
        AclOperation(operation),
        AclPermission(permission),
    )


def decode_quota(stored: list[Any]) -> QuotaAlteration:
    """Return the quotas of an entity that `encode_value` wrote."""
    parts, values = stored
    entity = QuotaEntity(parts.pop(USER, None), parts.pop(CLIENT_ID, None), parts.pop(IP, None))
    if parts:
        raise ValueError(f"a quota is for {', '.join(sorted(parts))}, which is unknown")
    return QuotaAlteration(entity, values).check()


def decode_upsertion(values: list[Any]) -> Upsertion:
    """Return the user's password that `encode_value` wrote. No error of it repeats a key."""
    user, verifier = values
    mechanism, iterations, *keys = verifier
    salt, stored_key, server_key = (b64decode(key, validate=True) for key in keys)
    if {len(stored_key), len(server_key)} != {KEY_BYTES.get(mechanism)} or not isinstance(iterations, int):
        raise ValueError("the verifier of a password has another form")
    return Upsertion(user, Verifier(mechanism, iterations, salt, stored_key, server_key))


def decode_delegation_token(values: list[Any]) -> DelegationToken:
    """Return the delegation token that `encode_value` wrote."""
    token_id, owner, requester, renewers, issued, expires, last, ends_with_user = values
    texts, times = (token_id, owner, requester, *renewers), (issued, expires, last)
    is_right = isinstance(renewers, list) and isinstance(ends_with_user, bool)
    if not (is_right and all(isinstance(each, str) for each in texts) and all(type(each) is int for each in times)):
        raise ValueError("a delegation token has another form")
    return DelegationToken(token_id, owner, requester, tuple(renewers), *times, ends_with_user)


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
