"""What tests of offline partitions share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from running_node import SMALL
from simulated_folder import CONFIG, TOPIC_ID, TP, Node

from semel.broker.config.node_config import NodeConfig
from semel.broker.logs.manager import NewPartition
from semel.broker.logs.offline import RETRY_SECONDS_MAX
from semel.broker.node import Node as WholeNode
from semel.broker.start_errors import NodeStartError
from semel.protocol.ids import TopicPartition

ONE = TopicPartition("orders", 1)


def wanted(tp: TopicPartition = TP) -> NewPartition:
    return NewPartition(tp, TOPIC_ID, CONFIG, 3)


async def bring_back(node: Node, expected: int = 1) -> None:
    node.clock.advance(ms=int(RETRY_SECONDS_MAX * 1000))
    assert len(await node.logs.bring_back()) == expected


async def refusal_of(folder: Path, *lost: TopicPartition) -> NodeStartError:
    """Start a node that is to accept the loss of partitions, and return why it does not start."""
    try:
        node = await WholeNode.start(NodeConfig(data_dir=str(folder / "data"), **SMALL), accept_loss_of=lost)
    except NodeStartError as error:
        return error
    await node.stop()
    pytest.fail("it started")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
