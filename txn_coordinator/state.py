"""The states of a transaction and the only legal moves between them (T1), as data.

Everything that decides whether a move is legal is in this file; `transition_diagram` draws the picture of it for the
documentation, `trigger_table` says there what causes each move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import (
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerIdAndEpoch,
    TopicId,
    TopicPartition,
)
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.trace_context import TransactionTrace

FENCING_EPOCH: Final = MAX_PRODUCER_EPOCH + 1
"""32767: markers carry it when the last epoch ends or is fenced. No producer is ever given it (T10)."""


TWO_PHASE_TIMEOUT_MS: Final = INT32_MAX
"""Stands in the log for "never": the mark of transactions that are decided outside (KIP-939), as in Kafka's."""

TWO_PHASE_EPOCHS_KEPT: Final = 1_000
"""So many epochs a two-phase producer keeps in hand for instances that take over a prepared transaction."""


class TransactionState(IntEnum):
    """The state of a transactional id: its number in Kafka's log schema, and its name in Kafka's tools."""

    label: str

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    DEAD = (6, "Dead")
    """About to be forgotten; its record is a tombstone."""
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")
    """A step inside one decision, on the way from Ongoing to PrepareAbort. Never stored."""

    def __new__(cls, number: int, label: str) -> Self:
        state = int.__new__(cls, number)
        state._value_ = number
        state.label = label
        return state


_STATES_BY_NUMBER: Final = {state.value: state for state in TransactionState}
STATE_NAMES: Final = frozenset(state.label for state in TransactionState)

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""Decided, and markers still under way: the pending work that every request waits for."""

COMPLETED: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

_NO_NAMES: Final[frozenset[str]] = frozenset()

OPEN: Final = PREPARED | {TransactionState.ONGOING}
"""The states in which partitions may hold data of the transaction. Such an id never expires."""

_IDLE: Final = frozenset({TransactionState.EMPTY}) | COMPLETED


@dataclass(frozen=True, slots=True)
class Move:
    """A row of the table of moves: from which states to which, and the requests and events that cause it.

    is_epoch_bump: legal only where each transaction has its own epoch (KIP-890): aborting nothing still bumps the
                   epoch, so that a batch still on its way can't join the next transaction.
    """

    before: frozenset[TransactionState]
    after: TransactionState
    triggers: str
    is_epoch_bump: bool = False


MOVES: Final = (
    Move(_IDLE, TransactionState.EMPTY, "InitProducerId"),
    Move(
        _IDLE,
        TransactionState.ONGOING,
        "AddPartitionsToTxn, AddOffsetsToTxn, or the first batch of a partition (Produce 12)",
    ),
    Move(
        frozenset({TransactionState.ONGOING}),
        TransactionState.ONGOING,
        "the same, for more partitions; InitProducerId that keeps a prepared transaction (KIP-939)",
    ),
    Move(
        frozenset({TransactionState.ONGOING}),
        TransactionState.PREPARE_COMMIT,
        "EndTxn that commits; for a writer, the commit of its shared transaction (T12)",
    ),
    Move(
        frozenset({TransactionState.ONGOING}),
        TransactionState.PREPARE_ABORT,
        "EndTxn that aborts, or whose token has its commit already (T13)",
    ),
    Move(
        frozenset({TransactionState.PREPARE_EPOCH_FENCE}),
        TransactionState.PREPARE_ABORT,
        "the same decision, at once",
    ),
    Move(
        frozenset({TransactionState.PREPARE_COMMIT}),
        TransactionState.COMPLETE_COMMIT,
        "every partition has its marker (T3)",
    ),
    Move(
        frozenset({TransactionState.PREPARE_ABORT}),
        TransactionState.COMPLETE_ABORT,
        "every partition has its marker (T3), or there is none",
    ),
    Move(
        frozenset({TransactionState.ONGOING}),
        TransactionState.PREPARE_EPOCH_FENCE,
        "InitProducerId of the next producer (T5); a timeout (T9); an operator's abort; for a writer, that it leaves "
        "its shared transaction, or is not named in its commit (T12)",
    ),
    Move(
        _IDLE,
        TransactionState.DEAD,
        "`transactional.id.expiration.ms` is over; for a writer, its part in the shared transaction is over",
    ),
    Move(
        _IDLE,
        TransactionState.PREPARE_ABORT,
        "EndTxn that aborts nothing, or commits a token with nothing (T13)",
        is_epoch_bump=True,
    ),
)
"""T1. The legal moves; all others are refused."""


def _predecessors(*, epoch_bump: bool) -> Mapping[TransactionState, frozenset[TransactionState]]:
    found: dict[TransactionState, frozenset[TransactionState]] = {}
    for move in MOVES:
        if move.is_epoch_bump is epoch_bump:
            found[move.after] = found.get(move.after, frozenset()) | move.before
    return MappingProxyType(found)


LEGAL_PREDECESSORS: Final = _predecessors(epoch_bump=False)
"""T1. For each state, the states that it may follow."""

LEGAL_PREDECESSORS_WITH_EPOCH_BUMP: Final = _predecessors(epoch_bump=True)
"""What is legal besides, where each transaction has its own epoch."""


class IllegalTransitionError(FatalError):
    """A move that T1 does not allow was asked for: a broken invariant, never a client's mistake."""


def state_by_number(number: int) -> TransactionState:
    """Return the state that Kafka's log schema gives `number`. Raises `FatalError` for a number it does not have."""
    state = _STATES_BY_NUMBER.get(number)
    if state is None:
        raise FatalError(f"{number} is no state of a transaction", ErrorCode.CORRUPT_MESSAGE)
    return state


def is_legal(before: TransactionState, after: TransactionState, version: TransactionVersion) -> bool:
    """Say whether T1 allows the move from `before` to `after` for a client that speaks `version`."""
    if before in LEGAL_PREDECESSORS[after]:
        return True
    return version >= TransactionVersion.V2 and before in LEGAL_PREDECESSORS_WITH_EPOCH_BUMP.get(after, frozenset())


def may_be_removed(txn: TransactionMetadata) -> bool:
    """Say whether a tombstone may follow this record of an id (T1).

    A writer of a shared transaction has no next one: its tombstone stands for its completion and its removal (T12).
    """
    return txn.state in LEGAL_PREDECESSORS[TransactionState.DEAD] or (bool(txn.attempt) and txn.state in PREPARED)


class DecisionCause(Enum):
    """Why a transaction ends."""

    REQUEST = "request"
    """Its producer, or its committer, has said so."""
    TIMEOUT = "timeout"
    """Its time was over (T9)."""
    FENCE = "fence"
    """Another producer came in its place (T5), or a newer attempt of its key (T12)."""
    OPERATOR = "operator"
    """Somebody has aborted it who is no producer of it (KIP-664)."""
    RECOVERY = "recovery"
    """It was decided before; this coordinator has found that in its log (T4)."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a transaction was decided, and who asked for that; None where nobody did, or it is not known."""

    cause: DecisionCause
    by: ClientOrigin | None = None


NO_TOPIC_IDS: Final[Mapping[str, TopicId]] = MappingProxyType({})


class TransactionMetadata(NamedTuple):
    """All that the coordinator knows about one transactional id. Immutable: a change is a new value (see prepare.py).

    A tuple, because each transaction makes some four of these, and `_replace` costs a tenth of a dataclass's.

    previous_producer_id: the id before the last rotation, -1 without one.
    next_producer_id:     set between the decision and its completion when the epochs ran out: the id that the producer
                          was already told to continue with (KIP-890).
    last_producer_epoch:  the epoch from which this producer itself moved on, or was moved on by a timeout, so that its
                          calls are known again (T5, T7); -1 after any other fence, when no earlier epoch has a say.
    start_ms:             when the transaction began; kept after its end, as Kafka does; -1 before the first.
    last_update_ms:       never goes back, and is new with each decision: with the id it names one decision for good.
    next_producer_epoch:  set while a prepared transaction waits for its end: the epoch of the instance that took it
                          over and alone may end it (KIP-939).
    version:              the protocol that the transaction was begun or ended with.
    attempt:              of a writer of a shared transaction, the attempt that it takes part in; else empty (T12).
    trace:                where the transaction belongs in traces, while it is open; then its decision's place (E4).
    client:               the producer instance that has the id, where that is known.
    topic_ids:            by name, of the topics that `partitions` are of, as far as they are known: a topic made again
                          under the name is not in the transaction (R8).
    ending:               of a decision: why it was taken, where the producer itself did not ask for it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    version: TransactionVersion = TransactionVersion.V0
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    attempt: str = ""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    trace: TransactionTrace | None = None
    client: ClientOrigin | None = None
    ending: Ending | None = None
    topic_ids: Mapping[str, TopicId] = NO_TOPIC_IDS

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def holder(self) -> ProducerIdAndEpoch:
        """Whose word counts now: the producer, or the instance that took its prepared transaction over."""
        if self.is_taken_over:
            return ProducerIdAndEpoch(self.producer_id, self.next_producer_epoch)
        return self.producer

    @property
    def is_taken_over(self) -> bool:
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def is_two_phase(self) -> bool:
        """Whether somebody outside decides, so that no transaction of this id ever times out (T9)."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    def other_topics(self, topic_ids: Mapping[str, TopicId]) -> frozenset[str]:
        """Return the names whose topics are not those that are in the transaction by these names (R8)."""
        others: frozenset[str] = _NO_NAMES
        for name, topic_id in topic_ids.items():
            known = self.topic_ids.get(name, topic_id)
            if known is not topic_id and known != topic_id:  # comparing ids takes long
                others |= {name}
        return others

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """What the producer continues with: the current id and epoch, or the next id where the epochs ran out."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.producer

    @property
    def epochs_exhausted(self) -> bool:
        """Whether the producer id has no epoch left to move on to (T10)."""
        kept = TWO_PHASE_EPOCHS_KEPT if self.is_two_phase else 0
        return self.producer_epoch >= MAX_PRODUCER_EPOCH - kept


def transition_diagram() -> str:
    """Return the table above as a Mermaid state diagram, for docs/transactions.md (a test keeps the two equal)."""
    lines = ["stateDiagram-v2", "    [*] --> Empty"]
    for after, predecessors in LEGAL_PREDECESSORS.items():
        lines += [f"    {before.label} --> {after.label}" for before in _in_order(predecessors)]
    for after, predecessors in LEGAL_PREDECESSORS_WITH_EPOCH_BUMP.items():
        lines += [f"    {before.label} --> {after.label}: epoch bump" for before in _in_order(predecessors)]
    lines.append("    Dead --> [*]")
    return "\n".join(lines) + "\n"


def trigger_table() -> str:
    """Return the moves with what causes each, for docs/transactions.md (a test keeps the two equal)."""
    lines = ["| From | To | Caused by |", "|---|---|---|"]
    for move in MOVES:
        before = ", ".join(state.label for state in _in_order(move.before))
        lines.append(f"| {before} | {move.after.label}{' *(epoch bump)*' * move.is_epoch_bump} | {move.triggers} |")
    return "\n".join(lines) + "\n"


def _in_order(states: frozenset[TransactionState]) -> list[TransactionState]:
    return sorted(states)
