"""Fetch: limits, long polls, sessions, isolation (L2, L3), refusals by version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kafka_node import NODE_ID, FakeNode, KafkaClient, batch, run_with_listener, turns, until

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.handlers.fetch import handler as fetch_module
from semel.broker.handlers.fetch import large as large_fetch
from semel.broker.handlers.fetch.sessions import OF_ONE_MAX, FetchSessions, next_epoch
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.logs.partition import Partition
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import ZERO_TOPIC_ID, ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.protocol.kafka.api import NodeEndpoint
from semel.protocol.kafka.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ForgottenPartition,
)
from semel.protocol.record_decoder import decode_records
from semel.runtime.storage import FileRange

COMMITTED = IsolationLevel.READ_COMMITTED
FOREVER_MS = 3_600_000
FIRST = ProducerIdAndEpoch(1, 0)
SECOND = ProducerIdAndEpoch(2, 0)


def part(
    partition: int = 0, offset: int = 0, *, max_bytes: int = 1 << 20, topic: str = "t", epoch: int = -1
) -> FetchPartition:
    return FetchPartition(topic, ZERO_TOPIC_ID, partition, offset, max_bytes, epoch)


def fetch(
    *partitions: FetchPartition,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    session: tuple[int, int] = (0, -1),
    forgotten: list[ForgottenPartition] | None = None,
) -> FetchRequest:
    return FetchRequest(
        list(partitions) if partitions or session != (0, -1) else [part()],
        wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        *session,
        forgotten,
    )


def append(partition: Partition, *values: bytes) -> None:
    partition.append(bytearray(batch(*values)))


def values(item: FetchPartitionResponse) -> list[bytes | None]:
    """The values of all records, control records included."""
    data = item.records
    assert isinstance(data, memoryview)
    return [record.value for header in iter_batches(data) for record in decode_records(data, header.position)]


def codes(response: FetchResponse) -> list[ErrorCode]:
    return [item.error for item in response.partitions]


@pytest.fixture(params=["at once", "in turns"], autouse=True)
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test meets a request as it is, and as a large one: both must do the same."""
    if request.param == "in turns":
        monkeypatch.setattr(fetch_module, "PART", 0)
        monkeypatch.setattr(large_fetch, "PART", 1)


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads(tmp_path: Path, version: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition, _) = node.create("t", 2)
        append(partition, b"a", b"b")
        topic_id = partition.topic_id
        client = await KafkaClient.connect(listener.port)
        items = [FetchPartition("t", topic_id, n, 0, 1 << 20) for n in range(2)]
        answer = await client.fetch(FetchRequest(items, 0), version)
        assert codes(answer) == [ErrorCode.NONE] * 2
        assert values(answer.partitions[0]) == [b"a", b"b"]
        assert [item.high_watermark for item in answer.partitions] == [2, 0]
        assert [item.last_stable_offset for item in answer.partitions] == [2, 0]
        assert [item.log_start_offset for item in answer.partitions] == ([0, 0] if version >= 5 else [-1, -1])
        assert [item.preferred_read_replica for item in answer.partitions] == [-1, -1]
        assert [item.aborted for item in answer.partitions] == [None, None]
        assert answer.session_id == 0

    run_with_listener(test, str(tmp_path))


def test_refusals_by_version(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        first, *_ = node.create("t", 3)
        append(first, b"a")
        first.leader_epoch = 5
        node.partitions[TopicPartition("t", 1)].go_offline(FatalError("gone", ErrorCode.KAFKA_STORAGE_ERROR))
        del node.partitions[TopicPartition("t", 2)]
        client = await KafkaClient.connect(listener.port)
        items = [
            part(0, 2),
            part(0, -1),
            part(0, 0, epoch=4),
            part(0, 0, epoch=6),
            part(0, 0, epoch=5),
            part(1),
            part(2),
            part(3),
            part(topic="missing"),
        ]
        answer = await client.fetch(fetch(*items, wait_ms=FOREVER_MS), 12)
        assert codes(answer) == [
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.NONE,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert {item.high_watermark for item in answer.partitions if item.error is not ErrorCode.NONE} == {-1}
        old = await client.fetch(fetch(part(1)), 5)
        assert codes(old) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

        def by_id(topic_id: object, epoch: int = -1) -> FetchPartition:
            return FetchPartition("", topic_id, 0, 0, 1 << 20, epoch)  # type: ignore[arg-type]

        unknown = new_topic_id()
        answer = await client.fetch(fetch(by_id(unknown), by_id(ZERO_TOPIC_ID), by_id(first.topic_id, 4)), 16)
        assert codes(answer) == [
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.FENCED_LEADER_EPOCH,
        ]
        fenced = answer.partitions[2]
        assert (fenced.leader_id, fenced.leader_epoch) == (NODE_ID, 5)
        assert list(answer.node_endpoints) == [NodeEndpoint(NODE_ID, "broker.example", 9092)]
        # A topic that was made again under the same name, while its old log is still here.
        first.topic_id = unknown
        renamed = node.metadata.topics["t"].topic_id
        assert codes(await client.fetch(fetch(by_id(renamed)), 13)) == [ErrorCode.INCONSISTENT_TOPIC_ID]

    run_with_listener(test, str(tmp_path))


def test_a_reader_whose_epoch_ended_earlier_here_is_told_where(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        for epoch in (1, 3):
            partition.leader_epoch = epoch
            append(partition, b"a", b"b")
        client = await KafkaClient.connect(listener.port)

        async def diverging(offset: int, last_fetched: int) -> tuple[int, int]:
            item = FetchPartition("t", ZERO_TOPIC_ID, 0, offset, 1 << 20, -1, last_fetched)
            got = (await client.fetch(fetch(item, wait_ms=FOREVER_MS), 12)).partitions[0]
            assert got.error is ErrorCode.NONE
            return got.diverging_epoch, got.diverging_end_offset

        assert await diverging(2, 1) == (-1, -1)
        assert await diverging(3, 1) == (1, 2)
        assert await diverging(3, 2) == (1, 2)
        assert await diverging(3, 3) == (-1, -1)

    run_with_listener(test, str(tmp_path))


def test_the_first_batch_is_returned_even_where_it_is_larger_than_every_limit(tmp_path: Path) -> None:
    """KIP-74: nobody is stuck behind a large batch, and nobody gets more than one beyond the limits."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        first, second, third = node.create("t", 3)
        size = len(batch(b"x" * 1000))
        for partition in (second, third):
            append(partition, b"x" * 1000)
            append(partition, b"x" * 1000)
        client = await KafkaClient.connect(listener.port)

        async def sizes(max_bytes: int, partition_max: int) -> list[int]:
            items = [part(n, max_bytes=partition_max) for n in range(3)]
            answer = await client.fetch(fetch(*items, max_bytes=max_bytes))
            return [len(item.records or b"") for item in answer.partitions]

        assert await sizes(1, 1) == [0, size, 0]
        assert await sizes(0, 0) == [0, size, 0]
        assert await sizes(1 << 20, 1) == [0, size, 0]
        assert await sizes(1 << 20, size) == [0, size, size]
        assert await sizes(size + 10, 1 << 20) == [0, size, 0]
        assert await sizes(2 * size, 1 << 20) == [0, 2 * size, 0]
        assert await sizes(3 * size, 1 << 20) == [0, 2 * size, size]
        assert await sizes(-5, -5) == [0, size, 0]
        assert first.log_end_offset == 0

    run_with_listener(test, str(tmp_path))


def test_one_answer_is_bounded_by_the_node(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        for _ in range(10):
            append(partition, b"x" * 1000)
        client = await KafkaClient.connect(listener.port)
        answer = await client.fetch(fetch(min_bytes=1 << 30, wait_ms=5))
        assert 0 < len(answer.partitions[0].records or b"") <= 5000

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(fetch_max_bytes=5000))


# --- Waiting ----------------------------------------------------------------------------------------------------------


def test_each_partition_counts_what_consumers_are_sent_of_it(tmp_path: Path) -> None:
    """Once for each answer, though a fetch that waits reads twice; and nothing for an answer that says an error."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", 3)
        append(partitions[0], b"0")
        client = await KafkaClient.connect(listener.port)
        items = [part(n) for n in range(3)]
        answer = await client.fetch(fetch(*items), 12)
        first, *_ = sizes = [len(item.records or b"") for item in answer.partitions]
        assert [each.fetched_bytes for each in partitions] == sizes == [first, 0, 0]
        assert first > 0

        sent = client.send(fetch(*items, wait_ms=FOREVER_MS, min_bytes=first + 1), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        assert [each.fetched_bytes for each in partitions] == sizes, "nothing was sent yet"
        append(partitions[1], b"one")
        more = [len(item.records or b"") for item in client.fetched(await client.receive(), 12, sent).partitions]
        assert more[0] == first
        assert more[1] > 0
        assert [each.fetched_bytes for each in partitions] == [2 * first, more[1], 0]
        assert listener.fetch.fetched_bytes == sum(each.fetched_bytes for each in partitions)

        begun = await client.fetch(fetch(part(1), session=(0, 0)), 12)
        assert partitions[1].fetched_bytes == 2 * more[1]
        again = fetch(wait_ms=FOREVER_MS, min_bytes=1 << 20, session=(begun.session_id, 1))
        sent = client.send(again, 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        other = await KafkaClient.connect(listener.port)
        overtaking = await other.fetch(fetch(session=(begun.session_id, 2)), 12)
        assert overtaking.error is ErrorCode.NONE
        counted = partitions[1].fetched_bytes
        listener.fetch.finish()
        refused = client.fetched(await client.receive(), 12, sent)
        assert refused.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert refused.partitions == []
        assert partitions[1].fetched_bytes == counted, "nothing was sent"

    run_with_listener(test, str(tmp_path))


def test_a_fetch_waits_for_records_and_is_woken_by_them(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", 3)
        client = await KafkaClient.connect(listener.port)
        sent = client.send(fetch(*(part(n) for n in range(3)), wait_ms=FOREVER_MS), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        append(partitions[1], b"here")
        answer = client.fetched(await client.receive(), 12, sent)
        assert [len(item.records or b"") > 0 for item in answer.partitions] == [False, True, False]
        assert listener.statistics().waiting_fetches == 0
        assert all(partition._listeners is None for partition in partitions), "nothing is left behind"

    run_with_listener(test, str(tmp_path))


def test_a_waiting_fetch_sees_records_only_when_they_are_committed(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        sent = client.send(fetch(wait_ms=FOREVER_MS), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        append(partition, b"a")
        item = client.fetched(await client.receive(), 12, sent).partitions[0]
        assert item.high_watermark == 1
        assert values(item) == [b"a"]

    run_with_listener(test, str(tmp_path), journaled=True)


def test_min_bytes_are_waited_for_over_all_partitions(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        first, second = node.create("t", 2)
        append(first, b"x" * 100)
        size = first.read(0, max_bytes=1 << 20).size
        client = await KafkaClient.connect(listener.port)
        sent = client.send(fetch(part(0), part(1), wait_ms=FOREVER_MS, min_bytes=3 * size), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        append(second, b"x" * 100)
        await turns(5)
        assert listener.statistics().waiting_fetches == 1
        append(second, b"x" * 100)
        answer = client.fetched(await client.receive(), 12, sent)
        assert [len(item.records or b"") for item in answer.partitions] == [size, 2 * size]

    run_with_listener(test, str(tmp_path))


def test_a_wait_that_is_over_is_answered_with_what_there_is(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        append(partition, b"a")
        client = await KafkaClient.connect(listener.port)
        answer = await client.fetch(fetch(wait_ms=5, min_bytes=1 << 20))
        assert values(answer.partitions[0]) == [b"a"]
        answer = await client.fetch(fetch(part(0, 1), wait_ms=5))
        assert (codes(answer), answer.partitions[0].records) == ([ErrorCode.NONE], b"")

    run_with_listener(test, str(tmp_path))


def test_a_partition_that_goes_offline_ends_the_wait(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (_, second) = node.create("t", 2)
        client = await KafkaClient.connect(listener.port)
        sent = client.send(fetch(part(0), part(1), wait_ms=FOREVER_MS), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        second.go_offline(FatalError("the topic was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        answer = client.fetched(await client.receive(), 12, sent)
        assert codes(answer) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    run_with_listener(test, str(tmp_path))


def test_many_appends_in_a_turn_cost_a_waiting_fetch_one_look(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", 20)
        looks: list[Partition] = []
        readable = listener.fetch.readable_bytes

        def counted(partition: Partition, item: FetchPartition, call: object) -> int:
            looks.append(partition)
            return readable(partition, item, call)  # type: ignore[arg-type]

        listener.fetch.readable_bytes = counted  # type: ignore[method-assign]
        client = await KafkaClient.connect(listener.port)
        sent = client.send(fetch(*(part(n) for n in range(20)), wait_ms=FOREVER_MS, min_bytes=100_000), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        for _ in range(50):
            append(partitions[3], b"x")
            append(partitions[4], b"x")
        await turns(3)
        assert looks == [partitions[3], partitions[4]]
        append(partitions[5], b"x" * 100_000)
        client.fetched(await client.receive(), 12, sent)
        assert looks == [partitions[3], partitions[4], partitions[5]]

    run_with_listener(test, str(tmp_path))


def test_a_waiting_fetch_lets_nothing_of_its_connection_pass_and_holds_up_no_other(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client, other = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        first = client.send(fetch(wait_ms=FOREVER_MS), 12)
        second = client.send(fetch(), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        assert codes(await other.fetch(fetch())) == [ErrorCode.NONE]
        append(partition, b"a")
        for each in (first, second):
            assert values(client.fetched(await client.receive(), 12, each).partitions[0]) == [b"a"]

    run_with_listener(test, str(tmp_path))


def test_other_listeners_await_and_cancel_fetches(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        waiting = asyncio.create_task(listener.fetch.fetch(fetch(wait_ms=FOREVER_MS), 12))
        abandoned = asyncio.create_task(listener.fetch.fetch(fetch(wait_ms=FOREVER_MS), 12))
        await turns()
        assert listener.fetch.waiting == 2
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        assert listener.fetch.waiting == 1
        append(partition, b"a" * 300_000)
        records = (await waiting).partitions[0].records
        assert isinstance(records, FileRange)
        assert records.read() == partition.read(0, max_bytes=1).read()

    run_with_listener(test, str(tmp_path))


# --- Isolation --------------------------------------------------------------------------------------------------------


def in_txn(partition: Partition, producer: ProducerIdAndEpoch, sequence: int, *of: bytes) -> None:
    data = batch(*of, producer=producer, sequence=sequence, transactional=True)
    partition.append(bytearray(data), verified=True)


def committed_values(item: FetchPartitionResponse) -> list[bytes | None]:
    """What a read_committed client returns, filtered as Kafka's consumer does."""
    data = item.records
    assert isinstance(data, memoryview)
    assert item.aborted is not None
    pending = sorted(item.aborted, key=lambda each: each[1])
    aborted: set[int] = set()
    handed_out: list[bytes | None] = []
    for header in iter_batches(data):
        while pending and pending[0][1] <= header.last_offset:
            aborted.add(pending.pop(0)[0])
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            handed_out += [record.value for record in decode_records(data, header.position)]
    return handed_out


def test_L2_read_committed_ends_at_the_last_stable_offset(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        append(partition, b"before")
        in_txn(partition, FIRST, 0, b"open")
        append(partition, b"after")
        client = await KafkaClient.connect(listener.port)
        item = (await client.fetch(fetch(isolation=COMMITTED))).partitions[0]
        assert (values(item), item.last_stable_offset, item.high_watermark) == ([b"before"], 1, 3)
        assert item.aborted == ()
        item = (await client.fetch(fetch())).partitions[0]
        assert values(item) == [b"before", b"open", b"after"]

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("committed", [True, False])
def test_L2_a_waiting_reader_is_woken_by_the_marker_not_by_the_records(tmp_path: Path, committed: bool) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        sent = client.send(fetch(wait_ms=FOREVER_MS, isolation=COMMITTED), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        in_txn(partition, FIRST, 0, b"a", b"b")
        await turns(5)
        assert listener.statistics().waiting_fetches == 1
        partition.append_marker(FIRST, 0, committed)
        item = client.fetched(await client.receive(), 12, sent).partitions[0]
        assert committed_values(item) == ([b"a", b"b"] if committed else [])
        assert item.last_stable_offset == 3

    run_with_listener(test, str(tmp_path))


def test_L3_every_range_names_the_aborted_transactions_that_overlap_it(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        expected: list[bytes] = []
        sequences = {FIRST: 0, SECOND: 0}
        for number in range(30):
            producer = (FIRST, SECOND)[number % 2]
            committed = number % 3 == 0
            for _ in range(3):
                value = b"%d-%d" % (number, sequences[producer])
                in_txn(partition, producer, sequences[producer], value)
                sequences[producer] += 1
                if committed:
                    expected.append(value)
            plain = b"plain %d" % number
            append(partition, plain)
            expected.append(plain)
            partition.append_marker(producer, 0, committed)
        client = await KafkaClient.connect(listener.port)
        for max_bytes in (1, 200, 1000, 1 << 20):
            got: list[bytes | None] = []
            offset = 0
            while offset < partition.high_watermark:
                item = (
                    await client.fetch(fetch(part(0, offset, max_bytes=max_bytes), isolation=COMMITTED))
                ).partitions[0]
                got += committed_values(item)
                assert isinstance(item.records, memoryview)
                offset = list(iter_batches(item.records))[-1].next_offset
            assert sorted(got) == sorted(expected)  # type: ignore[type-var]

    run_with_listener(test, str(tmp_path))


# --- Sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_carries_what_the_client_asked_and_was_told(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", 3)
        append(partitions[0], b"a")
        client = await KafkaClient.connect(listener.port)
        full = await client.fetch(fetch(*(part(n) for n in range(3)), session=(0, 0)))
        session = full.session_id
        assert session > 0
        assert [item.partition for item in full.partitions] == [0, 1, 2]

        async def incremental(epoch: int, *changed: FetchPartition, **more: object) -> FetchResponse:
            answer = await client.fetch(fetch(*changed, session=(session, epoch), **more))  # type: ignore[arg-type]
            assert (answer.error, answer.session_id) == (ErrorCode.NONE, session)
            return answer

        # Nothing new; the client moves on in partition 0.
        assert (await incremental(1, part(0, 1))).partitions == []
        append(partitions[2], b"b")
        answer = await incremental(2)
        assert [(item.partition, values(item)) for item in answer.partitions] == [(2, [b"b"])]
        # What is not read on is told again, as in a fetch without a session.
        assert [item.partition for item in (await incremental(3)).partitions] == [2]
        append(partitions[1], b"c")
        # A forgotten partition is not told of, an added one is.
        answer = await incremental(4, part(2, 1), forgotten=[ForgottenPartition("t", ZERO_TOPIC_ID, 1)])
        assert answer.partitions == []
        answer = await incremental(5, part(1, 0))
        assert [item.partition for item in answer.partitions] == [1]
        # An error is told each time, and so is the first good answer after it, though it holds nothing.
        for epoch in (6, 7):
            assert codes(await incremental(epoch, part(1, 1), part(0, 99))) == [ErrorCode.OFFSET_OUT_OF_RANGE]
        answer = await incremental(8, part(0, 1))
        assert [(item.partition, item.error) for item in answer.partitions] == [(0, ErrorCode.NONE)]
        assert (await incremental(9)).partitions == []
        # A moved log start is news.
        partitions[0].delete_records(1)
        assert [item.log_start_offset for item in (await incremental(10)).partitions] == [1]

    run_with_listener(test, str(tmp_path))


def test_a_session_by_topic_id(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        first, second = node.create("t", 2)
        client = await KafkaClient.connect(listener.port)
        items = [FetchPartition("", first.topic_id, n, 0, 1 << 20) for n in range(2)]
        full = await client.fetch(fetch(*items, session=(0, 0)), 17)
        append(second, b"a")
        answer = await client.fetch(fetch(session=(full.session_id, 1)), 17)
        assert [(item.topic_id, item.partition) for item in answer.partitions] == [(first.topic_id, 1)]
        mixed = await client.fetch(fetch(session=(full.session_id, 2)), 12)
        assert mixed.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    run_with_listener(test, str(tmp_path))


def test_a_waiting_fetch_of_a_session_tells_only_the_news(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", 5)
        client = await KafkaClient.connect(listener.port)
        full = await client.fetch(fetch(*(part(n) for n in range(5)), session=(0, 0)))
        sent = client.send(fetch(session=(full.session_id, 1), wait_ms=FOREVER_MS), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        append(partitions[3], b"x")
        answer = client.fetched(await client.receive(), 12, sent)
        assert [item.partition for item in answer.partitions] == [3]

    run_with_listener(test, str(tmp_path))


def test_partitions_of_a_session_that_gave_records_go_last(tmp_path: Path) -> None:
    """So that one full partition does not starve the others (KIP-74, KIP-227)."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        for partition in node.create("t", 3):
            append(partition, b"x" * 100)
        client = await KafkaClient.connect(listener.port)
        full = await client.fetch(fetch(*(part(n) for n in range(3)), session=(0, 0), max_bytes=1))
        read = [[item.partition for item in full.partitions if item.records]]
        for epoch in range(1, 6):
            answer = await client.fetch(fetch(session=(full.session_id, epoch), max_bytes=1))
            read.append([item.partition for item in answer.partitions if item.records])
        assert read == [[0], [1], [2], [0], [1], [2]]

    run_with_listener(test, str(tmp_path))


def test_sessions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        full = await client.fetch(fetch(part(), session=(0, 0)))
        session = full.session_id

        async def error(session_id: int, epoch: int) -> ErrorCode:
            return (await client.fetch(fetch(session=(session_id, epoch)))).error

        assert await error(session + 1, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert await error(session, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert await error(session, 1) is ErrorCode.NONE
        assert await error(session, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH, "a repeated request"
        assert listener.statistics().fetch_sessions == 1
        # A session whose last partition is forgotten ends.
        gone = fetch(session=(session, 2), forgotten=[ForgottenPartition("t", ZERO_TOPIC_ID, 0)])
        assert (await client.fetch(gone)).session_id == 0
        assert await error(session, 3) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        # The client can end its session, or begin another in its place.
        second = (await client.fetch(fetch(part(), session=(0, 0)))).session_id
        third = (await client.fetch(fetch(part(), session=(second, 0)))).session_id
        assert await error(second, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await client.fetch(fetch(part(), session=(third, -1)))).session_id == 0
        assert listener.statistics().fetch_sessions == 0

    run_with_listener(test, str(tmp_path))


def sessions(**bounds: int) -> FetchSessions:
    ids = iter(range(1, 1000))
    settings = {"sessions_max": 2, "partitions_max": 10, "min_idle_ms": 100, **bounds}
    return FetchSessions(draw_id=lambda: next(ids), **settings)


def items(count: int) -> list[FetchPartition]:
    return [part(number) for number in range(count)]


def test_a_full_cache_evicts_what_is_idle_first() -> None:
    cache = sessions()
    first, second = cache.create(items(1), False, 0), cache.create(items(1), False, 50)
    assert first is not None
    assert second is not None
    assert cache.create(items(1), False, 99) is None, "both are in use: the new client continues without"
    cache.open(fetch(session=(first.id, 1)), uses_topic_ids=False, now_ms=100)
    third = cache.create(items(1), False, 150)
    assert third is not None
    assert (len(cache), cache.evicted) == (2, 1)
    refused = cache.open(fetch(session=(second.id, 1)), uses_topic_ids=False, now_ms=150)
    assert refused.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_cache_gives_the_place_of_an_old_small_session_to_a_larger_one() -> None:
    cache = sessions()
    small, large = cache.create(items(1), False, 0), cache.create(items(3), False, 0)
    assert small is not None
    assert large is not None
    for session in (small, large):
        cache.open(fetch(session=(session.id, 1)), uses_topic_ids=False, now_ms=90)
    assert cache.create(items(1), False, 110) is None, "no larger than the smallest"
    assert cache.create(items(2), False, 110) is not None
    assert cache.open(fetch(session=(large.id, 2)), uses_topic_ids=False, now_ms=110).error is ErrorCode.NONE


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    cache = sessions(sessions_max=100)
    first = cache.create(items(6), False, 0)
    assert first is not None
    assert cache.create(items(5), False, 0) is None
    assert cache.create(items(11), False, 1000) is None
    assert cache.partition_count == 6
    grown = cache.open(
        fetch(*items(12), session=(first.id, 1)),
        uses_topic_ids=False,
        now_ms=0,
    )
    assert grown.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache), cache.partition_count) == (0, 0)


def test_epochs_of_a_session_wrap_past_those_with_a_meaning() -> None:
    assert next_epoch(0) == 1
    assert next_epoch(2**31 - 1) == 1


def test_S2_one_session_has_no_more_partitions_than_one_request() -> None:
    """One that grew by 20,000 at a time cost two seconds for each empty request."""
    cache = sessions(partitions_max=10 * OF_ONE_MAX)
    assert cache.create(items(OF_ONE_MAX + 1), False, 0) is None
    session = cache.create(items(OF_ONE_MAX), False, 0)
    assert session is not None
    again = cache.open(fetch(session=(session.id, session.epoch)), uses_topic_ids=False, now_ms=0)
    assert again.error is ErrorCode.NONE
    more = fetch(part(0, topic="more"), session=(session.id, session.epoch))
    assert cache.open(more, uses_topic_ids=False, now_ms=0).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache), cache.partition_count) == (0, 0)
