"""The connections between nodes in virtual time: the same client, handshake and listener on a simulated network."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from kafka_node import FakeNode

from semel.broker.config.node_config import NodeConfig
from semel.broker.listeners.peers.listener import PeerListener
from semel.broker.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage
from semel.broker.peers.peers import Peers
from semel.broker.peers.requests import AskTransactions
from semel.broker.peers.secret import ClusterSecret
from semel.protocol.api.transactions import AddPartitionsToTxnRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.clock import ManualClock
from semel.runtime.inline_executor import InlineExecutor
from simulation.loop import Process, Scheduler
from simulation.network import Network, Server

SECRET = ClusterSecret(b"0123456789abcdef0123456789abcdef")
TP = TopicPartition("t", 0)
QUESTION = AddPartitionsToTxnRequest("x", ProducerIdAndEpoch(1, 0), (TP,))


def image() -> MetadataImage:
    broker = BrokerImage(1, "i", "d", "", 0, "", 0, "", peer_host="one", peer_port=1)
    return MetadataImage(
        **{name: getattr(EMPTY_IMAGE, name) for name in MetadataImage.__slots__} | {"brokers": {1: broker}}
    )


def test_a_node_asks_another_over_the_simulated_network_through_cuts_and_resets(tmp_path: Path) -> None:
    scheduler = Scheduler(random.Random(7))
    scheduler.workplace = InlineExecutor()
    network = Network(scheduler, random.Random(8))
    one, two = Process(scheduler, "one"), Process(scheduler, "two")
    answers: list[object] = []

    async def serve() -> None:
        node = FakeNode(str(tmp_path))
        node.metadata.cluster_id = image().cluster_id  # type: ignore[attr-defined]
        listener = PeerListener(node, "one", 1, SECRET)  # type: ignore[arg-type]
        await listener.start(listens=False)
        network.serve(Server("one", one, None, listener))

    async def ask() -> None:
        peers = Peers(2, image, SECRET, NodeConfig(peer_request_timeout_ms=2_000), ManualClock())
        for number in range(4):
            if number == 1:
                network.break_connections("one", "two")
            if number == 2:
                network.cut("one", "two")
            try:
                [errors] = await peers.ask(1, AskTransactions((QUESTION,)))
                answers.append(errors[TP])
            except SemelError as error:
                answers.append(error.code)
            network.heal_all()
            await asyncio.sleep(0.1)

    one.start(serve())
    asked = two.start(ask())
    assert scheduler.run_until(asked.done, 60.0, None)
    asked.result()
    assert answers[0] is answers[3] is ErrorCode.NONE
    assert answers[2] is ErrorCode.REQUEST_TIMED_OUT
    assert scheduler.errors == []
    scheduler.close()
