"""What is asked and answered about the cluster: its nodes, topics, and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from semel.protocol.api.topics import TopicDescription
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node with the addresses that clients are told."""

    node_id: int
    kafka_host: str
    kafka_port: int
    grpc_host: str
    grpc_port: int
    rack: str = ""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`controller_id` is -1 where no node holds the controller's lease as far as this one knows."""

    cluster_id: str
    controller_id: int
    nodes: tuple[NodeDescription, ...]


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The outcome for one topic of a request. `topic` is there where the request made or found it."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    topic: TopicDescription | None = None
    topic_id: TopicId | None = None


class ResourceType(Enum):
    """What can be configured. The values are Kafka's."""

    TOPIC = 2
    BROKER = 4


ALL_NODES = "*"
"""The resource name of the settings that all nodes of the cluster have unless they have their own."""


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that counts where no stronger one is given. Secrets are empty."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as it stands.

    `source` is DEFAULT, FILE, ENVIRONMENT, FLAG, DYNAMIC_DEFAULT_BROKER, DYNAMIC_BROKER or DYNAMIC_TOPIC. `synonyms`
    are all values that were given, strongest first: the first of them is in force.
    """

    name: str
    value: str
    source: str
    is_sensitive: bool
    is_read_only: bool
    documentation: str
    type: str
    synonyms: tuple[ConfigSynonym, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    """Set some values and put others back to their default; the rest stays (KIP-339).

    `append` and `subtract` add to and take from settings that are lists. With `replace` the rest does not stay, but
    goes back to the default too.
    """

    resource_type: ResourceType
    resource_name: str
    values: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    validate_only: bool = False
    append: Mapping[str, str] = field(default_factory=dict)
    subtract: Mapping[str, str] = field(default_factory=dict)
    replace: bool = False
