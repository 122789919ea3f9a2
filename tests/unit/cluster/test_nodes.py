"""A node is emptied, stopped and removed while the others go on; a process that runs as a removed node ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster import Cluster
from moving_cluster import T0, create, moved, run

from semel.broker.handlers.nodes import cordon, describe_nodes, remove
from semel.broker.handlers.reassignments import reassign
from semel.broker.handlers.topics.changes import create_internal_topic, create_topics
from semel.broker.metadata.runs import NodeRemovedError
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition


async def refusal(made: Cluster, node_id: int) -> SemelError:
    with pytest.raises(SemelError) as refused:
        await remove(made.any(), node_id)
    return refused.value


def test_a_node_is_emptied_stopped_and_removed_and_its_number_is_free_again(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        await made.produce(T0, b"1")
        assert "it has replicas" in (await refusal(made, 2)).message
        await cordon(made.any(), 2, is_cordoned=True)
        assert [one.is_cordoned for one in await describe_nodes(made.any())] == [False, True, False]
        await moved(made, T0, 1, 3)
        assert "it is alive" in (await refusal(made, 2)).message
        await made.stop(2)
        await made.until(lambda: made.any().metadata.image.brokers[2].is_fenced)
        assert [one.is_alive for one in await describe_nodes(made.any())] == [True, False, True]
        await remove(made.any(), 2)
        assert [one.node_id for one in await describe_nodes(made.any())] == [1, 3]
        assert (await refusal(made, 2)).code is ErrorCode.BROKER_ID_NOT_REGISTERED
        assert await made.produce(T0, b"2") == 1
        with pytest.raises(NodeStartError, match="node 2 was removed from the cluster") as refused:
            await made.start(2, may_join=False)
        assert refused.value.failure is StartFailure.REMOVED
        assert 2 not in made.nodes[1].metadata.image.brokers
        await made.start(2)
        await made.until(lambda: 2 in made.nodes[1].metadata.image.brokers)
        assert [one.is_cordoned for one in await describe_nodes(made.nodes[1])] == [False] * 3, "it is a new node"
        await moved(made, T0, 2, 3)
        assert await made.produce(T0, b"3") == 2
        await made.stop(3)
        await made.start(3, may_join=False)
        assert 3 in made.nodes, "a node of the cluster starts again"

    run(tmp_path, test)


def test_R5_a_process_that_runs_as_a_removed_node_writes_no_metadata_any_more_and_ends(tmp_path: Path) -> None:
    """Its way to the database was cut while the others took it for dead, and removed it."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        removed = made.nodes[3]
        made.stores[3].is_cut = True
        await made.until(lambda: made.nodes[1].metadata.image.brokers[3].is_fenced)
        await remove(made.nodes[1], 3)
        made.stores[3].is_cut = False
        with pytest.raises(NodeRemovedError, match="it was removed from the cluster"):
            await cordon(removed, 1, is_cordoned=True)
        assert "it was removed from the cluster" in (await asyncio.wait_for(asyncio.shield(removed.failed), 30)).message
        assert not any(one.is_cordoned for one in await describe_nodes(made.nodes[1]))
        made.nodes.pop(3)
        await removed.abandon()

    run(tmp_path, test)


def test_new_topics_and_the_coordinators_leave_a_cordoned_node_alone(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        node = made.any()
        await cordon(node, 2, is_cordoned=True)
        await cordon(node, 2, is_cordoned=True)
        (few,) = await create_topics(node, [NewTopic("few", 4, 3)])
        assert few.error is ErrorCode.INVALID_REPLICATION_FACTOR
        assert "only 2 nodes may get replicas (1, 3)" in few.message
        (made_now,) = await create_topics(node, [NewTopic("t", 4, 2)])
        assert made_now.error is ErrorCode.NONE
        await create_internal_topic(node, OFFSETS_TOPIC)
        for topic in ("t", OFFSETS_TOPIC):
            image = node.metadata.topic(topic)
            assert image is not None
            assert {each for state in image.partitions for each in state.replicas} == {1, 3}
        await asyncio.sleep(0.5)  # the controller looks for more replicas of the coordinators' topics
        assert made.state(TopicPartition(OFFSETS_TOPIC, 0)).replicas in ((1, 3), (3, 1))
        refused = await reassign(node, {TopicPartition("t", 0): (1, 2)})
        error = refused[TopicPartition("t", 0)]
        assert error is not None
        assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await cordon(node, 2, is_cordoned=False)
        await made.until(lambda: len(made.state(TopicPartition(OFFSETS_TOPIC, 0)).replicas) == 3)

    run(tmp_path, test, default_replication_factor=2, offsets_topic_replication_factor=3)


def test_a_node_that_is_not_there_is_not_cordoned(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        with pytest.raises(
            SemelError, match="there is no node 7, or no longer: the cluster has the nodes 1, 2, 3"
        ) as refused:
            await cordon(made.any(), 7, is_cordoned=True)
        assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED

    run(tmp_path, test)
