"""WriteTxnMarkers of a client: no marker enters a log by its word, and one that did before is overruled (S1, P9)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka_node import KafkaClient, batch, close_clients, until
from kafka_transactions import GROUP, ID, PRODUCE_NEWER, PRODUCE_OLDER, A, B, Kafka, next_of
from running_node import create_topic, running_node

from semel.broker.diagnostics import client_abort
from semel.broker.diagnostics.hanging import end_hanging
from semel.broker.diagnostics.snapshot import take_snapshot
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.log.config import AppendOrigin
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionChanged
from semel.protocol.api.diagnostics import HangingEnd, Severity
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.api.transactions import DescribeTransactionRequest, TransactionVersion, TxnMarker
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.sdk.diagnosis.findings import Cluster
from semel.sdk.diagnosis.rules import diagnose
from semel.txn_coordinator.state import TransactionState

FORGED = 2**31 - 1
EPOCHS = [0, 1, FORGED]
"""What a client may claim to be: the coordinator itself, or a later one."""
STRANGER = ProducerIdAndEpoch(4_000, 0)
"""Somebody whom no coordinator knows."""


def with_node(folder: Path, *tests: Callable[[Kafka], Awaitable[None]], **settings: Any) -> None:
    """Run each test against the node on the same folder, which is started for it."""

    async def main() -> None:
        for number, test in enumerate(tests):
            async with asyncio.timeout(60), running_node(folder, **settings) as node:
                if number == 0:
                    await create_topic(node, "a", 2)
                client = await KafkaClient.connect(node.kafka_address.port)
                try:
                    await test(Kafka(node, client))
                finally:
                    await close_clients()

    asyncio.run(main())


def partition(kafka: Kafka, tp: TopicPartition = A) -> Partition:
    found = kafka.node.partition(tp)
    assert found is not None
    return found


def committed(kafka: Kafka, tp: TopicPartition = A) -> list[bytes]:
    """What a reader of committed records sees, by its filter."""
    where, offset, values = partition(kafka, tp), 0, []
    while offset < where.last_stable_offset:
        found = where.read(offset, max_bytes=1 << 20, isolation=IsolationLevel.READ_COMMITTED)
        marks = [(one.producer_id, one.first_offset, one.last_offset) for one in found.aborted_transactions]
        data = memoryview(found.read())
        values += [
            bytes(record.value or b"")
            for header in iter_batches(data)
            if not header.is_control
            and not any(header.producer_id == who and first <= header.base_offset <= last for who, first, last in marks)
            for record in decode_records(data[header.position : header.position + header.size_bytes])
        ]
        offset = found.next_offset
    return values


async def opened(kafka: Kafka, *tps: TopicPartition) -> ProducerIdAndEpoch:
    """A producer with one record in each of these."""
    producer = await kafka.begin()
    for tp in tps:
        assert await kafka.send(producer, b"x", tp=tp, version=PRODUCE_NEWER) is ErrorCode.NONE
    return producer


def poison(kafka: Kafka, producer: ProducerIdAndEpoch, tp: TopicPartition = A, *, commit: bool = True) -> None:
    """What an older node did with a client's marker."""
    where = kafka.node.partition(tp)
    assert where is not None
    where.append_marker(producer, FORGED, commit)


def hang(kafka: Kafka, tp: TopicPartition = A) -> None:
    """Leave a transaction open that no coordinator knows."""
    data = batch(b"y", producer=STRANGER, sequence=0, transactional=True)
    partition(kafka, tp).append(bytearray(data), origin=AppendOrigin.COORDINATOR)


async def state_of(kafka: Kafka) -> str:
    return (await kafka.node.transactions.describe(DescribeTransactionRequest(ID))).state


# --- What a client asks for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("epoch", EPOCHS)
def test_S1_T3_a_client_never_commits_by_a_marker(
    tmp_path: Path, version: int, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Any epoch was believed: somebody's transaction was committed in one partition, and its owner told of an abort."""

    async def test(kafka: Kafka) -> None:
        producer = await opened(kafka, A, B)
        for marked in (producer, next_of(producer)):
            refused = await kafka.mark(marked, A, commit=True, version=version, coordinator_epoch=epoch)
            assert refused == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert (partition(kafka).log_end_offset, partition(kafka).last_stable_offset) == (1, 0)
        assert isinstance(await kafka.end(producer, commit=False), ProducerIdAndEpoch)
        await kafka.settled()
        assert committed(kafka, A) == committed(kafka, B) == []
        assert isinstance(await kafka.init(), ProducerIdAndEpoch), "its id continues"

    with caplog.at_level(logging.WARNING, "semel.kafka"):
        with_node(tmp_path, test)
    assert "only its coordinator commits" in caplog.text
    assert "`semel txn finish` writes it" in caplog.text


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("protocol", [PRODUCE_OLDER, PRODUCE_NEWER])
def test_S1_T3_a_clients_abort_is_the_coordinators_own_in_all_partitions(
    tmp_path: Path, version: int, epoch: int, protocol: int
) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        if protocol == PRODUCE_OLDER:
            assert await kafka.add(producer, A, B) == [ErrorCode.NONE] * 2
        for tp in (A, B):
            assert await kafka.send(producer, b"x", tp=tp, version=protocol) is ErrorCode.NONE
        nowhere, own = TopicPartition("b", 0), TopicPartition(TRANSACTIONS_TOPIC, 0)
        marked = next_of(producer) if version == 2 else producer
        for again in (False, True):  # repeated, it changes nothing
            codes = await kafka.mark(marked, A, nowhere, own, commit=False, version=version, coordinator_epoch=epoch)
            assert codes == [
                ErrorCode.INVALID_PRODUCER_EPOCH if again and version == 1 else ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            ]
            assert await state_of(kafka) == TransactionState.COMPLETE_ABORT.label
            for tp in (A, B):
                assert (partition(kafka, tp).log_end_offset, partition(kafka, tp).last_stable_offset) == (2, 2)
                entry = partition(kafka, tp).log.producer_state.entry(producer.producer_id)
                assert entry is not None
                assert (entry.coordinator_epoch, entry.epoch) == (0, producer.producer_epoch + 1)
        assert await kafka.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
        assert committed(kafka, A) == committed(kafka, B) == []
        assert isinstance(await kafka.init(), ProducerIdAndEpoch)

    with_node(tmp_path, test)


@pytest.mark.parametrize("commit", [True, False])
def test_S1_nothing_is_written_ahead_for_producers_to_come(tmp_path: Path, commit: bool) -> None:
    """A marker for an id not yet given out stopped the producer that got the id later."""

    async def test(kafka: Kafka) -> None:
        first = await kafka.begin()
        for ahead in range(first.producer_id + 1, first.producer_id + 4):
            (code,) = await kafka.mark(ProducerIdAndEpoch(ahead, 0), A, commit=commit, coordinator_epoch=FORGED)
            assert code is (ErrorCode.CLUSTER_AUTHORIZATION_FAILED if commit else ErrorCode.INVALID_TXN_STATE)
        assert partition(kafka).log_end_offset == 0
        assert len(partition(kafka).log.producer_state) == 0

    with_node(tmp_path, test)


def test_S1_an_abort_names_the_very_transaction_that_is_open(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await opened(kafka, A)
        later = ProducerIdAndEpoch(producer.producer_id, 9)
        for epoch in EPOCHS:
            refused = await kafka.mark(later, A, commit=False, coordinator_epoch=epoch)
            assert refused == [ErrorCode.INVALID_PRODUCER_EPOCH]
            nothing = await kafka.mark(producer, B, commit=False, coordinator_epoch=epoch)
            assert nothing == [ErrorCode.INVALID_TXN_STATE], "it has nothing open there"
        refused = await kafka.mark(producer, A, commit=False, version=2, transaction_version=9)
        assert refused == [ErrorCode.UNSUPPORTED_VERSION]
        renewed = await kafka.end(producer)
        assert isinstance(renewed, ProducerIdAndEpoch)
        await kafka.settled()
        assert await kafka.send(renewed, b"next", version=PRODUCE_NEWER) is ErrorCode.NONE
        assert await kafka.mark(producer, A, commit=False) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert partition(kafka).last_stable_offset == 2, "a late abort ended the next transaction"
        assert isinstance(await kafka.end(renewed), ProducerIdAndEpoch)
        await kafka.settled()
        assert committed(kafka) == [b"x", b"next"]

    with_node(tmp_path, test)


@pytest.mark.parametrize("commit", [True, False])
def test_T3_T7_a_decision_whose_markers_are_pending_is_kept(
    tmp_path: Path, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(kafka: Kafka) -> None:
        held = asyncio.Event()
        write = LocalMarkerWriter._write

        async def write_when_let(self: LocalMarkerWriter, *args: Any) -> dict[TopicPartition, ErrorCode]:
            await held.wait()
            return await write(self, *args)

        monkeypatch.setattr(LocalMarkerWriter, "_write", write_when_let)
        producer = await opened(kafka, A, B)
        assert isinstance(await kafka.end(producer, commit=commit), ProducerIdAndEpoch)
        monkeypatch.setattr(client_abort, "COMPLETION_TIMEOUT_S", 0)
        refused = await kafka.mark(producer, A, commit=False)
        assert refused == [ErrorCode.INVALID_TXN_STATE if commit else ErrorCode.REQUEST_TIMED_OUT]
        assert partition(kafka).log_end_offset == 1
        monkeypatch.setattr(client_abort, "COMPLETION_TIMEOUT_S", 30)
        if not commit:
            asked = asyncio.ensure_future(kafka.mark(producer, A, commit=False))
            await until(lambda: ID in kafka.node.transactions._completions)
            held.set()
            assert await asked == [ErrorCode.NONE], "its markers are written when it is answered"
        held.set()
        await kafka.settled()
        assert committed(kafka, A) == committed(kafka, B) == ([b"x"] if commit else [])

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", [1, 2])
def test_S1_what_hangs_is_aborted_with_the_epoch_of_the_node(tmp_path: Path, version: int) -> None:
    async def test(kafka: Kafka) -> None:
        hang(kafka)
        for _ in range(2):
            assert await kafka.mark(STRANGER, A, commit=False, version=version, coordinator_epoch=FORGED) == [
                ErrorCode.NONE
            ]
            assert partition(kafka).last_stable_offset == partition(kafka).log_end_offset == 2
        entry = partition(kafka).log.producer_state.entry(STRANGER.producer_id)
        assert entry is not None
        assert entry.coordinator_epoch == 0
        assert committed(kafka) == []

    with_node(tmp_path, test)


def test_T7_a_decided_transaction_whose_marker_is_lost_is_not_aborted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await opened(kafka, A, B)
        where = partition(kafka)

        # As if the marker had been lost with the end of the log: it is reported as written, and is not there.
        async def lose(self: LocalMarkerWriter, marker: TxnMarker, _: Any) -> dict[TopicPartition, ErrorCode]:
            return dict.fromkeys(marker.partitions, ErrorCode.NONE)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalMarkerWriter, "_write", lose)
            assert isinstance(await kafka.end(producer), ProducerIdAndEpoch)
            assert await kafka.node.transactions.completed(ID, 30)
        assert await kafka.mark(producer, A, commit=False) == [ErrorCode.INVALID_TXN_STATE]
        assert where.last_stable_offset == 0
        for tp in (A, B):
            holder, done = await end_hanging(kafka.node, tp, 0, HangingEnd.AS_DECIDED, unknown_elsewhere=False)
            assert (holder, done) == (producer, True)
            entry = partition(kafka, tp).log.producer_state.entry(producer.producer_id)
            assert entry is not None
            assert entry.coordinator_epoch == 0
        assert committed(kafka, A) == committed(kafka, B) == [b"x"]

    with caplog.at_level(logging.WARNING, "semel.kafka"):
        with_node(tmp_path, test)
    assert "semel txn finish --partition a:0 --start-offset 0 --yes" in caplog.text


# --- Folders in which a client's marker is (P9) -----------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_P9_a_forged_coordinator_epoch_does_not_stop_the_coordinator(
    tmp_path: Path, restarted: bool, commit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Every call of the id was CONCURRENT_TRANSACTIONS for ever, also after a restart."""

    async def forge(kafka: Kafka) -> None:
        producer = await opened(kafka, A, B)
        poison(kafka, producer)
        if not restarted:
            await heal(kafka)

    async def heal(kafka: Kafka) -> None:
        described = await kafka.node.transactions.describe(DescribeTransactionRequest(ID))
        assert isinstance(await kafka.end(described.producer, commit=commit), ProducerIdAndEpoch)
        await kafka.settled()
        assert isinstance(await kafka.init(), ProducerIdAndEpoch)
        await healthy(kafka)

    async def healthy(kafka: Kafka) -> None:
        for tp in (A, B):
            (entry,) = partition(kafka, tp).log.producer_state
            assert entry.coordinator_epoch == 0, "the forged epoch is still believed"
        producer = await kafka.begin()
        assert await kafka.send(producer, b"later", version=PRODUCE_NEWER) is ErrorCode.NONE
        assert isinstance(await kafka.end(producer), ProducerIdAndEpoch)
        await kafka.settled()

    with caplog.at_level(logging.WARNING, "semel.markers"):
        with_node(tmp_path, forge, *([heal] if restarted else []), healthy)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "semel.markers"]
    assert "a-0" in line
    assert f"{FORGED}" in line
    assert "the latest is 0" in line


def test_P9_a_decision_that_was_stuck_by_a_forged_marker_gets_through_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stick(kafka: Kafka) -> None:
        producer = await opened(kafka, A, B)
        poison(kafka, producer)

        async def none(*_: object) -> dict[TopicPartition, int]:
            return {}

        monkeypatch.setattr(LocalMarkerWriter, "_forged_epochs", none)  # as older nodes did
        assert isinstance(await kafka.end(producer), ProducerIdAndEpoch)
        await until(lambda: kafka.node.transactions.pending_markers() == 0)
        assert await kafka.init() is ErrorCode.CONCURRENT_TRANSACTIONS
        monkeypatch.undo()

    async def start(kafka: Kafka) -> None:
        await kafka.node.transactions.topic_ready()
        await kafka.settled()
        assert await state_of(kafka) == TransactionState.COMPLETE_COMMIT.label
        assert isinstance(await kafka.init(), ProducerIdAndEpoch)

    with_node(tmp_path, stick, start)


def test_P9_producer_ids_that_were_marked_ahead_are_healed(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        known = await kafka.begin(name="before")
        ahead = ProducerIdAndEpoch(known.producer_id + 1, 0)
        poison(kafka, ahead)
        producer = await opened(kafka, A, B)
        assert producer == ahead
        renewed = await kafka.end(producer)
        assert isinstance(renewed, ProducerIdAndEpoch)
        await kafka.settled()
        assert await kafka.send(renewed, b"y", version=PRODUCE_NEWER) is ErrorCode.NONE
        assert isinstance(await kafka.end(renewed), ProducerIdAndEpoch)
        await kafka.settled()
        assert committed(kafka) == [b"x", b"y"]

    with_node(tmp_path, test)


def test_P9_the_producer_epoch_of_a_forged_marker_does_not_count(tmp_path: Path) -> None:
    """It kept the producer out of that partition, until the partition forgot it."""

    async def test(kafka: Kafka) -> None:
        producer = await opened(kafka, B)
        poison(kafka, ProducerIdAndEpoch(producer.producer_id, 30_000))
        refused = await kafka.send(producer, b"x", version=PRODUCE_NEWER)
        assert refused is ErrorCode.INVALID_PRODUCER_EPOCH
        renewed = await kafka.end(producer, commit=False)
        assert isinstance(renewed, ProducerIdAndEpoch)
        await kafka.settled()
        assert await kafka.send(renewed, b"y", version=PRODUCE_NEWER) is ErrorCode.NONE
        assert isinstance(await kafka.end(renewed), ProducerIdAndEpoch)
        await kafka.settled()
        assert committed(kafka) == [b"y"]

    with_node(tmp_path, test)


def test_P9_O1_a_forged_marker_among_offsets_is_overruled(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        producer = await kafka.begin()
        assert await kafka.add_offsets(producer) is ErrorCode.NONE
        tp = kafka.node.groups.offsets_partition(GROUP)
        poison(kafka, producer, tp)
        assert await kafka.commit_offset(producer, 5) is ErrorCode.NONE
        assert isinstance(await kafka.end(producer), ProducerIdAndEpoch)
        await kafka.settled()
        assert await kafka.committed() == 5

    with_node(tmp_path, test)


def test_P9_the_doctor_names_forged_markers_until_they_are_overruled(tmp_path: Path) -> None:
    async def names(kafka: Kafka) -> list[tuple[str, tuple[str, ...]]]:
        found = diagnose(Cluster((await take_snapshot(kafka.node),))).findings
        assert all(one.severity is Severity.WARNING for one in found if one.kind.name == "forged-marker")
        return [(one.subject, one.commands) for one in found if one.kind.name == "forged-marker"]

    async def forge(kafka: Kafka) -> None:
        producer = await opened(kafka, A, B)
        assert await names(kafka) == []
        poison(kafka, producer)
        poison(kafka, STRANGER, B)

    async def test(kafka: Kafka) -> None:
        await kafka.node.transactions.topic_ready()
        described = await kafka.node.transactions.describe(DescribeTransactionRequest(ID))
        dump = f"semel log dump {kafka.node.config.data_dir}"
        strangers = (f"a-1, producer {STRANGER.producer_id}", (f"{dump}/a-1 --transactional",))
        own = f"a-0, producer {described.producer.producer_id}"
        assert await names(kafka) == [
            (own, (f"semel txn why {ID}", f"{dump}/a-0 --transactional")),
            strangers,
        ]
        assert isinstance(await kafka.end(described.producer), ProducerIdAndEpoch)
        await kafka.settled()
        assert await names(kafka) == [strangers]

    with_node(tmp_path, forge, test)


def test_P9_what_hangs_behind_a_forged_marker_is_ended(tmp_path: Path) -> None:
    async def test(kafka: Kafka) -> None:
        await kafka.begin()
        poison(kafka, STRANGER)
        hang(kafka)
        await end_hanging(kafka.node, A, 1, HangingEnd.ABORT, unknown_elsewhere=False)
        (entry,) = partition(kafka).log.producer_state
        assert entry.coordinator_epoch == 0
        assert partition(kafka).last_stable_offset == 3

    with_node(tmp_path, test)


def test_P9_a_coordinator_that_was_replaced_does_not_overrule(tmp_path: Path) -> None:
    """Only the latest one, by the word of the metadata, knows that a higher epoch is nobody's."""

    async def test(kafka: Kafka) -> None:
        await kafka.begin()
        poison(kafka, STRANGER)
        writer = LocalMarkerWriter(kafka.node)
        number = kafka.node.transactions.partition_for(ID)
        for epoch, coordinator in ((-1, number), (-1, -1), (0, 99), (1, number)):
            late = TxnMarker(STRANGER, epoch, False, (A,), TransactionVersion.V1, coordinator)
            assert await writer.write_markers(late) == {A: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        assert partition(kafka).log_end_offset == 1
        real = TxnMarker(STRANGER, 0, False, (A,), TransactionVersion.V1, number)
        assert await writer.write_markers(real) == {A: ErrorCode.NONE}
        assert await writer.write_markers(real) == {A: ErrorCode.NONE}
        assert partition(kafka).log_end_offset == 2, "once overruled, it is an ordinary partition again"
        later = replace(real, producer=STRANGER._replace(producer_epoch=5))
        assert await writer.write_markers(later) == {A: ErrorCode.NONE}
        assert await writer.write_markers(real) == {A: ErrorCode.INVALID_PRODUCER_EPOCH}, "it comes too late"
        assert partition(kafka).log_end_offset == 3

    with_node(tmp_path, test)


def test_S1_no_client_sets_the_epoch_by_the_other_calls(tmp_path: Path) -> None:
    """What ends a hanging transaction on gRPC takes no epoch at all, and one that does not hang is refused."""

    async def test(kafka: Kafka) -> None:
        await opened(kafka, A)
        for end in HangingEnd:
            with pytest.raises(FatalError, match="does not hang"):
                await end_hanging(kafka.node, A, 0, end, unknown_elsewhere=True)
        assert partition(kafka).log_end_offset == 1

    with_node(tmp_path, test)


def test_P9_a_replaced_coordinator_overrules_nobody_also_where_the_metadata_lags(tmp_path: Path) -> None:
    """A later coordinator's epoch, of which this node has not heard yet, looked like one that nobody ever had."""

    async def test(kafka: Kafka) -> None:
        producer = await opened(kafka, A, B)
        metadata, transactions = kafka.node.metadata, kafka.node.transactions
        place = TopicPartition(TRANSACTIONS_TOPIC, transactions.partition_for(ID))
        before = metadata.image
        topic, state = before.topics[TRANSACTIONS_TOPIC], before.partition(place)
        assert state is not None
        later = replace(state, leader_epoch=1, partition_epoch=state.partition_epoch + 1)
        await metadata.change(lambda _: [PartitionChanged(topic.name, topic.topic_id, place.partition, later)])
        metadata.image = before
        offset = partition(kafka).append_marker(producer, 1, committed=True)
        assert offset is not None
        late = TxnMarker(producer, 0, False, (A,), coordinator=place.partition)
        assert await LocalMarkerWriter(kafka.node).write_markers(late) == {A: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        assert partition(kafka).log_end_offset == offset + 1

    with_node(tmp_path, test)
