"""Ends a transaction that hangs on one partition: as it was decided, else by an operator's abort marker (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable

from semel.broker.diagnostics.batches import batches_from
from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter, latest_coordinator_epoch
from semel.broker.services import Services
from semel.protocol.api.diagnostics import HangingEnd
from semel.protocol.api.transactions import TransactionVersion, TxnMarker
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, error_for
from semel.protocol.ids import TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.protocol.wording import command, partition_argument
from semel.txn_coordinator.outcome import HolderOutcome, Outcome, concerns, outcome_of
from semel.txn_coordinator.schemas import decode_key, decode_value
from semel.txn_coordinator.state import TransactionMetadata


async def end_hanging(
    node: Services, tp: TopicPartition, start_offset: int, end: HangingEnd, *, unknown_elsewhere: bool
) -> tuple[ProducerIdAndEpoch, bool]:
    """Write the marker, and return whose transaction it ended, and whether it is committed.

    What was decided is ended so and not otherwise: else it would be torn apart. So all of the coordinators' partitions
    must be readable here, or, with `unknown_elsewhere`, the others were asked. An abort is for what no coordinator
    knows; how to end one of which the outcome is not told any more, the caller says (`end`).
    Raises INVALID_TXN_STATE where no such transaction is open, or it is to end otherwise; TRANSACTIONAL_ID_NOT_FOUND
    where no coordinator knows it, and it is not to be aborted; COORDINATOR_NOT_AVAILABLE.
    """
    holder = _holder(node, tp, start_offset)
    _check_all_are_known(node, unknown_elsewhere)
    records = await records_of(node, (holder.producer_id,))
    await node.transactions.confirm()
    if _holder(node, tp, start_offset) != holder:  # its marker may have come while the logs were read
        raise RetriableError(f"the transaction at offset {start_offset} of {tp} has changed meanwhile: look again")
    if (txn := node.transactions.open_transaction(holder.producer_id, tp)) is not None:
        raise FatalError(
            f"the transaction at offset {start_offset} of {tp} does not hang: it is that of "
            f"{txn.transactional_id!r}, which is {txn.state.label}; `semel txn abort` takes that name",
            ErrorCode.INVALID_TXN_STATE,
        )
    known = outcome_of(records, holder, tp)
    committed = judge(known, tp, start_offset, end)
    marker = _marker_of(node, holder, known, committed, tp)
    code = (await LocalMarkerWriter(node).write_markers(marker))[tp]
    if code is not ErrorCode.NONE:
        raise error_for(code, f"the marker could not be written to {tp}: {code.name}")
    return holder, committed


def _marker_of(
    node: Services, holder: ProducerIdAndEpoch, known: HolderOutcome, committed: bool, tp: TopicPartition
) -> TxnMarker:
    """Return the marker, with the epoch that its coordinator has by the metadata: nobody else's word counts (P9)."""
    producer, version = (holder, TransactionVersion.V1) if known.marker is None else (known.marker, known.version)
    if not known.transactional_id:
        return TxnMarker(producer, latest_coordinator_epoch(node), committed, (tp,), version)
    number = node.transactions.partition_for(known.transactional_id)
    epoch = node.metadata.leader_epoch(TopicPartition(TRANSACTIONS_TOPIC, number))
    assert epoch is not None, "its records were read from there"
    return TxnMarker(producer, epoch, committed, (tp,), version, number)


def _holder(node: Services, tp: TopicPartition, start_offset: int) -> ProducerIdAndEpoch:
    """Return whose transaction is open there."""
    state = partition_of(node, tp).log.producer_state
    producer_id = state.open_transactions.get(start_offset)
    entry = None if producer_id is None else state.entry(producer_id)
    if producer_id is None or entry is None:
        raise FatalError(
            f"no transaction that begins at offset {start_offset} is open on {tp}; `semel doctor` "
            "names those that hang",
            ErrorCode.INVALID_TXN_STATE,
        )
    return ProducerIdAndEpoch(producer_id, entry.epoch)


def judge(known: HolderOutcome, tp: TopicPartition, start_offset: int, end: HangingEnd) -> bool:
    """Return whether the marker commits. Raises INVALID_TXN_STATE where it would contradict what is known (T7).

    TRANSACTIONAL_ID_NOT_FOUND: no coordinator knows it, so that only an abort can end it.
    """
    place = f"the transaction at offset {start_offset} of {tp}"
    whose = f"{place} is that of {known.transactional_id!r}"
    finish = command(
        *("txn", "finish", "--partition", partition_argument(tp)), *("--start-offset", str(start_offset), "--yes")
    )
    match known.outcome:
        case Outcome.COMMIT | Outcome.ABORT:
            if end is not HangingEnd.AS_DECIDED:
                raise FatalError(
                    f"{whose}, and its {known.outcome.value} is decided: to end it otherwise on one partition would "
                    f"tear it apart. `{finish}` writes the marker that it lacks",
                    ErrorCode.INVALID_TXN_STATE,
                )
            return known.outcome is Outcome.COMMIT
        case Outcome.NOT_TOLD:
            if end in (HangingEnd.AS_DECIDED, HangingEnd.ABORT):
                raise FatalError(
                    f"{whose}, and was decided, but its coordinator's records do not tell how any more. "
                    f"`{command('txn', 'why', known.transactional_id)}` shows what is left, and where its other "
                    f"partitions have which marker: then `{finish} --as commit`, or `--as abort`",
                    ErrorCode.INVALID_TXN_STATE,
                )
            return end is HangingEnd.AS_COMMIT
        case Outcome.NOT_KNOWN:
            if end is not HangingEnd.ABORT:
                raise FatalError(
                    f"{place} is known to no coordinator, so no decision finishes it; `{finish}` aborts it",
                    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                )
            return False


async def records_of(node: Services, producer_ids: Iterable[int]) -> list[TransactionMetadata]:
    """Return all that the coordinators' logs led here say of these producer ids, each log in its order.

    Raises COORDINATOR_NOT_AVAILABLE where one can't be read: what it says is then not known.
    """
    wanted = frozenset(producer_ids)
    found: list[TransactionMetadata] = []
    topic = node.metadata.topic(TRANSACTIONS_TOPIC)
    for number in range(0 if topic is None or not wanted else len(topic.partitions)):
        partition = node.partition(TopicPartition(TRANSACTIONS_TOPIC, number))
        if partition is None:
            continue
        try:
            async for header, batch in batches_from(partition, partition.log_start_offset, partition.high_watermark):
                for record in () if header.is_control else decode_records(batch):
                    name = None if record.key is None else decode_key(record.key)
                    if name is not None and record.value is not None:
                        txn = decode_value(name, record.value)
                        if any(concerns(txn, producer_id) for producer_id in wanted):
                            found.append(txn)
        except (SemelError, OSError) as error:
            raise RetriableError(
                f"{TRANSACTIONS_TOPIC}-{number} can't be read, so what it says of the transaction is not known: "
                f"{error}",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ) from error
    return found


def _check_all_are_known(node: Services, unknown_elsewhere: bool) -> None:
    topic = node.metadata.topic(TRANSACTIONS_TOPIC)
    if topic is None:
        return
    for number, state in enumerate(topic.partitions):
        is_ours = state.leader == node.config.node_id
        if is_ours and not node.transactions.coordinates(number):
            raise RetriableError(
                f"{TRANSACTIONS_TOPIC}-{number} can't be read now, so nobody can say that the transaction is in none: "
                "fix that first, `semel doctor` says how",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        if not is_ours and not unknown_elsewhere:
            raise FatalError(
                f"node {state.leader} leads {TRANSACTIONS_TOPIC}-{number}: ask it first whether it knows the producer",
                ErrorCode.NOT_COORDINATOR,
            )
