"""Answers that send a client away say where to (KIP-951)."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_node import NODE_ID, FakeNode, KafkaClient, batch, run_with_listener

from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.metadata.changes import PartitionState
from semel.broker.metadata.image import BrokerImage, TopicImage
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import ZERO_TOPIC_ID, new_topic_id
from semel.protocol.kafka.api import NodeEndpoint
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest, FetchResponse
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest, ProduceResponse

ELSEWHERE = NodeEndpoint(2, "other.example", 9192, "r2")
HERE = NodeEndpoint(NODE_ID, "broker.example", 9092)


def add_elsewhere(node: FakeNode) -> None:
    """A topic that another node leads, and one that nobody does."""
    node.metadata.brokers[2] = BrokerImage(2, "", "", "other.example", 9192, "other.example", 9194, "r2")
    for name, leader in (("far", 2), ("lost", -1)):
        states = (PartitionState(leader, 6, (2,), (2,)),)
        node.metadata.topics[name] = TopicImage(name, new_topic_id(), states, {})


def told(response: ProduceResponse | FetchResponse) -> tuple[list[tuple[ErrorCode, int, int]], list[NodeEndpoint]]:
    return [(each.error, each.leader_id, each.leader_epoch) for each in response.partitions], list(
        response.node_endpoints
    )


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [9, 10, 12])
def test_producers_are_told_the_leader(tmp_path: Path, version: int, acks: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (here,) = node.create("here")
        add_elsewhere(node)
        client = await KafkaClient.connect(listener.port)

        async def produce(*topics: str) -> ProduceResponse:
            items = [ProducePartition(name, 0, batch(b"a")) for name in topics]
            return await client.produce(ProduceRequest(items, None, acks, 30_000), version)

        fine = (ErrorCode.NONE, -1, -1)
        assert told(await produce("here")) == ([fine], [])
        away = (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 6) if version >= 10 else (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
        lost = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
        unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        answer = told(await produce("here", "far", "lost", "nope"))
        assert answer == ([fine, away, lost, unknown], [ELSEWHERE] if version >= 10 else [])
        assert told(await produce("here")) == ([fine], [])
        here.leader_epoch = 8
        here.go_offline(RetriableError("the node is stopping", ErrorCode.NOT_LEADER_OR_FOLLOWER))
        stopping = (ErrorCode.NOT_LEADER_OR_FOLLOWER, *((NODE_ID, 8) if version >= 10 else (-1, -1)))
        assert told(await produce("here")) == ([stopping], [HERE] if version >= 10 else [])

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("version", [12, 15, 16, 17])
def test_readers_are_told_the_leader(tmp_path: Path, version: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (here,) = node.create("here")
        here.leader_epoch = 8
        add_elsewhere(node)
        client = await KafkaClient.connect(listener.port)

        async def fetch(*topics: str, epoch: int = -1) -> FetchResponse:
            items = [
                FetchPartition(name, ZERO_TOPIC_ID, 0, 0, 1000, epoch)
                if version < 13
                else FetchPartition("", node.metadata.topics[name].topic_id, 0, 0, 1000, epoch)
                for name in topics
            ]
            return await client.fetch(FetchRequest(items, 0), version)

        hints = version >= 16
        away = (ErrorCode.NOT_LEADER_OR_FOLLOWER, *((2, 6) if hints else (-1, -1)))
        lost = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
        fenced = (ErrorCode.FENCED_LEADER_EPOCH, *((NODE_ID, 8) if hints else (-1, -1)))
        fine = (ErrorCode.NONE, -1, -1)
        assert told(await fetch("here", "far", "lost")) == ([fine, away, lost], [ELSEWHERE] if hints else [])
        assert told(await fetch("here", epoch=7)) == ([fenced], [HERE] if hints else [])
        assert told(await fetch("here", epoch=9)) == ([(ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)], [])

    run_with_listener(test, str(tmp_path))
