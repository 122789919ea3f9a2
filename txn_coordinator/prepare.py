"""Where a transactional id goes next. Each function takes what is and returns what shall be, and changes nothing.

The result takes effect when its record is replayed. Every function checks its move against the table of T1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.ids import (
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicId,
    TopicPartition,
)
from semel.protocol.trace_context import DecisionIds, TraceContext, TransactionTrace
from semel.txn_coordinator.state import (
    FENCING_EPOCH,
    NO_TOPIC_IDS,
    DecisionCause,
    Ending,
    IllegalTransitionError,
    TransactionMetadata,
    TransactionState,
    is_legal,
)


def prepare_new(
    transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int, *, attempt: str = ""
) -> TransactionMetadata:
    """A transactional id that was not known: epoch 0 of a new producer id. `attempt`: of a shared one's writer."""
    assert producer_id >= 0, f"a producer id is not negative: {producer_id}"
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        last_update_ms=now_ms,
        attempt=attempt,
    )


def prepare_epoch_bump(
    txn: TransactionMetadata, timeout_ms: int, now_ms: int, *, from_epoch: int = NO_PRODUCER_EPOCH
) -> TransactionMetadata:
    """The next epoch of the same producer id. `from_epoch` is the caller's own, if it named one (KIP-360)."""
    _check_move(txn, TransactionState.EMPTY)
    assert not txn.epochs_exhausted, f"the epochs of producer id {txn.producer_id} ran out"
    return _emptied(txn, timeout_ms, now_ms)._replace(
        producer_epoch=txn.producer_epoch + 1, last_producer_epoch=from_epoch
    )


def prepare_same_epoch(txn: TransactionMetadata, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """A repeated InitProducerId: no other bump, and the repetition can still be told (T5)."""
    _check_move(txn, TransactionState.EMPTY)
    return _emptied(txn, timeout_ms, now_ms)


def prepare_id_rotation(
    txn: TransactionMetadata, producer_id: int, timeout_ms: int, now_ms: int, *, from_epoch: int = NO_PRODUCER_EPOCH
) -> TransactionMetadata:
    """Epoch 0 of a new producer id, because the old one's epochs ran out (T10)."""
    _check_move(txn, TransactionState.EMPTY)
    assert producer_id not in (txn.producer_id, NO_PRODUCER_ID), f"not a new producer id: {producer_id}"
    return _emptied(txn, timeout_ms, now_ms)._replace(
        producer_id=producer_id,
        producer_epoch=0,
        previous_producer_id=txn.producer_id,
        last_producer_epoch=from_epoch,
    )


def prepare_add_partitions(
    txn: TransactionMetadata,
    partitions: Iterable[TopicPartition],
    version: TransactionVersion,
    now_ms: int,
    trace: TraceContext | None = None,
    topic_ids: Mapping[str, TopicId] = NO_TOPIC_IDS,
) -> TransactionMetadata:
    """The ongoing transaction with more partitions, or the beginning of one, in the trace that `trace` names.

    `topic_ids`: of the topics that the partitions are of, as far as they are known (R8).
    """
    _check_move(txn, TransactionState.ONGOING)
    ongoing = txn.state is TransactionState.ONGOING
    return txn._replace(
        state=TransactionState.ONGOING,
        partitions=txn.partitions.union(partitions),
        topic_ids={**txn.topic_ids, **topic_ids},
        start_ms=txn.start_ms if ongoing else now_ms,
        last_update_ms=max(now_ms, txn.last_update_ms),
        version=version,
        # A producer that begins under this epoch knows it: nothing of an earlier one is repeated any more.
        last_producer_epoch=NO_PRODUCER_EPOCH,
        trace=txn.trace if ongoing else None if trace is None else TransactionTrace(trace),
        ending=None,
    )


def prepare_take_over(txn: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """The same prepared transaction, and another instance that alone may end it (KIP-939)."""
    _check_move(txn, TransactionState.ONGOING)
    epoch = txn.holder.producer_epoch + 1
    assert epoch <= MAX_PRODUCER_EPOCH, f"no epoch is left to take {txn.transactional_id} over"
    return txn._replace(next_producer_epoch=epoch, last_update_ms=max(now_ms, txn.last_update_ms))


def as_held(txn: TransactionMetadata) -> TransactionMetadata:
    """The transaction as if its holder had begun it, so that it ends by the usual way. Never stored.

    Its data has a lower epoch than its holder, which is what the partitions want to see in a marker (KIP-890).
    """
    if not txn.is_taken_over:
        return txn
    return txn._replace(producer_epoch=txn.next_producer_epoch, next_producer_epoch=NO_PRODUCER_EPOCH)


def prepare_epoch_fence(txn: TransactionMetadata, *, from_epoch: int = NO_PRODUCER_EPOCH) -> TransactionMetadata:
    """The step before an abort that the producer did not ask for: its epoch is taken from it. Never stored.

    The bump to 32767 is allowed here, so that the last epoch can be fenced; an id that is there already stays there.
    `from_epoch` is set where nobody else takes the epoch, so that the producer's next call is known again: it fences
    itself (KIP-360), or its transaction has timed out (KIP-588).
    """
    _check_move(txn, TransactionState.PREPARE_EPOCH_FENCE)
    txn = as_held(txn)
    bumped = txn.producer_epoch < FENCING_EPOCH
    return txn._replace(
        state=TransactionState.PREPARE_EPOCH_FENCE,
        producer_epoch=txn.producer_epoch + 1 if bumped else FENCING_EPOCH,
        last_producer_epoch=from_epoch,
        # A V2 marker is accepted only above the epoch of the data (KIP-890), so without a bump it must not be one.
        version=TransactionVersion.V2 if bumped else TransactionVersion.V1,
    )


def prepare_end(
    txn: TransactionMetadata,
    *,
    committed: bool,
    version: TransactionVersion,
    now_ms: int,
    next_producer_id: int = NO_PRODUCER_ID,
    ids: DecisionIds | None = None,
    ending: Ending | None = None,
) -> TransactionMetadata:
    """The decision. With V2 the epoch moves on with it, and past the last one the producer id does (T6, T10).

    `ids`: of the span of the decision, where it is traced. `ending`: why, where the producer did not ask for it.
    """
    after = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    _check_move(txn, after, version)
    txn = as_held(txn)
    decided = txn._replace(
        state=after,
        # New with each decision, so that a late word about an earlier one's markers can't pass for this one's.
        last_update_ms=max(now_ms, txn.last_update_ms + 1),
        start_ms=now_ms if txn.state not in _BEGUN else txn.start_ms,
        trace=txn.trace if ids is None else ids.below(txn.trace if txn.state in _BEGUN else None),
        ending=ending,
    )
    if txn.state is TransactionState.PREPARE_EPOCH_FENCE:
        return decided  # bumped already, and only once (KAFKA-19367)
    if version < TransactionVersion.V2:
        return decided._replace(version=version)
    assert txn.producer_epoch < FENCING_EPOCH, f"{txn.transactional_id} holds the fencing epoch"
    assert txn.epochs_exhausted == (next_producer_id != NO_PRODUCER_ID), "an id follows exactly when the epochs run out"
    return decided._replace(
        version=version,
        producer_epoch=txn.producer_epoch + 1,
        last_producer_epoch=txn.producer_epoch,
        next_producer_id=next_producer_id,
    )


def prepare_complete(txn: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """The end: every marker is written. A producer id that ran out of epochs gives way to the next one (T10)."""
    committed = txn.state is TransactionState.PREPARE_COMMIT
    after = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    _check_move(txn, after)
    completed = txn._replace(
        state=after,
        partitions=frozenset(),
        topic_ids=NO_TOPIC_IDS,
        last_update_ms=max(now_ms, txn.last_update_ms),
        trace=None,
    )
    if txn.next_producer_id == NO_PRODUCER_ID:
        return completed
    return completed._replace(
        producer_id=txn.next_producer_id,
        producer_epoch=0,
        previous_producer_id=txn.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def prepare_dead(txn: TransactionMetadata) -> TransactionMetadata:
    """About to be forgotten: what is written is a tombstone."""
    _check_move(txn, TransactionState.DEAD)
    return txn._replace(state=TransactionState.DEAD)


def ending_by(txn: TransactionMetadata, client: ClientOrigin | None) -> Ending | None:
    """Why a decision that `client` asks for is taken, as its record says it: nothing, where it is the producer."""
    return None if client is None or client == txn.client else Ending(DecisionCause.REQUEST, client)


_BEGUN = frozenset({TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE})


def _emptied(txn: TransactionMetadata, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return txn._replace(
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        topic_ids=NO_TOPIC_IDS,
        start_ms=NO_TIMESTAMP,
        last_update_ms=max(now_ms, txn.last_update_ms),
        ending=None,
    )


def _check_move(
    txn: TransactionMetadata, after: TransactionState, version: TransactionVersion = TransactionVersion.V0
) -> None:
    if not is_legal(txn.state, after, version):
        raise IllegalTransitionError(
            f"transactional id {txn.transactional_id!r} can't go from {txn.state.label} to {after.label}"
        )
