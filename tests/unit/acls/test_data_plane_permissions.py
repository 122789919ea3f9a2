"""Produce and Fetch of the Kafka listener: partition by partition, also where a request or a fetch waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from permitted_node import PERMITTED, only
from running_node import batch, create_topic, run_with_node

from semel.broker.acls.rights import Rights
from semel.broker.handlers.produce.large import PART
from semel.broker.node import Node
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey, build_request_header, parse_response_header
from semel.protocol.kafka.fetch import FETCH_MAX_VERSION, FETCH_MIN_VERSION, FetchPartition, FetchRequest, FetchResponse
from semel.protocol.kafka.produce import (
    PRODUCE_MIN_VERSION,
    PRODUCE_TOPIC_ID_VERSION,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NONE = ErrorCode.NONE
T, U = TopicPartition("t", 0), TopicPartition("u", 0)


class Client:
    """One connection to the Kafka listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, key: ApiKey, version: int, body: bytes) -> None:
        frame = build_request_header(key, version, 7, "test") + body
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def answer(self, key: ApiKey, version: int) -> tuple[bytes, int]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        data = await self.reader.readexactly(size)
        return data, parse_response_header(data, key, version)[1]

    async def produce(self, version: int, request: ProduceRequest) -> ProduceResponse:
        self.send(ApiKey.PRODUCE, version, request.build(version))
        data, position = await self.answer(ApiKey.PRODUCE, version)
        return ProduceResponse.parse(data, version, position)

    async def fetch(self, version: int, request: FetchRequest) -> FetchResponse:
        self.send(ApiKey.FETCH, version, request.build(version))
        data, position = await self.answer(ApiKey.FETCH, version)
        return FetchResponse.parse(data, version, position)


async def connected(node: Node) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", node.kafka_address.port))


def run(folder: Path, test: Callable[[Node, Client], Awaitable[None]], **options: Any) -> None:
    async def with_client(node: Node) -> None:
        client = await connected(node)
        try:
            await test(node, client)
        finally:
            await client.close()

    run_with_node(folder, with_client, **options)


def ids_of(node: Node) -> Mapping[str, TopicId]:
    return {topic.name: topic.topic_id for topic in node.metadata.image.topics.values()}


def batches(
    node: Node, version: int, *topics: str, acks: int = -1, transactional_id: str | None = None, **more: Any
) -> ProduceRequest:
    """A request with one batch for each topic."""
    items = []
    for name in topics:
        item = ProducePartition(name, 0, batch(b"x", **more))
        if version >= PRODUCE_TOPIC_ID_VERSION:
            item.topic_id = ids_of(node)[name]
        items.append(item)
    return ProduceRequest(items, transactional_id, acks, 10_000)


def end_of(node: Node, tp: TopicPartition) -> int:
    partition = node.partition(tp)
    assert partition is not None
    return partition.log_end_offset


def test_S7_what_may_be_written_is_appended_and_the_rest_refused_in_every_version(tmp_path: Path) -> None:
    async def test(node: Node, client: Client) -> None:
        await only(node, [("WRITE", "topic:t"), ("READ", "topic:u")])
        for count, version in enumerate(range(PRODUCE_MIN_VERSION, PRODUCE_TOPIC_ID_VERSION + 1)):
            for acks in (1, -1):
                answer = await client.produce(version, batches(node, version, "u", "t", "u", acks=acks))
                assert [item.error for item in answer.partitions] == [DENIED, NONE, DENIED], version
            assert (end_of(node, T), end_of(node, U)) == (2 * count + 2, 0)
            alone = await client.produce(version, batches(node, version, "u"))
            assert [item.error for item in alone.partitions] == [DENIED]

    run(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_S5_a_topic_that_is_missing_is_refused_as_one_that_may_not_be_written(tmp_path: Path) -> None:
    async def test(node: Node, client: Client) -> None:
        answer = await client.produce(9, batches(node, 9, "u", "missing"))
        assert [item.error for item in answer.partitions] == [DENIED, DENIED]
        unknown = ProducePartition("", 0, batch(b"x"))
        unknown.topic_id = TopicId(UUID(int=17))
        by_id = await client.produce(13, ProduceRequest([unknown], None, -1, 1_000))
        assert [item.error for item in by_id.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]

    run(tmp_path, test, topics={"u": 1}, **PERMITTED)


def test_without_an_answer_a_refusal_closes_the_connection(tmp_path: Path) -> None:
    async def test(node: Node, client: Client) -> None:
        client.send(ApiKey.PRODUCE, 9, batches(node, 9, "u", acks=0).build(9))
        assert await client.reader.read() == b""
        assert end_of(node, U) == 0

    run(tmp_path, test, topics={"u": 1}, **PERMITTED)


def test_a_request_for_many_topics_is_checked_in_parts(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(PART + 50)]

    async def test(node: Node, client: Client) -> None:
        for name in names[-3:]:
            await create_topic(node, name)
        await only(node, [("WRITE", f"topic:{names[-2]}")])
        answer = await client.produce(9, batches(node, 9, *names))
        assert [item.topic for item in answer.partitions] == names
        assert [item.topic for item in answer.partitions if item.error is NONE] == [names[-2]]
        assert {item.error for item in answer.partitions} == {NONE, DENIED}

    run(tmp_path, test, **PERMITTED)


@pytest.mark.parametrize("version", [9, 12])
def test_S7_a_transactional_batch_asks_for_the_transactional_id_too(tmp_path: Path, version: int) -> None:
    async def test(node: Node, client: Client) -> None:
        producer = (await node.transactions.init_producer_id(InitProducerIdRequest("x", 60_000))).producer
        more = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "base_sequence": 0,
            "transactional": True,
        }
        request = batches(node, version, "t", transactional_id="x", **more)
        await only(node, [("WRITE", "topic:t")])
        answer = await client.produce(version, request)
        assert answer.partitions[0].error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        await only(node, [("WRITE", "transactional-id:x")])
        assert (await client.produce(version, request)).partitions[0].error is DENIED
        assert end_of(node, T) == 0

    run(tmp_path, test, topics={"t": 1}, **PERMITTED)


def reading(node: Node, version: int, *topics: str, wait_ms: int = 0, **session: int) -> FetchRequest:
    ids = ids_of(node)
    items = [
        FetchPartition(name if version < 13 else "", ids[name] if version >= 13 else ZERO_TOPIC_ID, 0, 0, 1 << 20)
        for name in topics
    ]
    return FetchRequest(items, wait_ms, 1, 1 << 20, IsolationLevel.READ_UNCOMMITTED, **session)


def test_S7_only_what_may_be_read_is_read_in_every_version(tmp_path: Path) -> None:
    async def test(node: Node, client: Client) -> None:
        await only(node, [("WRITE", "topic:*"), ("READ", "topic:t")])
        await client.produce(9, batches(node, 9, "t", "u"))
        for version in range(FETCH_MIN_VERSION, FETCH_MAX_VERSION + 1):
            answer = await client.fetch(version, reading(node, version, "u", "t"))
            refused, read = answer.partitions
            assert (refused.error, refused.records or b"", refused.high_watermark) == (DENIED, b"", -1), version
            assert (read.error, len(read.records or b"") > 0) == (NONE, True)

    run(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_S7_a_right_that_is_taken_away_counts_in_a_session_and_in_a_fetch_that_waits(tmp_path: Path) -> None:
    async def test(node: Node, client: Client) -> None:
        other = await connected(node)
        await only(node, [("ALL", "topic:t")])
        begun = await client.fetch(12, reading(node, 12, "t", session_id=0, session_epoch=0))
        assert (begun.error, begun.partitions[0].error) == (NONE, NONE)
        assert begun.session_id
        waiting = reading(node, 12, wait_ms=60_000, session_id=begun.session_id, session_epoch=1)
        client.send(ApiKey.FETCH, 12, waiting.build(12))
        while not node.fetch.waiting:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        await only(node, [("WRITE", "topic:t")])
        await other.produce(9, batches(node, 9, "t"))
        data, position = await client.answer(ApiKey.FETCH, 12)
        answer = FetchResponse.parse(data, 12, position)
        assert [(item.error, item.records or b"") for item in answer.partitions] == [(DENIED, b"")]
        await only(node, [("READ", "topic:t")])
        await other.close()
        again = await client.fetch(12, reading(node, 12, session_id=begun.session_id, session_epoch=2))
        assert again.partitions[0].error is NONE
        assert again.partitions[0].records

    run(tmp_path, test, topics={"t": 1}, **PERMITTED)


def test_S7_who_names_a_topic_by_its_id_does_not_hear_its_name(tmp_path: Path) -> None:
    async def test(node: Node, client: Client) -> None:
        version = PRODUCE_TOPIC_ID_VERSION
        answer = await client.produce(version, batches(node, version, "hidden"))
        assert answer.partitions[0].error is DENIED
        assert "hidden" not in (answer.partitions[0].error_message or "")
        by_name = await client.produce(version - 1, batches(node, version - 1, "hidden"))
        assert "hidden" in (by_name.partitions[0].error_message or ""), "he has said it himself"

    run(tmp_path, test, topics={"hidden": 1}, **PERMITTED)


def test_S1_nobody_continues_or_ends_the_fetch_session_of_another_user(tmp_path: Path) -> None:
    async def test(node: Node, _client: Client) -> None:
        async def ask(who: str, *topics: str, session_id: int, epoch: int) -> FetchResponse:
            request = reading(node, 12, *topics, session_id=session_id, session_epoch=epoch)
            found = node.fetch.begin(request, 12, lambda _: None, rights=Rights(None, "FETCH", (), who))
            assert isinstance(found, FetchResponse)
            return found

        mine = (await ask("User:a", "t", session_id=0, epoch=0)).session_id
        assert mine
        for epoch in (1, 2):
            assert (await ask("User:b", session_id=mine, epoch=epoch)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        for epoch in (0, -1):  # a new one in its place, and its end
            assert (await ask("User:b", "t", session_id=mine, epoch=epoch)).error is NONE
        assert (await ask("User:a", session_id=mine, epoch=1)).error is NONE

    run(tmp_path, test, topics={"t": 1}, **PERMITTED)
