"""What the machine wants done, and what the shell tells it back: plain data.

Effects leave the shard only once the records they rest on are committed (T3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import OpenSharedRequest
from semel.protocol.api.transactions import EndTxnRequest, TxnMarker
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.trace_context import TransactionTrace
from semel.txn_coordinator.state import DecisionCause, TransactionMetadata


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write `marker` to its partitions until each has it, then report `MarkersWritten`.

    `decided_ms` names the decision, together with the transactional id: no later one has the same.
    """

    transactional_id: str
    decided_ms: int
    marker: TxnMarker
    trace: TransactionTrace | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """A traced transaction was decided, and that is durable: for its span (E4). Comes before its `SendMarkers`."""

    txn: TransactionMetadata
    cause: DecisionCause


@dataclass(frozen=True, slots=True)
class TransactionCompleted:
    """Nothing is pending for this id any more: callers that wait for that may try again.

    `committed` and `duration_ms` are for the metrics; None: there was nothing to commit or abort.
    """

    transactional_id: str
    committed: bool | None = field(default=None, compare=False)
    duration_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Fenced:
    """An epoch was taken from its holder, and that is durable: for the metrics.

    `timed_out`: nobody has come in the holder's place, the transaction's time was over (T9).
    """

    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """The report: each of `partitions` has the decision's marker below its high watermark, or is gone for good."""

    transactional_id: str
    decided_ms: int
    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ProducerIdNeeded:
    """The type of `PRODUCER_ID_NEEDED`: an answer that asks the shell to retry `WithProducerId`."""


PRODUCER_ID_NEEDED: Final = ProducerIdNeeded()


@dataclass(frozen=True, slots=True)
class WithProducerId:
    """A request together with a producer id that nobody else has (machines draw none themselves)."""

    request: InitProducerIdRequest | EndTxnRequest | OpenSharedRequest
    producer_id: int
