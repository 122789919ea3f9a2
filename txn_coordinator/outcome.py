"""What became of a transaction that is still open on one partition, by all that the coordinators' logs say (T3, T7).

It is for a partition that has lost a marker: the decision stands, and only its marker may end the transaction there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.txn_coordinator.state import COMPLETED, PREPARED, TransactionMetadata, TransactionState


class Outcome(Enum):
    """How a transaction was decided. The values stand in messages and commands."""

    NOT_KNOWN = ""
    """No record tells of it: its coordinator never had it, or has lost it."""
    COMMIT = "commit"
    ABORT = "abort"
    NOT_TOLD = "unknown"
    """Its transactional id is known and was decided since, but how this one ended, the records do not tell any more."""


@dataclass(frozen=True, slots=True)
class HolderOutcome:
    """`marker`: the identity that the decision's marker carries. Without a transactional id, nothing is known."""

    outcome: Outcome
    transactional_id: str = ""
    marker: ProducerIdAndEpoch | None = None
    version: TransactionVersion = TransactionVersion.V1


NOT_KNOWN = HolderOutcome(Outcome.NOT_KNOWN)
_COMMITS = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})


def concerns(txn: TransactionMetadata, producer_id: int) -> bool:
    """Whether a record says something of a producer id: the current one of its transactional id, or the one before."""
    return producer_id in (txn.producer_id, txn.previous_producer_id)


def outcome_of(records: Iterable[TransactionMetadata], holder: ProducerIdAndEpoch, tp: TopicPartition) -> HolderOutcome:
    """Return how the transaction ended whose data `holder` has on `tp`. `records`: in the order of the logs.

    With V2 each transaction has an epoch of its own, and its decision the next. With V1 several share one epoch: there
    all decisions that name the partition must agree, and none of them may have been compacted away.
    """
    by_id: dict[str, list[TransactionMetadata]] = {}
    for txn in records:
        if concerns(txn, holder.producer_id):
            by_id.setdefault(txn.transactional_id, []).append(txn)
    found = [_outcome_in(steps, holder, tp) for steps in by_id.values()]
    return next((one for one in found if one.outcome is not Outcome.NOT_KNOWN), NOT_KNOWN)


def _outcome_in(steps: Sequence[TransactionMetadata], holder: ProducerIdAndEpoch, tp: TopicPartition) -> HolderOutcome:
    epoch, name = holder.producer_epoch, steps[0].transactional_id
    own = [step for step in steps if step.producer_id == holder.producer_id]
    has_moved_on = len(own) < len(steps) and steps[-1].producer_id != holder.producer_id
    begin = max((place + 1 for place, step in enumerate(own) if _is_before(step, epoch)), default=0)
    decisions: list[TransactionMetadata] = []
    for step in own[begin:]:
        if step.state in PREPARED and tp in step.partitions:
            decisions.append(step)
        if step.producer_epoch > epoch:
            has_moved_on = True
            break
    if decisions:
        is_whole = begin > 0 or (len(decisions) == 1 and decisions[0].producer_epoch > epoch)
        if is_whole and len({step.state for step in decisions}) == 1:
            return _decided(decisions[0], holder)
        return HolderOutcome(Outcome.NOT_TOLD, name)
    if not begin and (last := _compacted_decision(steps, holder)) is not None:
        return _decided(last, holder)
    shared_epoch = not begin and any(
        step.producer_epoch == epoch and step.version < TransactionVersion.V2 for step in own
    )
    return HolderOutcome(Outcome.NOT_TOLD, name) if has_moved_on or shared_epoch else NOT_KNOWN


def _is_before(step: TransactionMetadata, epoch: int) -> bool:
    """Whether a record is older than all data of this epoch: what follows it in the log is then not compacted."""
    if step.producer_epoch != epoch:
        return step.producer_epoch < epoch and not step.is_taken_over
    ended = step.state in PREPARED or step.state in COMPLETED
    return step.state is TransactionState.EMPTY or (ended and step.version >= TransactionVersion.V2)


def _compacted_decision(steps: Sequence[TransactionMetadata], holder: ProducerIdAndEpoch) -> TransactionMetadata | None:
    """Return the end of the holder's transaction, where its record is all that compaction has left.

    A V2 producer that ended it itself had moved on from just this epoch. A fence from outside says too little: before
    it the producer may have had other transactions with the same epoch, as V1 has.
    """
    first = steps[0]
    is_next = first.producer_id != holder.producer_id or first.producer_epoch == holder.producer_epoch + 1
    by_itself = first.version >= TransactionVersion.V2 and first.last_producer_epoch == holder.producer_epoch
    if first.state in COMPLETED and is_next and by_itself and (first.ending is None or first.state in _COMMITS):
        return first
    return None


def _decided(step: TransactionMetadata, holder: ProducerIdAndEpoch) -> HolderOutcome:
    outcome = Outcome.COMMIT if step.state in _COMMITS else Outcome.ABORT
    marker = step.producer
    if step.producer_id != holder.producer_id:
        marker = ProducerIdAndEpoch(holder.producer_id, holder.producer_epoch + 1)
    return HolderOutcome(outcome, step.transactional_id, marker, step.version)
