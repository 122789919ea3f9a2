"""Messages that the network kept too long, repeated, or delivered over another connection, against a whole node.

Every test speaks the wire itself, raw Produce and Fetch over TCP and gRPC for the coordinator, so that it can send what
no client would send on its own. What must come out is always the same: no torn transaction, no hanging one, nothing
twice, nothing lost.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from delayed_wire import (
    GROUP,
    NEWER,
    OLDER,
    A,
    B,
    Wire,
    attack,
    next_of,
    old_add,
    old_end,
)
from kafka_node import KafkaClient
from running_node import channel_to, create_topic

from semel.broker.handlers.topics.changes import delete_topics
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.protocol.api.transactions import (
    TxnMarker,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

# --- The end of a transaction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_T7_an_end_that_is_replayed_gives_the_same_answer_and_its_opposite_is_refused(
    tmp_path: Path, commit: bool
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"x")
        async with channel_to(wire.node) as channel:
            other = Wire(wire.node, wire.kafka, channel)
            answers = await asyncio.gather(
                *(place.end_for_sure(producer, commit) for place in (wire, other, wire, other))
            )
            assert set(answers) == {next_of(producer)}
            assert await other.end_for_sure(producer, not commit) is ErrorCode.INVALID_TXN_STATE
        await wire.settled()
        assert await wire.read() == ([b"x"] if commit else [])
        assert wire.end_of(A) == 2  # one record, one marker

    attack(tmp_path, test)


@pytest.mark.parametrize("first", [True, False], ids=["after a commit", "after an abort"])
@pytest.mark.parametrize("late", [True, False], ids=["commit", "abort"])
def test_T6_an_end_that_arrives_in_the_next_transaction_does_not_touch_it(
    tmp_path: Path, first: bool, late: bool
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"first")
        following = await wire.end_for_sure(producer, first)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.send_for_sure(following, b"second")
        assert await wire.end(producer, late) is ErrorCode.PRODUCER_FENCED
        assert await wire.read() == ([b"first"] if first else [])
        await wire.send_for_sure(following, b"third", sequence=1)
        await wire.end_for_sure(following)
        await wire.settled()
        assert await wire.read() == ([b"first"] if first else []) + [b"second", b"third"]

    attack(tmp_path, test)


def test_T11_T6_an_abort_of_nothing_shuts_out_a_batch_that_is_still_on_its_way(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        following = await wire.end_for_sure(producer, commit=False)
        assert following == next_of(producer)
        for version in (OLDER, NEWER):
            error, _ = await wire.send(producer, b"late", version=version)
            assert error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert wire.end_of(A) == 0

    attack(tmp_path, test)


# --- Batches after the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [OLDER, NEWER])
@pytest.mark.parametrize("goes_on", [False, True], ids=["between transactions", "in the next one"])
def test_T8_a_batch_that_arrives_after_its_transaction_opens_nothing(
    tmp_path: Path, version: int, goes_on: bool
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        if version == OLDER:
            assert await wire.add(producer, A, B) is None
        await wire.send_for_sure(producer, b"x", version=version)
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        if goes_on:
            await wire.send_for_sure(following, b"y")
        else:
            await wire.settled()  # while markers are on their way, all are told to retry
        for tp, sequence in ((A, 1), (A, 0), (B, 0)):
            error, _ = await wire.send(producer, b"late", tp=tp, sequence=sequence, version=version)
            assert error is ErrorCode.INVALID_PRODUCER_EPOCH, (tp, sequence)
        if goes_on:
            await wire.end_for_sure(following)
        await wire.settled()
        assert await wire.read(A) == [b"x", b"y"][: 1 + goes_on]
        assert await wire.read(B) == []

    attack(tmp_path, test)


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
def test_T8_with_the_older_protocol_a_late_batch_is_kept_out_by_verification(tmp_path: Path, committed: bool) -> None:
    """The epoch stays the same there, so it can't tell (KAFKA-12671, hanging transactions)."""

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        for _ in range(2):
            await old_add(wire.node, producer, A, B)
            await wire.send_for_sure(producer, b"x", sequence=wire.end_of(A) // 2, version=OLDER)
            await old_end(wire.node, producer, committed)
            await wire.settled()
            for tp, sequence in ((A, wire.end_of(A) // 2), (B, 0)):
                error, _ = await wire.send(producer, b"late", tp=tp, sequence=sequence, version=OLDER)
                assert error is ErrorCode.TRANSACTION_ABORTABLE
            await wire.settled()
        # In the next transaction, on a partition that is not in it.
        await old_add(wire.node, producer, A)
        error, _ = await wire.send(producer, b"late", tp=B, version=OLDER)
        assert error is ErrorCode.TRANSACTION_ABORTABLE
        await old_end(wire.node, producer, committed)
        assert await wire.read(A) == [b"x", b"x"] * committed
        assert await wire.read(B) == []

    attack(tmp_path, test)


def test_T8_a_batch_that_meets_the_end_of_its_transaction_hangs_nothing(tmp_path: Path) -> None:
    """Batches and ends at the same moment, many times over: whatever wins, nothing stays open or is torn."""

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        others = [await KafkaClient.connect(wire.node.kafka_address.port) for _ in range(3)]
        async with channel_to(wire.node) as channel:
            racers = [Wire(wire.node, kafka, channel) for kafka in others]
            expected: list[list[bytes]] = [[], []]
            for number in range(150):
                version = OLDER if number % 3 == 0 else NEWER
                commit = number % 2 == 0
                value = b"%d" % number
                if version == OLDER:
                    assert await wire.add(producer, A, B) is None
                await wire.send_for_sure(producer, value, tp=A, version=version)
                (late, _), following, (again, _), (other, _) = await asyncio.gather(
                    racers[0].send(producer, b"late " + value, tp=B, version=version),
                    wire.end_for_sure(producer, commit),
                    racers[1].send(producer, value, tp=A, version=version),
                    racers[2].send(producer, b"more " + value, tp=A, sequence=1, version=version),
                )
                assert isinstance(following, ProducerIdAndEpoch)
                await wire.settled()
                assert again in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS), (
                    again
                )
                if commit:
                    expected[0].append(value)
                    if other is ErrorCode.NONE:
                        expected[0].append(b"more " + value)
                    if late is ErrorCode.NONE:
                        expected[1].append(b"late " + value)
                producer = following
            assert [await wire.read(A), await wire.read(B)] == expected

    attack(tmp_path, test)


def test_T8_partitions_added_again_after_the_end_are_refused(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        assert await wire.add(producer, A) is None
        await wire.send_for_sure(producer, b"x")
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        assert await wire.add(producer, A, B) is ErrorCode.PRODUCER_FENCED
        await wire.send_for_sure(following, b"y")
        assert await wire.add(producer, B) is ErrorCode.PRODUCER_FENCED
        await wire.end_for_sure(following, commit=False)
        await wire.settled()
        assert await wire.read() == [b"x"]

    attack(tmp_path, test)


# --- Markers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("epochs_back", [0, 1])
def test_P9_T6_a_marker_that_is_replayed_in_the_next_transaction_does_not_end_it(
    tmp_path: Path, committed: bool, epochs_back: int
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"first")
        assert await wire.commit_offset(producer, 1) is None
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        offsets = wire.node.groups.offsets_partition(GROUP)
        await wire.send_for_sure(following, b"second")
        assert await wire.commit_offset(following, 2) is None
        old = TxnMarker(next_of(following, -epochs_back), 0, committed, (A, offsets))
        errors = await LocalMarkerWriter(wire.node).write_markers(old)
        assert set(errors.values()) == {ErrorCode.INVALID_PRODUCER_EPOCH}
        assert await wire.read() == [b"first"]
        assert wire.partition(offsets).last_stable_offset < wire.end_of(offsets), "the offsets are pending still"
        await wire.end_for_sure(following, commit=False)
        await wire.settled()
        assert await wire.read() == [b"first"]
        assert await wire.committed() == 1

    attack(tmp_path, test)


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_T3_T11_a_transaction_whose_topic_is_deleted_ends_and_leaves_its_successor_clean(
    tmp_path: Path, made_anew: bool, commit: bool
) -> None:
    async def test(wire: Wire) -> None:
        await create_topic(wire.node, "b")
        other = TopicPartition("b", 0)
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"old", tp=A)
        await wire.send_for_sure(producer, b"kept", tp=other)
        assert await wire.commit_offset(producer, 7) is None
        (result,) = await delete_topics(wire.node, ["a"])
        assert result.error is ErrorCode.NONE
        await wire.node.caught_up()
        if made_anew:
            await create_topic(wire.node, "a", 2)
            await wire.node.caught_up()
            # A sequence in the middle, as of a client that did not notice: this is not the topic in the transaction.
            for _ in range(2):
                assert (await wire.send(producer, b"new", tp=A, sequence=1))[0] is ErrorCode.TRANSACTION_ABORTABLE
        following = await wire.end_for_sure(producer, commit)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        assert await wire.read(other) == [b"kept"] * commit
        assert await wire.committed() == -1, "what was pending for the deleted topic went with it"
        if made_anew:
            assert await wire.read(A) == []
            assert (await wire.send(producer, b"late", tp=B))[0] is ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            assert (await wire.send(producer, b"late", tp=A))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    attack(tmp_path, test)


# --- Duplicates and sequences -----------------------------------------------------------------------------------------


def test_P1_P2_a_batch_repeated_late_is_answered_from_memory_or_refused_never_appended(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.init(name="")
        assert isinstance(producer, ProducerIdAndEpoch)
        for number in range(8):
            assert await wire.send(producer, b"%d" % number, sequence=number, transactional=False) == (
                ErrorCode.NONE,
                number,
            )
        for number in range(8):
            error, offset = await wire.send(producer, b"%d" % number, sequence=number, transactional=False)
            if number >= 3:
                assert (error, offset) == (ErrorCode.NONE, number)
            else:
                assert error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await wire.read() == [b"%d" % number for number in range(8)]

    attack(tmp_path, test)


@pytest.mark.parametrize("size", [1, 3], ids=["between batches", "within a batch"])
def test_P2_sequences_go_on_at_zero_after_their_last(tmp_path: Path, size: int) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.init(name="")
        assert isinstance(producer, ProducerIdAndEpoch)
        first = 2**31 - 1 - (size == 3)
        values = [b"v"] * size
        assert await wire.send(producer, *values, sequence=first, transactional=False) == (ErrorCode.NONE, 0)
        wrapped = (first + size) % 2**31
        assert wrapped == size // 2
        error, _ = await wire.send(producer, *values, sequence=wrapped + 1, transactional=False)
        assert error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for _ in range(2):
            assert await wire.send(producer, *values, sequence=wrapped, transactional=False) == (ErrorCode.NONE, size)
            assert await wire.send(producer, *values, sequence=first, transactional=False) == (ErrorCode.NONE, 0)
        assert wire.end_of(A) == 2 * size

    attack(tmp_path, test)
