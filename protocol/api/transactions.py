"""What the transaction coordinator is asked and answers (KIP-98, KIP-360, KIP-664, KIP-890).

A refusal of a whole request is a `SemelError`; errors of single partitions are in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.commit_decisions import NO_SEQUENCE
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_TIMESTAMP, ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.trace_context import DecisionIds, TraceContext


class TransactionVersion(IntEnum):
    """Which protocol a client speaks: see KIP-890."""

    V0 = 0
    V1 = 1
    """The older protocol: partitions are added explicitly, the epoch stays the same between transactions."""
    V2 = 2
    """An epoch of its own for each transaction; the broker adds partitions at the first append."""


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    """Add partitions to the ongoing transaction, or begin it. With `verify_only`, only ask whether they are in (T8)."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False
    version: TransactionVersion = TransactionVersion.V2
    trace: TraceContext | None = None
    """Where the transaction belongs, if it begins by this: for traces."""
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict, hash=False)
    """Which topics are meant, as far as the caller knows: a name may get another topic (R8)."""


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse:
    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    """With a `token`, a commit is recorded under the transactional id, with its `payload` and `sequence` (T13).

    Where the token was recorded before, the transaction is aborted instead, and the answer says so.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    version: TransactionVersion = TransactionVersion.V2
    token: str = ""
    payload: bytes = b""
    sequence: int = NO_SEQUENCE
    trace: DecisionIds | None = None
    client: ClientOrigin | None = None


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    """`producer` is the id and epoch for the next transaction: bumped, or rotated at the end of the epochs (V2).

    `already_committed`: the token was committed by an earlier transaction, and this one aborted.
    """

    producer: ProducerIdAndEpoch
    already_committed: bool = False


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """Filters are alternatives within, and conjunctive between, themselves; empty means all."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    min_duration_ms: int = -1
    transactional_id_pattern: str = ""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """`last_token`: of the last commit that had a token, decided at `last_commit_ms`; empty and -1 where none is known.

    `state` is of the latest transaction, which may have repeated a token: that one is aborted, and the commit stands.
    """

    transactional_id: str
    producer_id: int
    state: str
    last_token: str = ""
    last_commit_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    """`unreadable`: why ids are missing in it, for each partition of their coordinators that can't be read."""

    transactions: tuple[TransactionListing, ...]
    unknown_states: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeTransactionRequest:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`start_time_ms` is -1 where no transaction is open."""

    transactional_id: str
    state: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    start_time_ms: int
    last_update_ms: int
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class AbortTransactionRequest:
    """An operator's abort of whatever this transactional id has open. The producer is fenced."""

    transactional_id: str
    client: ClientOrigin | None = None


@dataclass(frozen=True, slots=True)
class TxnMarker:
    """One coordinator's decision for one producer, to be written to `partitions`.

    coordinator: the partition of `__transaction_state` whose leader epoch `coordinator_epoch` is; -1 where no
                 coordinator knows the producer, and an operator's abort carries the highest of all.
    topic_ids:   of the topics that are in the transaction, as far as they are known: another topic that was given the
                 name since gets no marker (R8).
    """

    producer: ProducerIdAndEpoch
    coordinator_epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]
    version: TransactionVersion = TransactionVersion.V2
    coordinator: int = -1
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict, hash=False)
