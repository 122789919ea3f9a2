"""Listing offsets, deleting records, committing offsets of what exists."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest
from running_node import create_topic, run_with_node

from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.handlers.list_offsets import list_offsets
from semel.broker.handlers.offset_commit import commit_offsets
from semel.broker.logs.data_folder import PartitionOffsets
from semel.broker.node import Node
from semel.broker.permitted.topics import delete
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest, OffsetFetchRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.topics import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    IsolationLevel,
    ListOffsetsRequest,
)
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition

TP = TopicPartition("a", 0)

with_node = partial(run_with_node, topics={"a": 1})


async def append(node: Node, *timestamps_ms: int, producer_id: int = -1) -> None:
    partition = node.partition(TP)
    assert partition is not None
    for timestamp_ms in timestamps_ms:
        options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        records = [(timestamp_ms, b"k", b"v", ())]
        data = encode_batch(records) if producer_id < 0 else encode_batch(records, **options)  # type: ignore[arg-type]
        result = partition.append(bytearray(data), verified=producer_id >= 0)
        await partition.wait_committed(result.last_offset)


async def offset(
    node: Node, timestamp_ms: int, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> tuple[int, int]:
    found = (await list_offsets(node, ListOffsetsRequest({TP: timestamp_ms}, isolation)))[TP]
    assert found.error is ErrorCode.NONE
    return found.offset, found.timestamp_ms


def test_offsets_by_time(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        specials = (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, 0)
        assert [(await offset(node, special))[0] for special in specials] == [0, 0, -1]
        await append(node, 100, 300, 200)
        assert await offset(node, EARLIEST_TIMESTAMP) == (0, -1)
        assert await offset(node, LATEST_TIMESTAMP) == (3, -1)
        assert await offset(node, MAX_TIMESTAMP) == (1, 300)
        assert await offset(node, 101) == (1, 300)
        assert await offset(node, 301) == (-1, -1)

    with_node(tmp_path, test)


def test_L2_the_latest_offset_of_committed_records_is_the_last_stable_one(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await append(node, 100)
        await append(node, 200, producer_id=5)
        assert await offset(node, LATEST_TIMESTAMP) == (1, -1)
        assert await offset(node, LATEST_TIMESTAMP, IsolationLevel.READ_UNCOMMITTED) == (2, -1)
        assert await offset(node, 150) == (-1, -1)

    with_node(tmp_path, test)


def test_unknown_partitions_have_their_own_errors(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        asked = {TP: -1, TopicPartition("a", 1): -1, TopicPartition("b", 0): -1, TopicPartition("a", -1): -1}
        found = await list_offsets(node, ListOffsetsRequest(asked))
        assert [item.error for item in found.values()] == [ErrorCode.NONE] + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3

    with_node(tmp_path, test)


def test_deleting_records_moves_the_start(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await append(node, 1, 2, 3)
        assert (await delete(node, ALL_RIGHTS, {TP: 2}))[TP].log_start_offset == 2
        assert (await offset(node, EARLIEST_TIMESTAMP))[0] == 2
        assert (await delete(node, ALL_RIGHTS, {TP: -1}))[TP].log_start_offset == 3
        refused = (await delete(node, ALL_RIGHTS, {TP: 4}))[TP]
        assert (refused.error, refused.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert (await delete(node, ALL_RIGHTS, {TP: -2}))[TP].error is ErrorCode.OFFSET_OUT_OF_RANGE
        missing = TopicPartition("b", 0)
        assert (await delete(node, ALL_RIGHTS, {missing: 0}))[missing].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_node(tmp_path, test)


def test_D1_D3_what_was_answered_as_deleted_stays_deleted_after_a_power_cut(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await append(node, 1, 2, 3)
        assert (await delete(node, ALL_RIGHTS, {TP: 2}))[TP].log_start_offset == 2
        assert node.logs.folder.log_starts.all() == {TP: 2}, "it is on the disk before the answer"

    with_node(tmp_path, test)


def test_D1_a_start_that_the_disk_does_not_take_is_not_answered_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def test(node: Node) -> None:
        await append(node, 1, 2, 3)
        monkeypatch.setattr(PartitionOffsets, "write", refuse)
        refused = await delete(node, ALL_RIGHTS, {TP: 2, TopicPartition("b", 0): 0})
        assert [one.error for one in refused.values()] == [
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        monkeypatch.undo()
        assert (await delete(node, ALL_RIGHTS, {TP: 1}))[TP].log_start_offset == 2
        assert node.logs.folder.log_starts.all() == {TP: 2}, "the next answer is about the same start"

    with_node(tmp_path, test)


def test_records_of_compacted_and_internal_topics_stay(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "table", cleanup_policy="compact")
        await create_topic(node, "both", cleanup_policy="compact,delete")
        await node.groups.topic_ready()
        table, both, internal = (TopicPartition(name, 0) for name in ("table", "both", OFFSETS_TOPIC))
        found = await delete(node, ALL_RIGHTS, {table: 0, both: 0, internal: 0})
        assert found[table].error is ErrorCode.POLICY_VIOLATION
        assert found[both].error is ErrorCode.NONE
        assert found[internal].error is ErrorCode.INVALID_TOPIC_EXCEPTION

    with_node(tmp_path, test)


def test_offsets_of_unknown_partitions_are_refused_and_the_others_committed(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        unknown = TopicPartition("b", 0)
        offsets = {TP: OffsetAndMetadata(4, metadata="m"), unknown: OffsetAndMetadata(5)}
        response = await commit_offsets(node, OffsetCommitRequest("g", -1, "", None, offsets))
        assert response.errors == {TP: ErrorCode.NONE, unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        found = await node.groups.fetch_offsets(OffsetFetchRequest("g", None))
        assert {tp: (item.offset, item.metadata) for tp, item in found.offsets.items()} == {TP: (4, "m")}

    with_node(tmp_path, test)


def test_T8_offsets_join_their_transaction_by_the_coordinators_word(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.transactions.topic_ready()
        producer = (await node.transactions.init_producer_id(InitProducerIdRequest("t", 60_000))).producer
        request = OffsetCommitRequest("g", -1, "", None, {TP: OffsetAndMetadata(4)}, "t", producer)
        assert (await commit_offsets(node, request)).errors == {TP: ErrorCode.NONE}
        found = await node.groups.fetch_offsets(OffsetFetchRequest("g", (TP,)))
        assert found.offsets[TP].error is ErrorCode.UNSTABLE_OFFSET_COMMIT

    with_node(tmp_path, test)
