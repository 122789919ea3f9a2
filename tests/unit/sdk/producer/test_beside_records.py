"""What a transaction asks on its records' connections, and that gRPC is asked wherever that does not go through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import semel
from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.end_txn import END_TXN_VERSION
from semel.protocol.kafka.messages import build_response
from semel.protocol.kafka.txn_offset_commit import TXN_OFFSET_COMMIT_VERSION
from semel.runtime.kafka_client.connection import ConnectionLostError
from semel.sdk.producer.beside_records import OFFSETS_MAX, BesideRecords
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import Key, Place
from semel.testing import Broker

WAIT_S = 30
TP = semel.TopicPartition("orders", 0)
PRODUCER = ProducerIdAndEpoch(5, 1)
END, OFFSETS = "EndTransaction", "CommitOffsets"


@pytest.fixture
def node() -> Iterator[Broker]:
    with Broker() as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
            admin.create_topic("enriched", partitions=1)
        yield node


def grpc_calls(producer: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each gRPC call that the producer makes."""
    control, names = producer._core.client.control, []
    real: Callable[..., Awaitable[Any]] = control.call

    async def call(rpc: Any, *what: Any, **more: Any) -> Any:
        names.append(rpc.name)
        return await real(rpc, *what, **more)

    monkeypatch.setattr(control, "call", call)
    return names


def values(node: Broker) -> list[bytes | None]:
    return [record.value for record in node.records("enriched")]


def test_a_transaction_is_ended_where_its_records_went(node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with semel.Producer(node.bootstrap, transactional_id="t") as producer:
        called = grpc_calls(producer, monkeypatch)
        for value in (b"a", b"b"):
            with producer.transaction():
                producer.send("enriched", value)
                producer.send_offsets({TP: 1}, semel.GroupMetadata("g"))
        producer.begin_transaction()
        producer.send("enriched", b"dropped").result(WAIT_S)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("enriched", b"c")
        # The first offsets may come before the records, and with them before there is a connection.
        assert END not in called
        assert called.count(OFFSETS) <= 1
    with semel.Admin(node.bootstrap) as admin:
        assert admin.group_offsets("g")[TP].offset == 1
    assert values(node) == [b"a", b"b", b"c"]


def test_T13_a_token_goes_by_grpc(node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with semel.Producer(node.bootstrap, transactional_id="t") as producer:
        called = grpc_calls(producer, monkeypatch)
        for expected in (True, False):
            with producer.transaction(token="once") as transaction:
                producer.send("enriched", b"a").result(WAIT_S)
            assert transaction.already_committed is not expected
        assert called.count(END) == 2
    assert values(node) == [b"a"]


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_T7_a_decision_that_is_lost_on_its_way_is_asked_for_again(
    node: Broker, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    with semel.Producer(node.bootstrap, transactional_id="t") as producer:
        called = grpc_calls(producer, monkeypatch)
        producer.begin_transaction()
        producer.send("enriched", b"a").result(WAIT_S)
        lose = node.drop_commit_answer if lost == "answer" else node.drop_commit_request
        lose("t")
        producer.commit_transaction()
        assert END in called
        with producer.transaction():
            producer.send("enriched", b"b")
    assert values(node) == [b"a", b"b"]


# --- Whatever is not a clear yes --------------------------------------------------------------------------------------


class Answers:
    """A connection that answers as it is told."""

    def __init__(self, answer: bytes | SemelError, versions: bool = True) -> None:
        self._answer = answer
        self._versions = versions
        self.asked: list[ApiKey] = []

    def highest_version(self, api_key: ApiKey, lowest: int, highest: int) -> int:
        if not self._versions:
            raise FatalError("too old", ErrorCode.UNSUPPORTED_VERSION)
        return highest

    def request(self, api_key: ApiKey, *_: Any, **__: Any) -> asyncio.Future[memoryview]:
        self.asked.append(api_key)
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if isinstance(self._answer, SemelError):
            answer.set_exception(self._answer)
        else:
            answer.set_result(memoryview(self._answer))
        return answer


def ended(error: ErrorCode) -> bytes:
    return bytes(
        build_response(
            ApiKey.END_TXN, END_TXN_VERSION, throttle_time=0, error_code=error, producer_id=5, producer_epoch=2
        )
    )


def committed(*errors: ErrorCode) -> bytes:
    partitions = [{"partition_index": n, "error_code": error} for n, error in enumerate(errors)]
    topics = [{"name": "orders", "partitions": partitions}]
    return bytes(build_response(ApiKey.TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION, throttle_time=0, topics=topics))


def asker(connection: Answers | None) -> tuple[BesideRecords, list[Key]]:
    keys: list[Key] = []

    def connection_to(key: Key) -> Any:
        keys.append(key)
        return connection

    return BesideRecords("t", ClientOptions("127.0.0.1:1"), connection_to), keys


@pytest.mark.parametrize(
    "connection",
    [
        None,
        Answers(b"", versions=False),
        Answers(ConnectionLostError("gone")),
        Answers(b"\x00"),
        Answers(ended(ErrorCode.NOT_COORDINATOR)),
        Answers(ended(ErrorCode.PRODUCER_FENCED)),
        Answers(ended(ErrorCode.CONCURRENT_TRANSACTIONS)),
    ],
    ids=["no connection", "too old", "lost", "unreadable", "another node", "fenced", "later"],
)
def test_grpc_is_asked_for_a_decision_unless_there_was_one(connection: Answers | None) -> None:
    beside, keys = asker(connection)
    assert asyncio.run(beside.end(PRODUCER, commit=True)) is None
    assert keys == [(Place.TRANSACTION, "t")]


def test_a_decision_gives_the_identity_of_the_next_transaction() -> None:
    beside, _ = asker(Answers(ended(ErrorCode.NONE)))
    assert asyncio.run(beside.end(PRODUCER, commit=True)) == ProducerIdAndEpoch(5, 2)


@pytest.mark.parametrize(
    "connection",
    [
        None,
        Answers(b"", versions=False),
        Answers(ConnectionLostError("gone")),
        Answers(b"\x00"),
        Answers(committed(ErrorCode.ILLEGAL_GENERATION)),
        Answers(committed(ErrorCode.NONE, ErrorCode.NONE)),
        Answers(committed()),
    ],
    ids=["no connection", "too old", "lost", "unreadable", "refused", "another one's", "empty"],
)
def test_O1_offsets_go_by_grpc_unless_all_of_them_are_in_the_transaction(connection: Answers | None) -> None:
    beside, keys = asker(connection)
    assert not asyncio.run(beside.commit_offsets(PRODUCER, {TP: OffsetAndMetadata(1)}, GroupMetadata("g")))
    assert keys == [(Place.GROUP, "g")]


def test_offsets_that_are_all_in_the_transaction_go_by_nothing_else() -> None:
    connection = Answers(committed(ErrorCode.NONE))
    beside, _ = asker(connection)
    assert asyncio.run(beside.commit_offsets(PRODUCER, {TP: OffsetAndMetadata(1)}, GroupMetadata("g")))
    assert connection.asked == [ApiKey.TXN_OFFSET_COMMIT]


def test_very_many_offsets_go_by_grpc_in_several_requests() -> None:
    connection = Answers(committed(ErrorCode.NONE))
    beside, _ = asker(connection)
    offsets = {semel.TopicPartition("orders", n): OffsetAndMetadata(1) for n in range(OFFSETS_MAX + 1)}
    assert not asyncio.run(beside.commit_offsets(PRODUCER, offsets, GroupMetadata("g")))
    assert connection.asked == []
