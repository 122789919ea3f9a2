"""Offsets that a producer commits where their group stands as its work began (O5), and reading where a group stands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import semel
from semel.testing import Broker

INPUT = semel.TopicPartition("in", 0)
GROUP = semel.GroupMetadata("enrich")


@pytest.fixture
def node() -> Iterator[Broker]:
    with Broker() as node:
        for topic in ("in", "out"):
            node.create_topic(topic)
        yield node


def test_O5_of_two_producers_that_begin_at_the_same_place_one_commits_with_its_records(node: Broker) -> None:
    with (
        semel.Producer(node.bootstrap, transactional_id="first") as first,
        semel.Producer(node.bootstrap, transactional_id="second") as second,
    ):
        with first.transaction() as txn:
            txn.send("out", b"first")
            txn.send_offsets({INPUT: 3}, GROUP, expected_offsets={INPUT: -1})
        second.begin_transaction()
        second.send("out", b"second")
        with pytest.raises(semel.AbortTransactionError, match="somebody else has moved the group") as refused:
            second.send_offsets({INPUT: 3}, GROUP, expected_offsets={INPUT: -1})
        second.abort_transaction()
        assert refused.value.code is semel.ErrorCode.INVALID_UPDATE_VERSION
        with second.transaction() as txn:
            txn.send("out", b"third")
            txn.send_offsets({INPUT: 5}, GROUP, expected_offsets={INPUT: 3})
    assert [record.value for record in node.records("out")] == [b"first", b"third"]
    assert node.committed_offsets("enrich") == {INPUT: 5}


def test_an_expected_offset_of_another_partition_is_a_mistake_that_leaves_the_transaction_open(node: Broker) -> None:
    other = semel.TopicPartition("in", 1)
    with semel.Producer(node.bootstrap, transactional_id="first") as producer, producer.transaction() as txn:
        with pytest.raises(semel.UsageError, match="expected_offsets names in-1, and offsets does not"):
            txn.send_offsets({INPUT: 3}, GROUP, expected_offsets={other: 0})
        txn.send_offsets({INPUT: 3}, GROUP, expected_offsets={INPUT: 0})
    assert node.committed_offsets("enrich") == {INPUT: 3}


def test_O2_where_a_group_stands_is_not_told_as_stable_while_a_transaction_moves_it(node: Broker) -> None:
    with semel.Admin(node.bootstrap) as admin, semel.Producer(node.bootstrap, transactional_id="first") as producer:
        with producer.transaction() as txn:
            txn.send_offsets({INPUT: 3}, GROUP)
            with pytest.raises(semel.RetriableError) as unstable:
                admin.group_offsets("enrich", stable=True)
            assert unstable.value.code is semel.ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert not any(place.offset >= 0 for place in admin.group_offsets("enrich").values())
        with producer.transaction() as txn:  # begins once the markers of the first are written
            txn.send("out", b"")
        assert admin.group_offsets("enrich", stable=True)[INPUT].offset == 3


def test_the_cluster_has_an_id_a_controller_and_nodes_with_addresses(node: Broker) -> None:
    with semel.Admin(node.bootstrap) as admin:
        cluster = admin.cluster()
    (only,) = cluster.nodes
    assert cluster.cluster_id
    assert cluster.controller_id == only.node_id
    assert f"{only.grpc_host}:{only.grpc_port}" == node.bootstrap
