"""Who calls: the current producer, one that repeats what was answered before, or one that was fenced."""

from __future__ import annotations

from semel.protocol.api.transactions import EndTxnRequest, EndTxnResponse, TransactionVersion
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER, NO_PRODUCER_EPOCH, ProducerIdAndEpoch
from semel.runtime.machine import Result
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.prepare import prepare_complete
from semel.txn_coordinator.state import COMPLETED, PREPARED, TransactionMetadata, TransactionState


class RefusalError(Exception):
    """Carries a refusal out of a handler; `handle` makes it the result."""

    def __init__(self, error: SemelError) -> None:
        super().__init__(error)
        self.error = error


def refuse(code: ErrorCode, message: str) -> RefusalError:
    return RefusalError(error_for(code, message))


def refuse_timeout(name: str, timeout_ms: int, config: TransactionConfig) -> None:
    """`name`: the transactional id, or the key of a shared transaction."""
    if not 0 < timeout_ms <= config.transaction_max_timeout_ms:
        raise refuse(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"{name!r}: a transaction timeout of {timeout_ms} ms is not between 1 and "
            f"{config.transaction_max_timeout_ms} (transaction.max.timeout.ms)",
        )


def refuse_writer(txn: TransactionMetadata) -> None:
    """A writer of a shared transaction has no say in its end, and no successor (T12)."""
    if txn.attempt:
        raise refuse(
            ErrorCode.INVALID_TXN_STATE,
            f"{txn.transactional_id!r} writes in a shared transaction, which ends as a whole: commit or abort that one",
        )


def refuse_while_completing(txn: TransactionMetadata) -> None:
    """Pending work comes first. A caller whose id takes effect with it retries, too (KAFKA-18464)."""
    if txn.state in PREPARED:
        raise refuse(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the previous transaction of {txn.transactional_id!r} is still completing; try again shortly",
        )


def _refuse_other_epoch(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    # The fencing epoch is nobody's, even where it is the current one (KAFKA-20090).
    if producer.producer_epoch != txn.holder.producer_epoch or txn.producer_epoch > MAX_PRODUCER_EPOCH:
        raise _fenced(txn, producer)


def refuse_others(txn: TransactionMetadata, producer: ProducerIdAndEpoch, now_ms: int) -> None:
    """Refuse a caller that does not hold the id, and will not hold it with the completion of what is pending either."""
    settled = _settled(txn, now_ms)
    if producer.producer_id != settled.producer_id:
        raise _wrong_id(settled, producer)
    _refuse_other_epoch(settled, producer)


def refuse_end_while_completing(txn: TransactionMetadata, request: EndTxnRequest, now_ms: int) -> None:
    """T7, T11: the producer retries; one that was fenced, or wants the opposite of the decision, gets that at once."""
    if txn.state not in PREPARED:
        return
    settled = _settled(txn, now_ms)
    if not is_repeated_end(settled, request):
        refuse_others(txn, request.producer, now_ms)
    elif request.producer != settled.producer and not request.token:
        # The epoch that the decision has left behind had this one transaction; the current one may mean the next.
        answer_repeated_end(settled, request)
    refuse_while_completing(txn)


def _settled(txn: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """The transactional id as it is once the decision that is pending is complete."""
    return prepare_complete(txn, now_ms) if txn.state in PREPARED else txn


def _fenced(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> RefusalError:
    return refuse(
        ErrorCode.PRODUCER_FENCED,
        f"transactional id {txn.transactional_id!r}: epoch {producer.producer_epoch} of producer id "
        f"{producer.producer_id} was fenced (the current one is {txn.producer_id}, epoch {txn.holder.producer_epoch})",
    )


def _wrong_id(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> RefusalError:
    return refuse(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {txn.transactional_id!r} has producer id {txn.producer_id}, not {producer.producer_id}",
    )


def _is_former(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether `producer` is the identity from which the current one was reached by the producer's own doing."""
    if txn.producer_epoch > MAX_PRODUCER_EPOCH or txn.last_producer_epoch == NO_PRODUCER_EPOCH:
        return False
    if producer.producer_epoch != txn.last_producer_epoch:
        return False
    if producer.producer_id == txn.producer_id:
        return producer.producer_epoch == txn.producer_epoch - 1
    return (
        producer.producer_id == txn.previous_producer_id
        and producer.producer_epoch >= MAX_PRODUCER_EPOCH
        and txn.producer_epoch == 0
    )


def is_repeated_init(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    return producer != NO_PRODUCER and producer != txn.producer and _is_former(txn, producer)


def epoch_of_caller(txn: TransactionMetadata, producer: ProducerIdAndEpoch) -> int:
    """Return the epoch that the caller of InitProducerId holds by right, -1 if it names none (KIP-360, T5).

    It is the current one, or the one before if its answer was lost; and where that one fenced the last epoch itself, it
    may still move on to another producer id. Everybody else was fenced.
    """
    if producer == NO_PRODUCER:
        return NO_PRODUCER_EPOCH
    if producer == txn.holder and producer.producer_epoch <= MAX_PRODUCER_EPOCH:
        return producer.producer_epoch
    last = ProducerIdAndEpoch(txn.producer_id, txn.last_producer_epoch)
    fenced_last_epoch_itself = producer == last and last.producer_epoch == MAX_PRODUCER_EPOCH
    if txn.state is not TransactionState.ONGOING and (_is_former(txn, producer) or fenced_last_epoch_itself):
        return producer.producer_epoch
    raise _fenced(txn, producer)


def is_repeated_end(txn: TransactionMetadata, request: EndTxnRequest) -> bool:
    """T7: whether this transaction was ended by the same producer already, and its answer may have been lost."""
    if txn.state not in COMPLETED:
        return False
    if request.version >= TransactionVersion.V2 and txn.version >= TransactionVersion.V2:
        return _is_former(txn, request.producer)
    if txn.version >= TransactionVersion.V2 or request.producer != txn.producer:
        return False
    # Without an epoch of its own, a transaction's end can't be told from its repetition. An abort by a client that now
    # bumps epochs is taken for a new one: it costs an epoch, and shuts out batches still on their way.
    return request.version < TransactionVersion.V2 or request.committed


def answer_repeated_end(txn: TransactionMetadata, request: EndTxnRequest) -> Result[EndTxnResponse]:
    committed = txn.state is TransactionState.COMPLETE_COMMIT
    if committed == request.committed:
        return Result(EndTxnResponse(txn.producer))
    if not committed and txn.last_update_ms - txn.start_ms >= txn.timeout_ms:
        # Where the timeout may have done it, not the producer: it aborts, too, and continues (KIP-588).
        raise refuse(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"the transaction of {txn.transactional_id!r} was open for longer than its timeout of {txn.timeout_ms} ms "
            "and was aborted; abort it, then run it again",
        )
    raise refuse(
        ErrorCode.INVALID_TXN_STATE,
        f"the transaction of {txn.transactional_id!r} was {'committed' if committed else 'aborted'} already; "
        f"it is too late to {verb(request.committed)} it",
    )


def verb(committed: bool) -> str:
    return "commit" if committed else "abort"
