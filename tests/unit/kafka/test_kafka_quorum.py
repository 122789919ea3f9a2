"""DescribeQuorum and UpdateFeatures on the Kafka listener: what tools for the metadata and for features hear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import create_topic, run_with_node

from semel.broker.node import Node
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey

METADATA = "__cluster_metadata"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
WRONG, FAILED = ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FEATURE_UPDATE_FAILED


async def quorum(node: Node, version: int, *places: tuple[str, int]) -> Any:
    topics = [{"topic_name": name, "partitions": [{"partition_index": number}]} for name, number in places]
    return await call(node.kafka_address.port, ApiKey.DESCRIBE_QUORUM, version, topics=topics)


@pytest.mark.parametrize("version", range(3))
def test_the_node_is_the_one_voter_of_its_metadata(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        for _ in range(2):
            answer = await quorum(node, version, (METADATA, 0))
            assert int(answer.error_code) == 0
            ((partition,),) = [topic.partitions for topic in answer.topics]
            assert (int(partition.error_code), partition.leader_id) == (0, 1)
            assert partition.leader_epoch == node.metadata.controller_epoch >= 0
            assert partition.high_watermark == node.metadata.image.sequence > 0
            (voter,) = partition.current_voters
            assert (voter.replica_id, voter.log_end_offset) == (1, node.metadata.image.sequence)
            assert partition.observers == ()
            if version >= 1:
                assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp > 0
            if version >= 2:
                (each,) = answer.nodes
                (listener,) = each.listeners
                assert (each.node_id, listener.host, listener.port) == (1, "127.0.0.1", node.kafka_address.port)
            await create_topic(node, f"a{node.metadata.image.sequence}")

    run_with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(3))
def test_other_partitions_have_no_quorum(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        answer = await quorum(node, version, ("a", 0), (METADATA, 1), (METADATA, 0))
        assert int(answer.error_code) == 0
        found = [(topic.topic_name, int(one.error_code)) for topic in answer.topics for one in topic.partitions]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found == [("a", unknown), (METADATA, unknown), (METADATA, 0)]
        assert [one.leader_id for topic in answer.topics for one in topic.partitions] == [-1, -1, 1]

    run_with_node(tmp_path, test, topics={"a": 1})


@pytest.mark.parametrize("version", range(3))
def test_a_node_that_is_not_the_controller_leads_no_quorum(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(type(node.metadata), "controller_epoch", -1)
            answer = await quorum(node, version, (METADATA, 0))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.topics == ()

    run_with_node(tmp_path, test)


async def update(node: Node, version: int, *updates: tuple[str, int, int]) -> list[tuple[ErrorCode, str | None]]:
    """Return the outcome of each update; of the version that has none, that of the whole."""
    values = [
        {"feature": name, "max_version_level": level}
        | ({"upgrade_type": kind} if version >= 1 else {"allow_downgrade": kind != UPGRADE})
        for name, level, kind in updates
    ]
    answer = await call(node.kafka_address.port, ApiKey.UPDATE_FEATURES, version, timeout=1_000, feature_updates=values)
    if version >= 2:
        return [(ErrorCode(answer.error_code), answer.error_message)]
    assert int(answer.error_code) == 0
    assert [one.feature for one in answer.results] == [name for name, _, _ in updates]
    return [(ErrorCode(one.error_code), one.error_message) for one in answer.results]


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("name", "level", "kind", "code", "said"),
    [
        ("transaction.version", 2, UPGRADE, ErrorCode.NONE, None),
        ("transaction.version", 2, SAFE_DOWNGRADE, ErrorCode.NONE, None),
        ("group.version", 1, UPGRADE, ErrorCode.NONE, None),
        ("transaction.version", 3, UPGRADE, WRONG, "it has 0 to 2"),
        ("transaction.version", -1, SAFE_DOWNGRADE, WRONG, "it has 0 to 2"),
        ("transaction.version", 1, UPGRADE, WRONG, "would be a downgrade"),
        ("transaction.version", 1, SAFE_DOWNGRADE, FAILED, "stays at level 2"),
        ("group.version", 0, UNSAFE_DOWNGRADE, FAILED, "stays at level 1"),
        ("metadata.version", 25, UPGRADE, WRONG, "transaction.version, group.version"),
        ("", 1, UPGRADE, WRONG, "there is no feature ''"),
    ],
)
def test_what_a_feature_can_be_and_what_not(
    tmp_path: Path, version: int, name: str, level: int, kind: int, code: ErrorCode, said: str | None
) -> None:
    async def test(node: Node) -> None:
        sequence = node.metadata.image.sequence
        ((found, message),) = await update(node, version, (name, level, kind))
        assert found is code
        assert (message is None) if said is None else (said in str(message))
        assert node.metadata.image.sequence == sequence

    run_with_node(tmp_path, test)


def test_an_update_of_several_features_fails_by_the_first_that_fails(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        updates = (("transaction.version", 2, UPGRADE), ("group.version", 9, UPGRADE), ("x", 1, UPGRADE))
        for version in range(2):
            assert [code for code, _ in await update(node, version, *updates)] == [ErrorCode.NONE, WRONG, WRONG]
        ((code, message),) = await update(node, 2, *updates)
        assert (code, "group.version" in str(message)) == (WRONG, True)
        assert await update(node, 2) == [(ErrorCode.NONE, None)]
        ((code, message),) = await update(node, 1, ("group.version", 1, 7))
        assert (code, "of type 7" in str(message)) == (WRONG, True)

    run_with_node(tmp_path, test)
