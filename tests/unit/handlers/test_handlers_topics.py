"""Creating, deleting and growing topics: Kafka's rules, and what happens to their logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from running_node import batch, create_topic, run_with_node, running_node

from semel.broker.handlers import metadata
from semel.broker.handlers.topics.changes import (
    TOPICS_PER_REQUEST_MAX,
    create_internal_topic,
    create_partitions,
    create_topics,
    delete_topics,
)
from semel.broker.handlers.topics.rules import check_topic_name, collides, unified_names
from semel.broker.node import Node
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest, OffsetFetchRequest
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition, new_topic_id
from semel.protocol.listener_names import DEFAULT_LISTENER


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 249, "__mine", "...", "-"])
def test_good_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0", "__cluster_metadata"])
def test_bad_names(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_differ_by_dot_and_underscore_collide() -> None:
    assert collides("a.b", unified_names(["x", "a_b"]))
    assert collides("a_b.c", unified_names(["a.b_c"]))
    assert not collides("a.b", unified_names(["a.b", "a-b"]))
    assert not collides("ab", unified_names(["a.b"]))


def test_each_topic_succeeds_or_fails_for_itself(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "old_one")
        asked = {
            "fine": (NewTopic("fine", 3), ErrorCode.NONE),
            "defaults": (NewTopic("defaults"), ErrorCode.NONE),
            "old_one": (NewTopic("old_one"), ErrorCode.TOPIC_ALREADY_EXISTS),
            "old.one": (NewTopic("old.one"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            "no good": (NewTopic("no good"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            "new.one": (NewTopic("new.one"), ErrorCode.NONE),
            "new_one": (NewTopic("new_one"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            "none": (NewTopic("none", 0), ErrorCode.INVALID_PARTITIONS),
            "minus": (NewTopic("minus", -2), ErrorCode.INVALID_PARTITIONS),
            "many": (NewTopic("many", 50), ErrorCode.INVALID_PARTITIONS),
            "replicas": (NewTopic("replicas", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
            "zero": (NewTopic("zero", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
            "unknown": (NewTopic("unknown", configs={"retenton.ms": "1"}), ErrorCode.INVALID_CONFIG),
            "wrong": (NewTopic("wrong", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
            "contradict": (
                NewTopic("contradict", configs={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}),
                ErrorCode.INVALID_CONFIG,
            ),
            OFFSETS_TOPIC: (NewTopic(OFFSETS_TOPIC), ErrorCode.INVALID_TOPIC_EXCEPTION),
        }
        results = await create_topics(node, [topic for topic, _ in asked.values()])
        assert {result.name: result.error for result in results} == {name: error for name, (_, error) in asked.items()}
        assert all(bool(result.message) is (result.error is not ErrorCode.NONE) for result in results)
        assert set(node.metadata.image.topics) == {"old_one", "fine", "defaults", "new.one"}
        assert node.metadata.image.partition_count == 1 + 3 + 2 + 2
        for number in range(3):
            partition = node.partition(TopicPartition("fine", number))
            assert partition is not None
            assert partition.topic_id == node.metadata.topic_id("fine")

    run_with_node(tmp_path, test, max_partitions=50, num_partitions=2)


def test_a_topic_twice_in_a_request_is_refused_both_times(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        results = await create_topics(node, [NewTopic("a"), NewTopic("b"), NewTopic("a", 2)])
        assert [result.error for result in results] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
        ]

    run_with_node(tmp_path, test)


def test_validate_only_changes_nothing(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        sequence = node.metadata.image.sequence
        good, bad = await create_topics(node, [NewTopic("a"), NewTopic("a b")], validate_only=True)
        assert (good.error, bad.error) == (ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert good.topic is not None
        assert node.metadata.image.sequence == sequence
        await create_topic(node, "a")
        await create_partitions(node, "a", 4, validate_only=True)
        assert len(node.metadata.image.topics["a"].partitions) == 1

    run_with_node(tmp_path, test)


def test_a_deleted_topic_takes_its_records_and_offsets_with_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", 2)
        await create_topic(node, "b")
        tp, kept = TopicPartition("a", 0), TopicPartition("b", 0)
        old = node.partition(tp)
        assert old is not None
        old.append(batch(b"x"))
        await old.wait_committed(0)
        await node.groups.topic_ready()
        offsets = {tp: OffsetAndMetadata(1), kept: OffsetAndMetadata(7)}
        await node.groups.commit_offsets(OffsetCommitRequest("g", -1, "", None, offsets))
        gone, missing, internal = await delete_topics(node, ["a", "nope", OFFSETS_TOPIC])
        assert (gone.error, missing.error, internal.error) == (
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REQUEST,
        )
        assert node.partition(tp) is None
        assert old.offline_error is not None
        fetched = await node.groups.fetch_offsets(OffsetFetchRequest("g", None))
        assert {tp: found.offset for tp, found in fetched.offsets.items()} == {kept: 7}
        # The same name again is another topic.
        await create_topic(node, "a")
        new = node.partition(tp)
        assert new is not None
        assert (new.log_end_offset, new.topic_id != old.topic_id) == (0, True)

    run_with_node(tmp_path, test)


def test_deletion_can_be_switched_off(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        (result,) = await delete_topics(node, ["a"])
        assert result.error is ErrorCode.TOPIC_DELETION_DISABLED

    run_with_node(tmp_path, test, delete_topic_enable=False)


def test_topics_grow_and_never_shrink(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", 2)
        await create_partitions(node, "a", 5)
        assert node.partition(TopicPartition("a", 4)) is not None
        for name, count, code in (
            ("a", 5, ErrorCode.INVALID_PARTITIONS),
            ("a", 1, ErrorCode.INVALID_PARTITIONS),
            ("a", 1_000_000_000, ErrorCode.INVALID_PARTITIONS),
            ("nope", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (OFFSETS_TOPIC, 5, ErrorCode.INVALID_REQUEST),
        ):
            with pytest.raises(SemelError) as caught:
                await create_partitions(node, name, count)
            assert caught.value.code is code
        assert len(node.metadata.image.topics["a"].partitions) == 5

    async def with_offsets(node: Node) -> None:
        await create_internal_topic(node, OFFSETS_TOPIC)
        await test(node)

    run_with_node(tmp_path, with_offsets)


def test_internal_topics_are_made_once_compacted_and_with_their_own_partitions(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await asyncio.gather(*(node.groups.topic_ready() for _ in range(5)))
        await node.transactions.topic_ready()
        offsets, transactions = (node.metadata.image.topics[name] for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
        assert (len(offsets.partitions), len(transactions.partitions)) == (3, 2)
        partition = node.partition(TopicPartition(OFFSETS_TOPIC, 2))
        assert partition is not None
        assert partition.config.is_compacted
        assert not partition.config.is_deleted
        assert partition.config.segment_bytes == 104_857_600

    run_with_node(tmp_path, test, offsets_topic_num_partitions=3)


def test_the_number_of_partitions_of_an_internal_topic_outlives_its_setting(tmp_path: Path) -> None:
    """Keys are bound to partitions: another setting must not move groups."""

    async def main() -> None:
        async with running_node(tmp_path, offsets_topic_num_partitions=3) as node:
            await node.groups.topic_ready()
        async with running_node(tmp_path, offsets_topic_num_partitions=9) as node:
            # the group's hash is 48: its place among 9 would be 3
            assert node.groups.offsets_partition("0").partition == 0

    asyncio.run(main())


def test_too_many_topics_in_one_request_are_refused_at_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        too_many = [NewTopic(f"t{number}") for number in range(TOPICS_PER_REQUEST_MAX + 1)]
        assert {result.error for result in await create_topics(node, too_many)} == {ErrorCode.POLICY_VIOLATION}
        assert not node.metadata.image.topics

    run_with_node(tmp_path, test)


def test_metadata_by_name_id_and_all(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", 2)
        await create_internal_topic(node, OFFSETS_TOPIC)
        (found,) = await metadata.topics_by_name(node, ["a"])
        assert found.topic is not None
        assert [partition.leader_id for partition in found.topic.partitions] == [1, 1]
        assert await metadata.topics_by_id(node, [found.topic.topic_id]) == (found,)
        unknown_id, wrong, missing = (
            (await metadata.topics_by_id(node, [new_topic_id()]))[0],
            *(await metadata.topics_by_name(node, ["a b", "zz"], allow_auto_create=True)),
        )
        assert unknown_id.error is ErrorCode.UNKNOWN_TOPIC_ID
        assert wrong.error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert missing.error is ErrorCode.NONE
        assert {result.name for result in await metadata.all_topics(node, include_internal=False)} == {"a", "zz"}
        assert {result.name for result in await metadata.all_topics(node, include_internal=True)} == {
            "a",
            "zz",
            OFFSETS_TOPIC,
        }
        (missing,) = await metadata.topics_by_name(node, ["yy"])
        assert missing.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster = metadata.cluster_of_grpc(node, DEFAULT_LISTENER)
        assert cluster.cluster_id == node.metadata.image.cluster_id
        assert cluster.controller_id == 1
        assert (cluster.nodes[0].kafka_port, cluster.nodes[0].grpc_port) == (
            node.kafka_address.port,
            node.grpc_address.port,
        )

    run_with_node(tmp_path, test)


def test_topics_are_not_made_by_asking_where_that_is_switched_off(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        (result,) = await metadata.topics_by_name(node, ["a"], allow_auto_create=True)
        assert result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_with_node(tmp_path, test, auto_create_topics_enable=False)


def test_errors_are_of_the_kind_that_says_what_to_do(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        with pytest.raises(RetriableError):
            await create_partitions(node, "nope", 2)
        await create_topic(node, "a")
        with pytest.raises(FatalError):
            await create_partitions(node, "a", 1)

    run_with_node(tmp_path, test)
