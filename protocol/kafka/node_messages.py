"""What nodes ask each other about transactions: WriteTxnMarkers v2 and AddPartitionsToTxn v5.

Kafka's own messages, with what Kafka's lack in tagged fields that others step over (KIP-482): which topic a name means
(R8), whose epoch a marker carries, and where in a trace a transaction begins. Answers are in the order of the request,
so one that names a transactional id twice is understood.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TransactionVersion, TxnMarker
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.kafka.api import error_code_of
from semel.protocol.kafka.tagged_fields import read_tags, write_tag
from semel.protocol.kafka.wire import ANY_NUMBER, Buffer, WireFormatError, WireReader, WireWriter, join_parts
from semel.protocol.trace_context import TraceContext

WRITE_TXN_MARKERS_VERSION: Final = 2
ADD_PARTITIONS_TO_TXN_VERSION: Final = 5

Errors = Mapping[TopicPartition, ErrorCode]

_TOPIC_ID_TAG: Final = 10_000
_COORDINATOR_TAG: Final = 10_000
_TRACE_TAG: Final = 10_000
_NO_COORDINATOR: Final = b"\xff\xff\xff\xff"
_TOPIC_ID_BYTES: Final = 16
_TOPIC_BYTES_MIN: Final = 1 + 1 + 1
_MARKER_BYTES_MIN: Final = 8 + 2 + 1 + 1 + 4 + 1 + 1
_TRANSACTION_BYTES_MIN: Final = 1 + 8 + 2 + 1 + 1 + 1
_MARKER_RESULT_BYTES_MIN: Final = 8 + 1 + 1
_TRANSACTION_RESULT_BYTES_MIN: Final = 1 + 1 + 1
_PARTITION_BYTES: Final = 4
_PARTITION_RESULT_BYTES: Final = 4 + 2 + 1


# --- WriteTxnMarkers --------------------------------------------------------------------------------------------------


def build_markers(markers: Sequence[TxnMarker]) -> bytes:
    """Return the body of the request."""
    writer = WireWriter()
    writer.write_count(len(markers), True)
    for marker in markers:
        writer.write_int64(marker.producer.producer_id)
        writer.write_int16(marker.producer.producer_epoch)
        writer.write_int8(marker.committed)
        _write_topics(writer, marker.partitions, marker.topic_ids)
        writer.write_int32(marker.coordinator_epoch)
        writer.write_int8(marker.version)
        writer.write_uvarint(1)
        write_tag(writer, _COORDINATOR_TAG, marker.coordinator.to_bytes(4, "big", signed=True))
    writer.write_no_tags()
    return join_parts(writer.finish())


def parse_markers(body: Buffer, entries_max: int = ANY_NUMBER) -> list[TxnMarker]:
    """Return the markers of a request. Raises `WireFormatError`."""
    reader = WireReader(body, 0, entries_max)
    markers = []
    for _ in range(_count(reader, _MARKER_BYTES_MIN)):
        producer = ProducerIdAndEpoch(reader.read_int64(), reader.read_int16())
        committed = reader.read_bool()
        partitions, topic_ids = _read_topics(reader)
        coordinator_epoch = reader.read_int32()
        version = _version(reader.read_int8())
        coordinator = int.from_bytes(read_tags(reader).get(_COORDINATOR_TAG, _NO_COORDINATOR)[:4], "big", signed=True)
        markers.append(TxnMarker(producer, coordinator_epoch, committed, partitions, version, coordinator, topic_ids))
    reader.skip_tagged_fields()
    return markers


def build_marker_results(results: Iterable[tuple[int, Errors]]) -> bytes:
    """Return the body of the answer: the producer id of each marker, and how it went on its partitions."""
    items = list(results)
    writer = WireWriter()
    writer.write_count(len(items), True)
    for producer_id, errors in items:
        writer.write_int64(producer_id)
        _write_errors(writer, errors)
        writer.write_no_tags()
    writer.write_no_tags()
    return join_parts(writer.finish())


def parse_marker_results(body: Buffer) -> list[tuple[int, Errors]]:
    """Return what `build_marker_results` was given. Raises `WireFormatError`."""
    reader = WireReader(body)
    results = []
    for _ in range(_count(reader, _MARKER_RESULT_BYTES_MIN)):
        producer_id = reader.read_int64()
        results.append((producer_id, _read_errors(reader)))
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    return results


# --- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


def build_transactions(requests: Sequence[AddPartitionsToTxnRequest]) -> bytes:
    """Return the body of the request: each transaction with the partitions to add, or to verify."""
    writer = WireWriter()
    writer.write_count(len(requests), True)
    for request in requests:
        writer.write_string(request.transactional_id, True)
        writer.write_int64(request.producer.producer_id)
        writer.write_int16(request.producer.producer_epoch)
        writer.write_int8(request.verify_only)
        _write_topics(writer, request.partitions, request.topic_ids)
        if request.trace is None:
            writer.write_no_tags()
        else:
            writer.write_uvarint(1)
            write_tag(writer, _TRACE_TAG, request.trace.encode())
    writer.write_no_tags()
    return join_parts(writer.finish())


def parse_transactions(body: Buffer, entries_max: int = ANY_NUMBER) -> list[AddPartitionsToTxnRequest]:
    """Return the transactions of a request. Raises `WireFormatError`."""
    reader = WireReader(body, 0, entries_max)
    requests = []
    for _ in range(_count(reader, _TRANSACTION_BYTES_MIN)):
        transactional_id = reader.read_string(True)
        producer = ProducerIdAndEpoch(reader.read_int64(), reader.read_int16())
        verify_only = reader.read_bool()
        partitions, topic_ids = _read_topics(reader)
        trace = TraceContext.decode(read_tags(reader).get(_TRACE_TAG, b""))
        version = TransactionVersion.V1 if verify_only else TransactionVersion.V2
        requests.append(
            AddPartitionsToTxnRequest(transactional_id, producer, partitions, verify_only, version, trace, topic_ids)
        )
    reader.skip_tagged_fields()
    return requests


def build_transaction_results(results: Iterable[tuple[str, Errors]]) -> bytes:
    """Return the body of the answer: for each transaction the errors of its partitions."""
    items = list(results)
    writer = WireWriter()
    writer.write_int32(0)  # throttle time
    writer.write_int16(ErrorCode.NONE)
    writer.write_count(len(items), True)
    for transactional_id, errors in items:
        writer.write_string(transactional_id, True)
        _write_errors(writer, errors)
        writer.write_no_tags()
    writer.write_no_tags()
    return join_parts(writer.finish())


def parse_transaction_results(body: Buffer) -> list[tuple[str, Errors]]:
    """Return what `build_transaction_results` was given. Raises `WireFormatError`."""
    reader = WireReader(body)
    reader.read_int32()  # throttle time
    error = error_code_of(reader.read_int16())
    if error is not ErrorCode.NONE:
        raise WireFormatError(f"AddPartitionsToTxn as a whole was answered {error.name}")
    results = []
    for _ in range(_count(reader, _TRANSACTION_RESULT_BYTES_MIN)):
        transactional_id = reader.read_string(True)
        results.append((transactional_id, _read_errors(reader)))
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    return results


# --- What both have ---------------------------------------------------------------------------------------------------


def _write_topics(writer: WireWriter, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, TopicId]) -> None:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    writer.write_count(len(topics), True)
    for name, numbers in topics.items():
        writer.write_string(name, True)
        writer.write_count(len(numbers), True)
        for number in numbers:
            writer.write_int32(number)
        topic_id = topic_ids.get(name)
        if topic_id is None:
            writer.write_no_tags()
        else:
            writer.write_uvarint(1)
            write_tag(writer, _TOPIC_ID_TAG, topic_id.bytes)


def _read_topics(reader: WireReader) -> tuple[tuple[TopicPartition, ...], dict[str, TopicId]]:
    partitions: dict[TopicPartition, None] = {}
    topic_ids: dict[str, TopicId] = {}
    for _ in range(_count(reader, _TOPIC_BYTES_MIN)):
        name = reader.read_string(True)
        for _ in range(_count(reader, _PARTITION_BYTES)):
            partitions[TopicPartition(name, reader.read_int32())] = None
        topic_id = read_tags(reader).get(_TOPIC_ID_TAG)
        if topic_id is not None:
            if len(topic_id) != _TOPIC_ID_BYTES:
                raise WireFormatError(f"a topic's id has {_TOPIC_ID_BYTES} bytes, not {len(topic_id)}")
            topic_ids[name] = TopicId(UUID(bytes=topic_id))
    return tuple(partitions), topic_ids


def _write_errors(writer: WireWriter, errors: Errors) -> None:
    topics: defaultdict[str, list[tuple[int, ErrorCode]]] = defaultdict(list)
    for tp, error in errors.items():
        topics[tp.topic].append((tp.partition, error))
    writer.write_count(len(topics), True)
    for name, numbers in topics.items():
        writer.write_string(name, True)
        writer.write_count(len(numbers), True)
        for number, error in numbers:
            writer.write_int32(number)
            writer.write_int16(error)
            writer.write_no_tags()
        writer.write_no_tags()


def _read_errors(reader: WireReader) -> Errors:
    errors: dict[TopicPartition, ErrorCode] = {}
    for _ in range(_count(reader, _TOPIC_BYTES_MIN)):
        name = reader.read_string(True)
        for _ in range(_count(reader, _PARTITION_RESULT_BYTES)):
            tp = TopicPartition(name, reader.read_int32())
            errors[tp] = error_code_of(reader.read_int16())
            reader.skip_tagged_fields()
        reader.skip_tagged_fields()
    return errors


def _count(reader: WireReader, element_bytes_min: int) -> int:
    count = reader.read_count(True, element_bytes_min)
    if count < 0:
        raise WireFormatError(f"the array before {reader.position} must not be null")
    return count


def _version(value: int) -> TransactionVersion:
    try:
        return TransactionVersion(value)
    except ValueError:
        raise WireFormatError(f"there is no transaction version {value}") from None
