"""What a node says of what another one has: where it is, and that it is there, also when it was made a moment ago."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from cluster import Cluster, cluster
from running_node import channel_to

from semel.broker.node import Node
from semel.protocol.api.elsewhere import GO_TO_METADATA
from semel.protocol.ids import TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.v1 import (
    common_pb2,
    metadata_pb2,
    metadata_pb2_grpc,
    topics_pb2,
    topics_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
)


async def sent_to(node: Node, key: str) -> str:
    """Return where a node sends a caller that asks about a transactional id; "" where it answers itself."""
    async with channel_to(node) as channel:
        call = transactions_pb2_grpc.TransactionServiceStub(channel).InitProducerId
        while True:
            try:
                await call(transactions_pb2.InitProducerIdRequest(transactional_id=key, transaction_timeout_ms=1_000))
            except grpc.aio.AioRpcError as error:
                told = dict(error.trailing_metadata() or ())
                if told["semel-error"] == "NOT_COORDINATOR":
                    return str(told.get(GO_TO_METADATA, "nowhere"))
                await asyncio.sleep(0.02)
            else:
                return ""


def test_who_asks_the_wrong_node_is_told_the_right_one_and_new_topics_are_known_at_once(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await sent_to(three.nodes[1], "first use")
        for key in ("a", "b", "c", "d"):
            number = three.nodes[1].transactions.partition_for(key)
            tp = TopicPartition(TRANSACTIONS_TOPIC, number)
            await three.until(lambda: three.leader(tp) is not None)  # noqa: B023
            coordinator = three.leader(tp)
            assert coordinator is not None
            for node in three.nodes.values():
                await three.until(
                    lambda: node.metadata.image.sequence == coordinator.metadata.image.sequence  # noqa: B023
                )
                expected = "" if node is coordinator else str(coordinator.grpc_address)
                assert await sent_to(node, key) == expected

        one, two = three.nodes[1], three.nodes[2]
        async with channel_to(one) as here, channel_to(two) as there:
            for number in range(5):
                name = f"new-{number}"
                new = topics_pb2.NewTopic(name=name, num_partitions=1, replication_factor=1)
                await topics_pb2_grpc.TopicServiceStub(here).CreateTopics(topics_pb2.CreateTopicsRequest(topics=[new]))
                found = await metadata_pb2_grpc.MetadataServiceStub(there).GetMetadata(
                    metadata_pb2.GetMetadataRequest(topics=[name])
                )
                assert not found.topics[0].error.code, found.topics[0].error
            for number in range(5, 10):
                name = f"new-{number}"
                new = topics_pb2.NewTopic(name=name, num_partitions=1, replication_factor=1)
                await topics_pb2_grpc.TopicServiceStub(here).CreateTopics(topics_pb2.CreateTopicsRequest(topics=[new]))
                item = topics_pb2.ListOffsetsRequest.Item(topic=name, partition=0, timestamp_ms=-1)
                request = topics_pb2.ListOffsetsRequest(items=[item], isolation=common_pb2.READ_COMMITTED)
                (offset,) = (await topics_pb2_grpc.TopicServiceStub(there).ListOffsets(request)).items
                assert offset.error.name in ("", "NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE")
            other = topics_pb2.DescribeConfigsRequest(resource_type=topics_pb2.BROKER, resource_name="1")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await topics_pb2_grpc.TopicServiceStub(there).DescribeConfigs(other)
            assert dict(caught.value.trailing_metadata() or ())[GO_TO_METADATA] == str(one.grpc_address)

    async def main() -> None:
        async with asyncio.timeout(180), cluster(tmp_path) as three:
            await test(three)

    asyncio.run(main())
