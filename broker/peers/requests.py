"""What a node asks another one: each request knows its bytes, those of its answer, and which connection it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from semel.broker.peers.handshake import Role
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TxnMarker
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey, Buffer
from semel.protocol.kafka.fetch import FETCH_MAX_VERSION, FetchRequest, FetchResponse
from semel.protocol.kafka.node_messages import (
    ADD_PARTITIONS_TO_TXN_VERSION,
    WRITE_TXN_MARKERS_VERSION,
    Errors,
    build_markers,
    build_transactions,
    parse_marker_results,
    parse_transaction_results,
)
from semel.protocol.kafka.producers_before import (
    DESCRIBE_PRODUCERS_VERSION,
    ProducersBefore,
    ProducersBeforeAnswer,
)
from semel.protocol.kafka.replica_ends import REPLICA_ENDS_VERSION, EpochAndEnd, build_ends_asked, parse_ends
from semel.protocol.kafka.wire import WireFormatError

Response_co = TypeVar("Response_co", covariant=True)

REPLICA_FETCH_VERSION_MIN = 17
"""The follower says in it which directory a partition is in (KIP-858)."""


class PeerRequest(Protocol[Response_co]):
    """One request to another node, of the versions from `version_min` to `version_max`."""

    key: ClassVar[ApiKey]
    version_min: ClassVar[int]
    version_max: ClassVar[int]
    role: ClassVar[Role]

    def body(self, version: int) -> Buffer: ...

    def read(self, body: memoryview, version: int) -> Response_co:
        """Return the answer. Raises `WireFormatError`."""
        ...

    @property
    def waits_ms(self) -> int:
        """How long the other node may wait before it begins to answer: that is no silence."""
        ...


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write markers into partitions that the other node leads. Answered with each marker's errors, in order."""

    markers: Sequence[TxnMarker]

    key: ClassVar = ApiKey.WRITE_TXN_MARKERS
    version_min: ClassVar = WRITE_TXN_MARKERS_VERSION
    version_max: ClassVar = WRITE_TXN_MARKERS_VERSION
    role: ClassVar = Role.MARKERS
    waits_ms: ClassVar = 0

    def body(self, version: int) -> Buffer:
        return build_markers(self.markers)

    def read(self, body: memoryview, version: int) -> Sequence[Errors]:
        results = parse_marker_results(body)
        if [producer_id for producer_id, _ in results] != [each.producer.producer_id for each in self.markers]:
            raise WireFormatError("the answer is about other markers than were sent")
        return [errors for _, errors in results]


@dataclass(frozen=True, slots=True)
class AskTransactions:
    """Add partitions to transactions that the other node coordinates, or verify them (T8). Answers in order."""

    requests: Sequence[AddPartitionsToTxnRequest]

    key: ClassVar = ApiKey.ADD_PARTITIONS_TO_TXN
    version_min: ClassVar = ADD_PARTITIONS_TO_TXN_VERSION
    version_max: ClassVar = ADD_PARTITIONS_TO_TXN_VERSION
    role: ClassVar = Role.REQUESTS
    waits_ms: ClassVar = 0

    def body(self, version: int) -> Buffer:
        return build_transactions(self.requests)

    def read(self, body: memoryview, version: int) -> Sequence[Errors]:
        results = parse_transaction_results(body)
        if [name for name, _ in results] != [each.transactional_id for each in self.requests]:
            raise WireFormatError("the answer is about other transactions than were asked about")
        return [errors for _, errors in results]


@dataclass(frozen=True, slots=True)
class FetchAsReplica:
    """Fetch what follows in partitions that the other node leads: `request.replica_id` is this node."""

    request: FetchRequest

    key: ClassVar = ApiKey.FETCH
    version_min: ClassVar = REPLICA_FETCH_VERSION_MIN
    version_max: ClassVar = FETCH_MAX_VERSION
    role: ClassVar = Role.FETCHES

    @property
    def waits_ms(self) -> int:
        return max(self.request.max_wait_ms, 0)

    def body(self, version: int) -> Buffer:
        return self.request.build(version)

    def read(self, body: memoryview, version: int) -> FetchResponse:
        return FetchResponse.parse(body, version)


@dataclass(frozen=True, slots=True)
class AskProducers:
    """Ask who had written to a partition that the other node leads before an offset: a page of them."""

    asked: ProducersBefore

    key: ClassVar = ApiKey.DESCRIBE_PRODUCERS
    version_min: ClassVar = DESCRIBE_PRODUCERS_VERSION
    version_max: ClassVar = DESCRIBE_PRODUCERS_VERSION
    role: ClassVar = Role.REQUESTS
    waits_ms: ClassVar = 0

    def body(self, version: int) -> Buffer:
        return self.asked.build()

    def read(self, body: memoryview, version: int) -> ProducersBeforeAnswer:
        return ProducersBeforeAnswer.parse(body, self.asked.tp)


@dataclass(frozen=True, slots=True)
class AskReplicaEnds:
    """Ask where the other node's logs end of partitions that have no leader, each with its leader epoch (R4)."""

    node_id: int
    partitions: Mapping[TopicPartition, int]

    key: ClassVar = ApiKey.OFFSET_FOR_LEADER_EPOCH
    version_min: ClassVar = REPLICA_ENDS_VERSION
    version_max: ClassVar = REPLICA_ENDS_VERSION
    role: ClassVar = Role.REQUESTS
    waits_ms: ClassVar = 0

    def body(self, version: int) -> Buffer:
        return build_ends_asked(self.node_id, self.partitions)

    def read(self, body: memoryview, version: int) -> Mapping[TopicPartition, EpochAndEnd]:
        return parse_ends(body)
