"""A transaction's story as the log has it: the records of a transactional id or a key, and what its producers wrote.

The log is read, and not the coordinator's memory, so this works too where the coordinator can't read its partition: up
to the place where it is broken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from semel.broker.diagnostics.batches import batches_from
from semel.broker.diagnostics.snapshot import PARTITIONS_SHOWN_MAX
from semel.broker.logs.partition import Partition
from semel.broker.services import Services
from semel.group_coordinator.records.schemas import OffsetCommitKey, decode_offset_value
from semel.group_coordinator.records.schemas import decode_key as decode_offsets_key
from semel.protocol.api.diagnostic_limits import HISTORY_LIMIT, HISTORY_LIMIT_MAX
from semel.protocol.api.diagnostics import NEVER, TransactionEvent, TransactionHistory, TransactionWrite
from semel.protocol.api.shared_transactions import key_of_member
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.record_decoder import Record, decode_records
from semel.txn_coordinator.commit_records import decode_attempt, decode_commit_key, decode_decision
from semel.txn_coordinator.config import TRANSACTIONAL_ID_BYTES_MAX
from semel.txn_coordinator.schemas import decode_key, decode_value

WRITES_MAX: Final = 1_000
WRITE_PARTITIONS_MAX: Final = 20
WRITE_SCAN_BYTES_MAX: Final = 64 << 20
"""So much of all partitions together is looked through for what the producers wrote."""


def _every(_name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Told:
    """Which topics and which groups' offsets a story names. What is left out is not looked through either."""

    topic: Callable[[str], bool] = _every
    group: Callable[[str], bool] = _every


EVERYTHING: Final = Told()


async def read_history(node: Services, key: str, limit: int = 0, told: Told = EVERYTHING) -> TransactionHistory:
    """Return what the log has about a transactional id or a key. The newest `limit` events (0: HISTORY_LIMIT).

    Raises `UsageError`, and NOT_COORDINATOR where another node has the log.
    """
    if not key:
        raise UsageError("name a transactional id, or the key of shared transactions")
    named = key.encode("utf-8", "surrogatepass")
    if len(named) > TRANSACTIONAL_ID_BYTES_MAX:
        raise UsageError(f"a transactional id has at most {TRANSACTIONAL_ID_BYTES_MAX} bytes, not {len(named)}")
    if not 0 <= limit <= HISTORY_LIMIT_MAX:
        raise UsageError(f"limit is 0 to {HISTORY_LIMIT_MAX}, not {limit}")
    transactions = node.transactions
    if node.metadata.topic(TRANSACTIONS_TOPIC) is None:
        nowhere = TopicPartition(TRANSACTIONS_TOPIC, 0)
        return TransactionHistory(key, nowhere, node.config.node_id, node.clock.now_ms(), 0, 0, 0, (), 0)
    tp = TopicPartition(TRANSACTIONS_TOPIC, transactions.partition_for(key))
    partition = node.partition(tp)
    if partition is None or partition.leader is None:
        raise RetriableError(f"{tp} is not led by this node; ask the one that leads it", ErrorCode.NOT_COORDINATOR)
    start, end = partition.log_start_offset, partition.high_watermark
    events: deque[TransactionEvent] = deque(maxlen=limit or HISTORY_LIMIT)
    total, read_error = 0, ""
    try:
        async for header, batch in batches_from(partition, start, end):
            if header.is_control:
                continue
            for record in decode_records(batch):
                if record.key is None or named not in record.key:  # most are others': spare decoding them
                    continue
                if (event := _event(key, record, told)) is not None:
                    events.append(event)
                    total += 1
    except (SemelError, OSError) as error:
        read_error = str(error)[:500]
    away = transactions.partitions_away().get(tp.partition)
    writes, cut = await _writes(node, events, told)
    return TransactionHistory(
        key=key,
        coordinator=tp,
        coordinator_node=node.config.node_id,
        now_ms=node.clock.now_ms(),
        log_start_offset=start,
        log_end_offset=end,
        compacted_to=min(node.logs.folder.clean_offsets.get(tp), end),
        events=tuple(events),
        events_total=total,
        writes=tuple(writes),
        coordinator_error="" if away is None else (away or f"{tp} is being read")[:500],
        read_error=read_error,
        writes_cut=cut,
    )


def _event(key: str, record: Record, told: Told) -> TransactionEvent | None:
    """Return what a record says about `key`; None where it is about something else."""
    if record.key is None:
        return None
    transactional_id = decode_key(record.key)
    if transactional_id is not None:
        if transactional_id != key and key_of_member(transactional_id) != key:
            return None
        return _step(transactional_id, record, told)
    commit = decode_commit_key(record.key)
    if commit is None or commit.key != key:
        return None
    if commit.token is not None:
        if record.value is None:
            return TransactionEvent(record.offset, record.timestamp_ms, "forgotten", token=commit.token)
        decision = decode_decision(key, commit.token, record.value)
        return TransactionEvent(
            record.offset,
            record.timestamp_ms,
            "commit",
            attempt=decision.attempt,
            token=decision.token,
            sequence=decision.sequence,
            payload_bytes=len(decision.payload),
            writers=decision.writers,
        )
    if record.value is None:
        return TransactionEvent(record.offset, record.timestamp_ms, "attempt")
    attempt = decode_attempt(key, record.value)
    return TransactionEvent(
        record.offset,
        record.timestamp_ms,
        "attempt",
        attempt=attempt.attempt,
        token=attempt.token,
        sequence=attempt.sequence,
    )


def _step(transactional_id: str, record: Record, told: Told) -> TransactionEvent:
    if record.value is None:
        return TransactionEvent(record.offset, record.timestamp_ms, "forgotten", transactional_id)
    txn = decode_value(transactional_id, record.value)
    by = None if txn.ending is None else txn.ending.by
    partitions = sorted(tp for tp in txn.partitions if told.topic(tp.topic))
    return TransactionEvent(
        offset=record.offset,
        time_ms=record.timestamp_ms,
        kind="transaction",
        transactional_id=transactional_id,
        state=txn.state.label,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        timeout_ms=NEVER if txn.is_two_phase else txn.timeout_ms,
        start_ms=txn.start_ms,
        partitions=tuple(partitions[:PARTITIONS_SHOWN_MAX]),
        partitions_total=len(partitions),
        client_id="" if txn.client is None else txn.client.client_id,
        client_host="" if txn.client is None else txn.client.host,
        cause="" if txn.ending is None else txn.ending.cause.value,
        by_client_id="" if by is None else by.client_id,
        by_host="" if by is None else by.host,
        attempt=txn.attempt,
    )


# --- What the producers wrote -----------------------------------------------------------------------------------------


async def _writes(
    node: Services, events: Iterable[TransactionEvent], told: Told
) -> tuple[list[TransactionWrite], bool]:
    """Return the data and markers of the story's producers in its partitions, and whether there may be more."""
    since: dict[TopicPartition, int] = {}
    producers: set[int] = set()
    for event in events:
        if event.producer_id >= 0:
            producers.add(event.producer_id)
        for tp in event.partitions:
            since[tp] = min(since.get(tp, event.start_ms), event.start_ms)
    found: list[TransactionWrite] = []
    cut = len(since) > WRITE_PARTITIONS_MAX
    left = WRITE_SCAN_BYTES_MAX
    for tp in sorted(since)[:WRITE_PARTITIONS_MAX]:
        partition = node.partition(tp)
        if partition is None:
            cut = True
            continue
        try:
            left = await _writes_to(partition, producers, since[tp], found, left, told)
        except (SemelError, OSError):
            cut = True
        if left <= 0 or len(found) >= WRITES_MAX:
            return found[:WRITES_MAX], True
    return found, cut


async def _writes_to(
    partition: Partition,
    producers: set[int],
    since_ms: int,
    found: list[TransactionWrite],
    room_bytes: int,
    told: Told,
) -> int:
    """Add what the producers wrote to one partition since a time. Returns what is left of `room_bytes`: 0 or less where
    there may be more.
    """
    offset = _offset_before(partition, since_ms)
    async for header, batch in batches_from(partition, offset, partition.high_watermark):
        room_bytes -= len(batch)
        if room_bytes <= 0 or len(found) >= WRITES_MAX:
            return 0
        if header.producer_id not in producers or not header.is_transactional:
            continue
        if not header.is_control and partition.tp.topic == OFFSETS_TOPIC:
            found.extend(
                write
                for write in _offsets(partition.tp, batch, header.producer_id, header.producer_epoch)
                if told.group(write.group_id) and write.committed is not None and told.topic(write.committed.topic)
            )
            continue
        kind = "data"
        if header.is_control:
            is_commit = decode_control(decode_records(batch)[0]).type is ControlType.COMMIT
            kind = "commit" if is_commit else "abort"
        write = TransactionWrite(
            partition.tp,
            header.producer_id,
            header.producer_epoch,
            kind,
            header.base_offset,
            header.next_offset - 1,
            header.max_timestamp_ms,
        )
        if kind == "data" and found and (joined := _joined(found[-1], write)) is not None:
            found[-1] = joined
        else:
            found.append(write)
    return room_bytes


def _offset_before(partition: Partition, since_ms: int) -> int:
    """Where to begin: at the first record that is not older than a minute before; producers' clocks differ."""
    found = partition.log.offset_for_timestamp(max(since_ms - 60_000, 0))
    start = partition.log.local_start_offset  # what is before, in the remote storage, is not looked at
    return start if found is None else max(found.offset, start)


def _joined(before: TransactionWrite, write: TransactionWrite) -> TransactionWrite | None:
    """Return two stretches of data of one transaction as one, other producers' batches between them or not."""
    same = (before.partition, before.producer_id, before.producer_epoch, before.kind)
    if same != (write.partition, write.producer_id, write.producer_epoch, write.kind):
        return None
    return TransactionWrite(*same, before.first_offset, write.last_offset, write.time_ms)


def _offsets(
    tp: TopicPartition, batch: memoryview, producer_id: int, producer_epoch: int
) -> Iterator[TransactionWrite]:
    for record in decode_records(batch):
        key = None if record.key is None else decode_offsets_key(record.key)
        if isinstance(key, OffsetCommitKey) and record.value is not None:
            yield TransactionWrite(
                tp,
                producer_id,
                producer_epoch,
                "offsets",
                record.offset,
                record.offset,
                record.timestamp_ms,
                key.group_id,
                key.partition,
                decode_offset_value(record.value).offset,
            )
