"""Commits of more offsets than fit into one request (S2): split by the client, in and outside of transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import semel
from semel.broker.listeners.grpc.edge import REQUEST_BYTES_MAX
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.records.schemas import OffsetCommitValue, offset_record, record_size_bytes
from semel.protocol.v1 import groups_pb2
from semel.sdk.transport.offset_parts import PART_BYTES_MAX, in_parts
from semel.testing import Broker

PARTITIONS = 1_100
NOTE = "n" * 4_000
"""So that the offsets of all partitions are more than a request may have."""


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("many", partitions=PARTITIONS)
        yield node


def offsets_of(offset: int) -> dict[semel.TopicPartition, semel.OffsetAndMetadata]:
    assert PARTITIONS * len(NOTE) > REQUEST_BYTES_MAX
    return {
        semel.TopicPartition("many", number): semel.OffsetAndMetadata(offset, metadata=NOTE)
        for number in range(PARTITIONS)
    }


def committed(node: Broker, group: str) -> dict[semel.TopicPartition, int]:
    with semel.Admin(node.bootstrap) as admin:
        return {tp: place.offset for tp, place in admin.group_offsets(group).items()}


def offsets_in(offset: int) -> dict[semel.TopicPartition, int]:
    return dict.fromkeys(offsets_of(offset), offset)


def test_S2_a_consumer_commits_more_offsets_than_fit_into_a_request(node: Broker) -> None:
    """The node refused the request, and there was no other way to commit them."""
    with semel.Consumer(node.bootstrap, group="reads", auto_commit_interval_ms=None) as consumer:
        consumer.assign(offsets_in(0))
        consumer.commit(offsets_of(1))
    assert committed(node, "reads") == offsets_in(1)


def test_S2_an_admin_sets_more_offsets_than_fit_into_a_request(node: Broker) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.alter_group_offsets("set", offsets_of(2))
    assert committed(node, "set") == offsets_in(2)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_O1_a_transaction_commits_more_offsets_than_fit_into_a_request_all_or_none(node: Broker, commits: bool) -> None:
    group = f"in a transaction {commits}"
    with semel.Producer(node.bootstrap, transactional_id=group) as producer:
        producer.begin_transaction()
        producer.send_offsets(offsets_of(3), semel.GroupMetadata(group))
        assert committed(node, group) == {}
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert committed(node, group) == (offsets_in(3) if commits else {})


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [(0, 1, []), (3, 1, [3]), (5, PART_BYTES_MAX // 2 - 100, [2, 2, 1]), (2, 2 * PART_BYTES_MAX, [1, 1])],
)
def test_S2_offsets_go_in_as_few_requests_as_they_need(count: int, size: int, parts: list[int]) -> None:
    item = groups_pb2.CommitOffsetsRequest.Item(topic="t", offset=5, metadata="n" * size)
    found = list(in_parts([item] * count, "g"))
    assert [len(part) for part in found] == parts


@pytest.mark.parametrize(("topic", "group", "note"), [("t", "g", ""), ("t" * 249, "g" * 500, "n" * 50)])
def test_S2_a_part_makes_no_more_records_than_a_node_takes_in_one_commit(topic: str, group: str, note: str) -> None:
    item = groups_pb2.CommitOffsetsRequest.Item(topic=topic, metadata=note)
    largest = offset_record(
        group, semel.TopicPartition(topic, 1 << 30), OffsetCommitValue(1 << 62, 1 << 30, note, 1 << 62, 1 << 62)
    )
    part = next(in_parts([item] * 100_000, group))
    assert len(part) * record_size_bytes(largest) <= GroupConfig().group_records_max_bytes
