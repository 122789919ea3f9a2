"""Ends a transaction on one partition that no coordinator knows: an operator's abort marker (KIP-664)."""

from __future__ import annotations

from semel.broker.handlers.partitions import partition_of
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.services import Services
from semel.protocol.api.transactions import TransactionVersion, TxnMarker
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, error_for
from semel.protocol.ids import TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition


async def abort_hanging(
    node: Services, tp: TopicPartition, start_offset: int, *, unknown_elsewhere: bool
) -> ProducerIdAndEpoch:
    """Write the marker, and return whose transaction it ended.

    Only where the coordinators are known not to have it: to end one that they do have, on one partition, would tear it
    apart. So all of their partitions must be readable here, or, with `unknown_elsewhere`, the others were asked.
    Raises INVALID_TXN_STATE where no such transaction is open, or a coordinator knows it; COORDINATOR_NOT_AVAILABLE.
    """
    partition = partition_of(node, tp)
    state = partition.log.producer_state
    producer_id = state.open_transactions.get(start_offset)
    entry = None if producer_id is None else state.entry(producer_id)
    if producer_id is None or entry is None:
        raise FatalError(
            f"no transaction that begins at offset {start_offset} is open on {tp}; `semel doctor` "
            "names those that hang",
            ErrorCode.INVALID_TXN_STATE,
        )
    _check_all_are_known(node, unknown_elsewhere)
    for machine in node.transactions.machines():
        for txn in machine.open_transactions.values():
            if txn.producer_id == producer_id and tp in txn.partitions:
                raise FatalError(
                    f"the transaction at offset {start_offset} of {tp} does not hang: it is that of "
                    f"{txn.transactional_id!r}, which is {txn.state.label}; `semel txn abort` takes that name",
                    ErrorCode.INVALID_TXN_STATE,
                )
    producer = ProducerIdAndEpoch(producer_id, entry.epoch)
    marker = TxnMarker(producer, max(entry.coordinator_epoch, 0), False, (tp,), TransactionVersion.V1)
    code = (await LocalMarkerWriter(node).write_markers(marker))[tp]
    if code is not ErrorCode.NONE:
        raise error_for(code, f"the abort marker could not be written to {tp}: {code.name}")
    return producer


def _check_all_are_known(node: Services, unknown_elsewhere: bool) -> None:
    topic = node.metadata.topic(TRANSACTIONS_TOPIC)
    if topic is None:
        return
    for number, state in enumerate(topic.partitions):
        is_ours = state.leader == node.config.node_id
        if is_ours and not node.transactions.coordinates(number):
            raise RetriableError(
                f"{TRANSACTIONS_TOPIC}-{number} can't be read now, so nobody can say that the transaction is in none: "
                "mend that first, `semel doctor` says how",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        if not is_ours and not unknown_elsewhere:
            raise FatalError(
                f"node {state.leader} leads {TRANSACTIONS_TOPIC}-{number}: ask it first whether it knows the producer",
                ErrorCode.NOT_COORDINATOR,
            )
