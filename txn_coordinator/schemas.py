"""The keys and values of `__transaction_state`, in Kafka's TransactionLogKey and TransactionLogValue schemas.

Version 1 is written, versions 0 and 1 are read. Kafka extends version 1 by tagged fields alone (KIP-915), and readers
step over tags they do not know; Semel's own fields have tags from 10,000 on, far from Kafka's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicId, TopicPartition
from semel.protocol.schema import Reader, Writer
from semel.protocol.trace_context import TransactionTrace
from semel.txn_coordinator.state import DecisionCause, Ending, TransactionMetadata, TransactionState, state_by_number

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1

_TAG_PREVIOUS_PRODUCER_ID: Final = 0
_TAG_NEXT_PRODUCER_ID: Final = 1
_TAG_CLIENT_TRANSACTION_VERSION: Final = 2
_TAG_NEXT_PRODUCER_EPOCH: Final = 3
_TAG_LAST_PRODUCER_EPOCH: Final = 10_000
"""Semel's: Kafka keeps it in memory alone, so there a retry across a change of coordinator is fenced."""
_TAG_ATTEMPT: Final = 10_001
"""Semel's: of the writers of shared transactions (T12)."""
_TAG_TRACE: Final = 10_002
"""Semel's: where the transaction, or its decision, belongs in traces (E4)."""
_TAG_CLIENT: Final = 10_003
"""Semel's: the producer instance that has the id, for those who look into it later."""
_TAG_ENDING: Final = 10_004
"""Semel's: why it was decided, where the producer itself did not ask for that."""
_TAG_TOPIC_ID: Final = 10_000
"""Semel's, of a topic in a transaction: which one of this name (R8). Older records have none."""


_TOPIC_ID_BYTES: Final = 16


def encode_key(transactional_id: str) -> bytes:
    writer = Writer()
    writer.int16(KEY_VERSION)
    writer.string(transactional_id)
    return writer.to_bytes()


def decode_key(key: bytes) -> str | None:
    """Return the transactional id, or None for a kind of key that this version does not know (Kafka steps over it)."""
    reader = Reader(key)
    if reader.int16() != KEY_VERSION:
        return None
    transactional_id = reader.string()
    reader.expect_end()
    return transactional_id


def encode_value(txn: TransactionMetadata, version: int = VALUE_VERSION) -> bytes:
    """Return the record's value. Version 0 has no room for rotation, client version and last epoch."""
    assert txn.state not in _NEVER_STORED, f"{txn.state.label} is never stored (T1)"
    topics = None if txn.state is TransactionState.EMPTY else _by_topic(txn.partitions)
    writer = Writer()
    writer.int16(version)
    writer.int64(txn.producer_id)
    writer.int16(txn.producer_epoch)
    writer.int32(txn.timeout_ms)
    writer.int8(txn.state)
    if version == 0:
        writer.nullable_array(topics, lambda topic: _write_topic(writer, topic))
    else:
        writer.compact_nullable_array(topics, lambda topic: _write_compact_topic(writer, topic, txn.topic_ids))
    writer.int64(txn.last_update_ms)
    writer.int64(txn.start_ms)
    if version >= 1:
        writer.tagged_fields(_tagged(txn))
    return writer.to_bytes()


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Return what a record says about `transactional_id`.

    Raises `CorruptDataError` for bytes that do not fit the schema, and `FatalError` for a version newer than this.
    """
    reader = Reader(value)
    version = reader.int16()
    if version not in (0, 1):
        raise FatalError(
            f"the record of transactional id {transactional_id!r} has version {version}; this node reads 0 and 1: "
            "run the version that wrote it",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    producer_id = reader.int64()
    producer_epoch = reader.int16()
    timeout_ms = reader.int32()
    state = state_by_number(reader.int8())
    topic_ids: dict[str, TopicId] = {}
    if version == 0:
        topics = reader.nullable_array(lambda: _read_topic(reader))
    else:
        topics = reader.compact_nullable_array(lambda: _read_compact_topic(reader, topic_ids))
    last_update_ms = reader.int64()
    start_ms = reader.int64()
    tags = reader.tagged_fields() if version >= 1 else {}
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        last_update_ms=last_update_ms,
        partitions=frozenset(tp for topic in topics or () for tp in topic),
        start_ms=start_ms,
        version=_client_version(_number(tags, _TAG_CLIENT_TRANSACTION_VERSION, 2, 0)),
        previous_producer_id=_number(tags, _TAG_PREVIOUS_PRODUCER_ID, 8, NO_PRODUCER_ID),
        next_producer_id=_number(tags, _TAG_NEXT_PRODUCER_ID, 8, NO_PRODUCER_ID),
        last_producer_epoch=_number(tags, _TAG_LAST_PRODUCER_EPOCH, 2, NO_PRODUCER_EPOCH),
        next_producer_epoch=_number(tags, _TAG_NEXT_PRODUCER_EPOCH, 2, NO_PRODUCER_EPOCH),
        attempt=tags.get(_TAG_ATTEMPT, b"").decode(),
        trace=TransactionTrace.decode(tags[_TAG_TRACE]) if _TAG_TRACE in tags else None,
        client=ClientOrigin.decode(tags[_TAG_CLIENT]) if _TAG_CLIENT in tags else None,
        ending=_decode_ending(tags[_TAG_ENDING]) if _TAG_ENDING in tags else None,
        topic_ids=topic_ids,
    )


_NEVER_STORED = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})


def _tagged(txn: TransactionMetadata) -> dict[int, bytes]:
    """Kafka leaves out a tagged field that has its default."""
    fields: dict[int, bytes] = {}
    if txn.previous_producer_id != NO_PRODUCER_ID:
        fields[_TAG_PREVIOUS_PRODUCER_ID] = txn.previous_producer_id.to_bytes(8, "big", signed=True)
    if txn.next_producer_id != NO_PRODUCER_ID:
        fields[_TAG_NEXT_PRODUCER_ID] = txn.next_producer_id.to_bytes(8, "big", signed=True)
    if txn.version != TransactionVersion.V0:
        fields[_TAG_CLIENT_TRANSACTION_VERSION] = int(txn.version).to_bytes(2, "big", signed=True)
    if txn.next_producer_epoch != NO_PRODUCER_EPOCH:
        fields[_TAG_NEXT_PRODUCER_EPOCH] = txn.next_producer_epoch.to_bytes(2, "big", signed=True)
    if txn.last_producer_epoch != NO_PRODUCER_EPOCH:
        fields[_TAG_LAST_PRODUCER_EPOCH] = txn.last_producer_epoch.to_bytes(2, "big", signed=True)
    if txn.attempt:
        fields[_TAG_ATTEMPT] = txn.attempt.encode()
    if txn.trace is not None:
        fields[_TAG_TRACE] = txn.trace.encode()
    if txn.client is not None:
        fields[_TAG_CLIENT] = txn.client.encode()
    if txn.ending is not None:
        fields[_TAG_ENDING] = _encode_ending(txn.ending)
    return fields


def _encode_ending(ending: Ending) -> bytes:
    writer = Writer()
    writer.compact_string(ending.cause.value)
    return writer.to_bytes() + (b"" if ending.by is None else ending.by.encode())


def _decode_ending(data: bytes) -> Ending | None:
    """A cause that this version does not know is not told, and no reason to read no further."""
    reader = Reader(data)
    try:
        cause = _CAUSES.get(reader.compact_string())
    except CorruptDataError:
        return None
    by = data[reader.position :]
    return None if cause is None else Ending(cause, ClientOrigin.decode(by) if by else None)


_CAUSES: Final = {cause.value: cause for cause in DecisionCause}


def _number(tags: dict[int, bytes], tag: int, size: int, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != size:
        raise FatalError(f"the tagged field {tag} has {len(data)} bytes instead of {size}", ErrorCode.CORRUPT_MESSAGE)
    return int.from_bytes(data, "big", signed=True)


def _client_version(number: int) -> TransactionVersion:
    """A version above those known bumps epochs too, as far as this coordinator is concerned."""
    return TransactionVersion(min(max(number, TransactionVersion.V0), TransactionVersion.V2))


def _by_topic(partitions: frozenset[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Sorted, so that equal states have equal bytes."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for tp in sorted(partitions):
        topics[tp.topic].append(tp.partition)
    return list(topics.items())


def _write_topic(writer: Writer, topic: tuple[str, list[int]]) -> None:
    writer.string(topic[0])
    writer.array(topic[1], writer.int32)


def _write_compact_topic(writer: Writer, topic: tuple[str, list[int]], topic_ids: Mapping[str, TopicId]) -> None:
    writer.compact_string(topic[0])
    writer.compact_array(topic[1], writer.int32)
    topic_id = topic_ids.get(topic[0])
    writer.tagged_fields(None if topic_id is None else {_TAG_TOPIC_ID: topic_id.bytes})


def _read_topic(reader: Reader) -> list[TopicPartition]:
    name = reader.string()
    return [TopicPartition(name, partition) for partition in reader.array(reader.int32)]


def _read_compact_topic(reader: Reader, topic_ids: dict[str, TopicId]) -> list[TopicPartition]:
    """Read a topic's partitions, and put its id into `topic_ids`, where the record has it."""
    name = reader.compact_string()
    partitions = [TopicPartition(name, partition) for partition in reader.compact_array(reader.int32)]
    topic_id = reader.tagged_fields().get(_TAG_TOPIC_ID)
    if topic_id is not None:
        if len(topic_id) != _TOPIC_ID_BYTES:
            raise FatalError(f"the id of topic {name} has {len(topic_id)} bytes", ErrorCode.CORRUPT_MESSAGE)
        topic_ids[name] = TopicId(UUID(bytes=topic_id))
    return partitions
