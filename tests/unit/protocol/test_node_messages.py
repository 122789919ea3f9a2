"""What nodes ask each other: read back as it was, and Kafka's own messages for everybody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TransactionVersion, TxnMarker
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import load_entity
from semel.protocol.kafka.entity_reader import entity_reader
from semel.protocol.kafka.messages import build_response, parse_request
from semel.protocol.kafka.node_messages import (
    build_marker_results,
    build_markers,
    build_transaction_results,
    build_transactions,
    parse_marker_results,
    parse_markers,
    parse_transaction_results,
    parse_transactions,
)
from semel.protocol.kafka.producers_before import ProducersBefore, ProducersBeforeAnswer
from semel.protocol.kafka.replica_ends import build_ends, build_ends_asked, parse_ends, parse_ends_asked
from semel.protocol.kafka.wire import WireFormatError, WireReader
from semel.protocol.trace_context import TraceContext

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PRODUCER = ProducerIdAndEpoch(1 << 40, 7)
IDS = {"a": new_topic_id()}

MARKERS = [
    TxnMarker(PRODUCER, 5, True, (A0, A1, B0), TransactionVersion.V2, 3, IDS),
    TxnMarker(ProducerIdAndEpoch(9, 0), 6, False, (B0,), TransactionVersion.V1),
]
TRANSACTIONS = [
    AddPartitionsToTxnRequest("t", PRODUCER, (A0, B0), topic_ids=IDS, trace=TraceContext(1, 2, 1)),
    AddPartitionsToTxnRequest("t", PRODUCER, (A1,), verify_only=True, version=TransactionVersion.V1),
]
ASKED = ProducersBefore(A1, IDS["a"], 4, 1 << 40, 17)
ENDS = {A0: (7, 1 << 40), A1: ErrorCode.KAFKA_STORAGE_ERROR, B0: (-1, 0)}
ERRORS = [{A0: ErrorCode.NONE, A1: ErrorCode.NOT_LEADER_OR_FOLLOWER, B0: ErrorCode.REQUEST_TIMED_OUT}, {}]


def test_what_was_built_is_read() -> None:
    markers = parse_markers(build_markers(MARKERS))
    assert markers == MARKERS
    assert [each.topic_ids for each in markers] == [IDS, {}]
    transactions = parse_transactions(build_transactions(TRANSACTIONS))
    assert transactions == TRANSACTIONS
    assert [each.topic_ids for each in transactions] == [IDS, {}]
    results = list(zip((1, 2), ERRORS, strict=True))
    assert parse_marker_results(build_marker_results(results)) == results
    named = list(zip(("x", "x"), ERRORS, strict=True))
    assert parse_transaction_results(build_transaction_results(named)) == named
    assert ProducersBefore.parse(ASKED.build()) == ASKED
    for answer in (
        ProducersBeforeAnswer(snapshot=b"all of them"),
        ProducersBeforeAnswer(snapshot=b"the first ones", has_more=True),
        ProducersBeforeAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, "node 3 leads"),
    ):
        assert ProducersBeforeAnswer.parse(answer.build(A1), A1) == answer
    assert parse_ends_asked(build_ends_asked(2, {A0: 5, B0: 1 << 30})) == {A0: 5, B0: 1 << 30}
    assert parse_ends(build_ends(ENDS)) == {A0: (7, 1 << 40), B0: (-1, 0)}


def test_kafkas_own_readers_read_the_requests() -> None:
    request = parse_request(ApiKey.WRITE_TXN_MARKERS, 2, build_markers(MARKERS))
    first = request.markers[0]
    assert (first.producer_id, first.producer_epoch, first.transaction_result) == (*PRODUCER, True)
    assert (first.coordinator_epoch, first.transaction_version) == (5, 2)
    assert [(topic.name, topic.partition_indexes) for topic in first.topics] == [("a", (0, 1)), ("b", (0,))]
    request = parse_request(ApiKey.ADD_PARTITIONS_TO_TXN, 5, build_transactions(TRANSACTIONS))
    assert [each.verify_only for each in request.transactions] == [False, True]
    assert [topic.partitions for topic in request.transactions[0].topics] == [(0,), (0,)]
    request = parse_request(ApiKey.DESCRIBE_PRODUCERS, 0, ASKED.build())
    assert [(topic.name, topic.partition_indexes) for topic in request.topics] == [("a", (1,))]
    request = parse_request(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, build_ends_asked(2, {A1: 5}))
    assert (request.replica_id, request.topics[0].topic) == (2, "a")
    [partition] = request.topics[0].partitions
    assert (partition.partition, partition.current_leader_epoch, partition.leader_epoch) == (1, 5, -1)


def test_kafkas_own_messages_are_the_answers() -> None:
    response = entity_reader(load_entity(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "response"))(WireReader(build_ends(ENDS)))
    assert [one.partitions[0].end_offset for one in response.topics] == [1 << 40, -1, 0]
    assert [one.partitions[0].error_code for one in response.topics] == [0, 56, 0]
    ours = build_marker_results([(7, ERRORS[0])])
    topics = [
        {"name": "a", "partitions": [{"partition_index": 0, "error_code": 0}, {"partition_index": 1, "error_code": 6}]},
        {"name": "b", "partitions": [{"partition_index": 0, "error_code": 7}]},
    ]
    assert ours == build_response(ApiKey.WRITE_TXN_MARKERS, 2, markers=[{"producer_id": 7, "topics": topics}])
    response = entity_reader(load_entity(ApiKey.ADD_PARTITIONS_TO_TXN, 5, "response"))(
        WireReader(build_transaction_results([("t", ERRORS[0])]))
    )
    [transaction] = response.results_by_transaction
    assert transaction.transactional_id == "t"
    assert [len(topic.results_by_partition) for topic in transaction.topic_results] == [2, 1]
    refused = ProducersBeforeAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, "node 3 leads").build(A1)
    response = entity_reader(load_entity(ApiKey.DESCRIBE_PRODUCERS, 0, "response"))(WireReader(refused))
    [partition] = response.topics[0].partitions
    assert (partition.partition_index, partition.error_code, partition.active_producers) == (1, 6, ())


@pytest.mark.parametrize(
    ("whole", "parse"),
    [
        (build_markers(MARKERS), parse_markers),
        (build_transactions(TRANSACTIONS), parse_transactions),
        (ASKED.build(), ProducersBefore.parse),
        (ProducersBeforeAnswer(snapshot=b"s").build(A1), lambda data: ProducersBeforeAnswer.parse(data, A1)),
        (build_ends_asked(2, {A0: 5, B0: 6}), parse_ends_asked),
        (build_ends(ENDS), parse_ends),
    ],
    ids=["markers", "transactions", "producers", "told-producers", "asked-ends", "ends"],
)
def test_a_message_that_is_cut_is_refused(whole: bytes, parse: Callable[[bytes], object]) -> None:
    for size in range(len(whole)):
        with pytest.raises(WireFormatError):
            parse(whole[:size])


def test_a_count_that_the_message_can_not_hold_takes_no_room() -> None:
    for parse in (parse_markers, parse_transactions, parse_marker_results):
        with pytest.raises(WireFormatError):
            parse(b"\xff\xff\xff\xff\x0f" + bytes(20))
        with pytest.raises(WireFormatError, match="null"):
            parse(b"\x00")
    with pytest.raises(WireFormatError, match="entries"):
        parse_markers(build_markers(MARKERS), 4)
    for parse_count in (parse_ends_asked, parse_ends):
        with pytest.raises(WireFormatError):
            parse_count(bytes(4) + b"\xff\xff\xff\xff\x0f" + bytes(20))
    with pytest.raises(WireFormatError, match="entries"):
        parse_ends_asked(build_ends_asked(2, {A0: 5, A1: 5, B0: 6}), 2)


def test_what_is_told_of_the_producers_of_another_partition_is_refused() -> None:
    with pytest.raises(WireFormatError, match="a-1, and a-0 was asked about"):
        ProducersBeforeAnswer.parse(ProducersBeforeAnswer().build(A1), A0)


def test_producers_are_asked_for_with_what_only_a_node_says() -> None:
    """A client's DescribeProducers is another question."""
    of_a_client = b"\x02\x02a\x02\x00\x00\x00\x01\x00\x00"
    assert parse_request(ApiKey.DESCRIBE_PRODUCERS, 0, of_a_client).topics[0].name == "a"
    with pytest.raises(WireFormatError, match="36 bytes, not 0"):
        ProducersBefore.parse(of_a_client)
