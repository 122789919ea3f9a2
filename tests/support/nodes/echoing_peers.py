"""A question that only tests know, between the nodes of a cluster, and who answers it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.listeners.peers.listener import PeerListener
from semel.broker.node import Node
from semel.broker.peers.handshake import Role
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.wire import WireFormatError


@dataclass(frozen=True)
class Echo:
    """A request that only these tests know."""

    said: bytes

    key: ClassVar = ApiKey.LIST_GROUPS
    version_min: ClassVar = 0
    version_max: ClassVar = 0
    role: ClassVar = Role.REQUESTS
    waits_ms: ClassVar = 0

    def body(self, version: int) -> bytes:
        return self.said

    def read(self, body: memoryview, version: int) -> bytes:
        if body == b"unreadable":
            raise WireFormatError("no echo")
        return bytes(body)


class EchoServer:
    """Answers once `gate` is open."""

    def __init__(self, node: Node) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[tuple[int, bytes]] = []
        listener = node.peer_listener
        assert listener is not None
        self.listener: PeerListener = listener
        listener.registry.register(Api(ApiKey.LIST_GROUPS, 0, 0, self._answer, pipelined=True))

    async def _answer(self, context: RequestContext, body: memoryview) -> bytes:
        self.asked.append((context.peer_node, bytes(body)))
        await self.gate.wait()
        return bytes(body)
