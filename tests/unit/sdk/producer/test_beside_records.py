"""A commit is asked for on its records' connection, and by gRPC wherever that is not answered with a yes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import semel
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.end_txn import END_TXN_VERSION
from semel.protocol.kafka.messages import build_response
from semel.protocol.quotas import QuotaAlteration, QuotaEntity
from semel.runtime.kafka_client.connection import ConnectionLostError
from semel.sdk.producer import beside_records
from semel.sdk.producer.beside_records import BesideRecords
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import Key, Place
from semel.testing import Broker

WAIT_S = 30
PRODUCER = ProducerIdAndEpoch(5, 1)
END = "EndTransaction"


@pytest.fixture
def node() -> Iterator[Broker]:
    with Broker() as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("enriched", partitions=1)
        yield node


def grpc_calls(producer: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each gRPC call that the producer makes. None is made for lack of patience."""
    monkeypatch.setattr(beside_records, "PATIENCE_S", WAIT_S)
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
        producer.begin_transaction()
        producer.send("enriched", b"dropped").result(WAIT_S)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("enriched", b"c")
        assert called.count(END) == 1  # the abort
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
    """A connection that answers as it is told; None: not at all."""

    def __init__(
        self, answer: bytes | SemelError | None, *, versions: bool = True, in_flight: int = 0, throttled: bool = False
    ) -> None:
        self._answer = answer
        self._versions = versions
        self.in_flight = in_flight
        self.is_throttled = throttled
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
        elif self._answer is not None:
            answer.set_result(memoryview(self._answer))
        return answer


def ended(error: ErrorCode) -> bytes:
    return bytes(
        build_response(
            ApiKey.END_TXN, END_TXN_VERSION, throttle_time=0, error_code=error, producer_id=5, producer_epoch=2
        )
    )


def asker(connection: Answers | None) -> tuple[BesideRecords, list[Key]]:
    keys: list[Key] = []

    def connection_to(key: Key) -> Any:
        keys.append(key)
        return connection

    return BesideRecords("t", ClientOptions("127.0.0.1:1", api_timeout_ms=2_000), connection_to), keys


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
        Answers(None),
    ],
    ids=["no connection", "too old", "lost", "unreadable", "another node", "fenced", "later", "silent"],
)
def test_grpc_is_asked_for_a_decision_unless_there_was_one(connection: Answers | None) -> None:
    beside, keys = asker(connection)
    assert asyncio.run(beside.commit(PRODUCER)) is None
    assert keys == [(Place.TRANSACTION, "t")]


def test_a_decision_gives_the_identity_of_the_next_transaction() -> None:
    beside, _ = asker(Answers(ended(ErrorCode.NONE)))
    assert asyncio.run(beside.commit(PRODUCER)) == ProducerIdAndEpoch(5, 2)


@pytest.mark.parametrize("before", ["records", "quota"])
def test_nothing_is_asked_behind_what_would_hold_it_up(before: str) -> None:
    connection = Answers(ended(ErrorCode.NONE), in_flight=int(before == "records"), throttled=before == "quota")
    beside, _ = asker(connection)
    assert asyncio.run(beside.commit(PRODUCER)) is None
    assert connection.asked == []


# --- What stands before it on the connection --------------------------------------------------------------------------


async def in_flight(producer: Any) -> int:
    channels = producer._core.client.connections._channels.values()
    return sum(channel.connection.in_flight for channel in channels if channel.connection is not None)


def with_unanswered_produce(node: Broker, producer: Any) -> None:
    """Leave a transaction open whose record is sent and not answered."""
    with producer.transaction():
        producer.send("enriched", b"a")
    node.pause_partition("enriched")
    producer.begin_transaction()
    producer.send("enriched", b"b")
    deadline = time.monotonic() + WAIT_S
    while not producer._core.client.run(in_flight(producer)):
        assert time.monotonic() < deadline


def test_an_abort_does_not_wait_for_records_that_are_not_answered(node: Broker) -> None:
    producer = semel.Producer(node.bootstrap, transactional_id="t", request_timeout_ms=60_000, max_block_ms=20_000)
    with_unanswered_produce(node, producer)
    producer.abort_transaction()
    producer.close(timeout_s=WAIT_S)


def test_a_close_aborts_though_records_are_not_answered(node: Broker) -> None:
    producer = semel.Producer(node.bootstrap, transactional_id="t", request_timeout_ms=60_000)
    with_unanswered_produce(node, producer)
    producer.close(timeout_s=20)
    with semel.Admin(node.bootstrap) as admin:
        assert admin.transaction("t").state != "Ongoing"


def test_a_producer_over_its_quota_commits_without_waiting_for_it(
    node: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the node does not read for a minute would be aborted before that is over (T9)."""
    with semel.Admin(node.bootstrap) as admin:
        admin.alter_client_quotas([QuotaAlteration(QuotaEntity(client_id="slow"), {"producer_byte_rate": 2000.0})])
    with semel.Producer(node.bootstrap, transactional_id="t", client_id="slow", transaction_timeout_ms=60_000) as slow:
        called = grpc_calls(slow, monkeypatch)
        with slow.transaction():
            slow.send("enriched", b"a")
        assert END not in called
        with slow.transaction():
            slow.send("enriched", b"b" * 200_000)
        assert END in called
    assert len(values(node)) == 2
