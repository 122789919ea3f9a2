"""Batches that a node refused before the topic was made which it leads now, between whole nodes (P2, R8)."""

from __future__ import annotations

from pathlib import Path

from cluster import Cluster
from kafka_node import batch
from moving_cluster import create, run

from semel.broker.handlers.topics.changes import delete_topics
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest


async def sent(made: Cluster, node_id: int, sequence: int) -> ErrorCode:
    """Send a producer's batch to a node, and return its answer."""
    data = batch(b"v", producer=ProducerIdAndEpoch(7, 0), sequence=sequence)
    request = ProduceRequest([ProducePartition("t", 0, data)], None, ACKS_ALL, 30_000)
    (answer,) = (await made.nodes[node_id].produce.produce(request, version=12)).partitions
    return answer.error


def test_P2_R8_a_producer_continues_in_the_next_topic_where_the_one_before_was_asked_for_in_vain(
    tmp_path: Path,
) -> None:
    """A client whose metadata is old asks the wrong node first. That node leads the topic when it is made again."""

    async def test(made: Cluster) -> None:
        await create(made, 1, min_isr=1)
        assert await sent(made, 3, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await sent(made, 1, number) for number in (0, 1)] == [ErrorCode.NONE] * 2
        (result,) = await delete_topics(made.nodes[2], ["t"])
        assert result.error is ErrorCode.NONE
        await made.nodes[3].metadata.refresh()
        await create(made, 3, min_isr=1)
        assert await sent(made, 3, 2) is ErrorCode.NONE

    run(tmp_path, test)
