"""Serves clients in the node's own process, without a port: nobody outside of the process can get here.

Calls of semel.v1 go to the handlers that gRPC's server has, as bytes, so that nothing is shared between threads. Data
connections are pairs of sockets: the node's end is one more connection of the Kafka listener.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

import grpc

from semel.broker.listeners.acceptor import IN_PROCESS
from semel.broker.listeners.grpc.errors import ERROR_METADATA
from semel.broker.listeners.grpc.services import SemelServices
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.protocol.api.elsewhere import GO_TO_METADATA, elsewhere
from semel.protocol.errors import ErrorCode, FatalError, SemelError, error_for

Metadata = Sequence[tuple[str, str | bytes]]


class _Context:
    """What the handlers of calls need of gRPC's context."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return IN_PROCESS

    async def abort(self, status: grpc.StatusCode, message: str = "", trailers: Metadata = ()) -> Never:
        """End the call. Raises the error that a client makes of these."""
        told = dict(trailers)
        name, go_to = told.get(ERROR_METADATA), told.get(GO_TO_METADATA)
        if isinstance(name, str) and name in ErrorCode.__members__:
            if isinstance(go_to, str):
                raise elsewhere(ErrorCode[name], message, go_to)
            raise error_for(ErrorCode[name], message)
        raise FatalError(f"{message} ({status.name})")


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class InProcessListener:
    """Answers calls from `start` to `stop`. All methods run on the node's event loop."""

    def __init__(self, services: SemelServices, kafka: KafkaListener) -> None:
        self._services = services
        self._kafka = kafka
        self._handlers: Mapping[str, grpc.GenericRpcHandler[Any, Any]] = {}
        self._methods: dict[str, tuple[Callable[[bytes, Any], Any], Callable[[Any], bytes]]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Answer calls."""
        self._handlers = self._services.handlers()

    async def call(self, path: str, request: bytes, metadata: Metadata) -> bytes:
        """Answer one call of semel.v1: `path` is "/service/method". Raises `SemelError`.

        Every call needs a task of its own, because what it says of its caller belongs to the task.
        """
        handle, serialize = self._method(path)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return serialize(await handle(request, _Context(metadata)))
        finally:
            self._running.discard(task)

    async def connect(self, accepted: socket.socket) -> None:
        """Serve Kafka's protocol on one end of a pair of sockets, which is the listener's from here on."""
        await self._kafka.adopt(accepted)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, give those in progress `grace_s` seconds, then cut them off."""
        self._handlers, self._methods = {}, {}
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace_s)
            for task in late:
                task.cancel()
        self._services.malformed.log.close()

    def _method(self, path: str) -> tuple[Callable[[bytes, Any], Any], Callable[[Any], bytes]]:
        method = self._methods.get(path)
        if method is None:
            handlers = self._handlers.get(path[1:].partition("/")[0])
            found: Any = None if handlers is None else handlers.service(_Details(path))
            if found is None or found.unary_unary is None:
                raise _stopped() if not self._handlers else FatalError(f"there is no call {path}")
            method = self._methods[path] = found.unary_unary, found.response_serializer
        return method


def _stopped() -> SemelError:
    return error_for(ErrorCode.BROKER_NOT_AVAILABLE, "the node stops, or has stopped")
