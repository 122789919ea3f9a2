"""A client's WriteTxnMarkers asks for a transaction's abort, and the coordinator decides about that (S1, KIP-664).

Kafka's own tool for transactions that hang sends it (`kafka-transactions.sh abort`). Where a coordinator knows the
transaction as open, it is aborted there, and so in all of its partitions; where none knows it, it hangs, and this node
writes the abort marker. No marker enters a log by a client's word, and no epoch of a client's is believed.
"""

from __future__ import annotations

from typing import Final

from semel.broker.diagnostics.hanging import end_hanging
from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.services import Services
from semel.protocol.api.diagnostics import HangingEnd
from semel.protocol.api.transactions import AbortTransactionRequest
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.wording import command
from semel.txn_coordinator.state import TransactionMetadata, TransactionState

COMPLETION_TIMEOUT_S: Final = 10.0
"""So long the answer waits for the markers of an abort that the coordinator has decided."""


async def abort_as_asked(node: Services, tp: TopicPartition, producer: ProducerIdAndEpoch) -> None:
    """Abort what this producer has open on `tp`; nothing is changed where it is aborted, or ended, already.

    `producer` has the epoch of the data, or the next one, as markers of transactions with an epoch of their own have.
    Raises INVALID_TXN_STATE: nothing is open, or it is decided otherwise. INVALID_PRODUCER_EPOCH: the producer has
    another epoch there, so that one is over, or was never. As in Kafka, what is over is not asked how it ended.
    REQUEST_TIMED_OUT: it is decided, and its markers are still being written. COORDINATOR_NOT_AVAILABLE.
    """
    place = f"the transaction of producer {producer.producer_id} (epoch {producer.producer_epoch}) on {tp}"
    await node.transactions.confirm()
    entry = partition_of(node, tp).log.producer_state.entry(producer.producer_id)
    is_named = entry is not None and producer.producer_epoch - 1 <= entry.epoch <= producer.producer_epoch
    if entry is not None and not is_named:
        raise FatalError(
            f"{place} can't be aborted: that producer is at epoch {entry.epoch} there", ErrorCode.INVALID_PRODUCER_EPOCH
        )
    if entry is None or entry.transaction_first_offset < 0:
        if is_named:
            return  # an abort that is repeated
        raise FatalError(f"{place} can't be aborted: that producer has none open there", ErrorCode.INVALID_TXN_STATE)
    txn = node.transactions.open_transaction(producer.producer_id, tp)
    if txn is None:
        await end_hanging(node, tp, entry.transaction_first_offset, HangingEnd.ABORT, unknown_elsewhere=False)
        return
    _check_can_abort(txn, place, entry.epoch)
    if txn.state is TransactionState.ONGOING:
        await node.transactions.abort(AbortTransactionRequest(txn.transactional_id))
    if not await node.transactions.completed(txn.transactional_id, COMPLETION_TIMEOUT_S):
        raise RetriableError(
            f"the abort of {txn.transactional_id!r} is decided, and not all of its markers are written yet: "
            f"`{command('txn', 'why', txn.transactional_id)}` says what keeps them",
            ErrorCode.REQUEST_TIMED_OUT,
        )


def _check_can_abort(txn: TransactionMetadata, place: str, epoch: int) -> None:
    """Raise INVALID_TXN_STATE where aborting would contradict a decision, or end another transaction."""
    if txn.state is TransactionState.PREPARE_COMMIT:
        raise FatalError(
            f"{place} can't be aborted: the commit of {txn.transactional_id!r} is decided, and its markers are being "
            f"written; `{command('txn', 'why', txn.transactional_id)}` says what keeps them",
            ErrorCode.INVALID_TXN_STATE,
        )
    if txn.state is TransactionState.ONGOING and txn.producer_epoch != epoch:
        raise FatalError(
            f"{place} can't be aborted: {txn.transactional_id!r} has moved to epoch {txn.producer_epoch} since; "
            f"`{command('doctor')}` says how this one ends",
            ErrorCode.INVALID_TXN_STATE,
        )
