"""A proxy for the Kafka protocol that decides about each request: pass it, keep a copy, hold it, or lose its answer.

What was kept or held can be delivered later over another connection, as a network would that kept it too long.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lossy_proxy import LossyProxy

from semel.protocol.kafka.api import ApiKey, parse_request_header


class Fate(Enum):
    PASS = "pass"
    KEEP = "keep"
    """Passed, and a copy is kept."""
    HOLD = "hold"
    """Kept and not passed. Its connection ends, so that the client tries again over another one."""
    LOSE_ANSWER = "lose answer"
    """Passed; its connection ends where the answer should have come."""


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """One request as it came, with its size before it."""

    key: int
    version: int
    frame: bytes


Decide = Callable[[KeptRequest], Fate]


def passing(_: KeptRequest) -> Fate:
    return Fate.PASS


def first(key: ApiKey, fate: Fate, then: Decide = passing) -> Decide:
    """Decide `fate` for the first request of an API, and leave all others to `then`."""
    met = False

    def decide(request: KeptRequest) -> Fate:
        nonlocal met
        if request.key != key or met:
            return then(request)
        met = True
        return fate

    return decide


def every(key: ApiKey, fate: Fate) -> Decide:
    return lambda request: fate if request.key == key else Fate.PASS


class KafkaProxy(LossyProxy):
    """Runs in a thread of its own. `decide` is called there, `kept` is in the order of arrival."""

    def __init__(self, target_port: int = 0) -> None:
        self.decide: Decide = passing
        self.kept: list[KeptRequest] = []
        super().__init__(target_port, seed=0)

    def aim(self, target_port: int) -> None:
        """Say where the node listens, which has to know this proxy's port before it listens itself."""
        self._target_port = target_port

    def deliver(self, request: KeptRequest) -> bytes:
        """Bring a request to the node over a connection of its own, and return the answer without its size."""
        with socket.create_connection(("127.0.0.1", self._target_port), 30) as connection:
            connection.sendall(request.frame)
            with connection.makefile("rb") as answers:
                return answers.read(int.from_bytes(answers.read(4), "big"))

    def _pumps(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        node_reader: asyncio.StreamReader,
        node_writer: asyncio.StreamWriter,
    ) -> list[Coroutine[Any, Any, None]]:
        unwanted: set[bytes] = set()
        return [self._requests(reader, node_writer, unwanted), self._answers(node_reader, writer, unwanted)]

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unwanted: set[bytes]) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(int.from_bytes(size, "big"))
                header = parse_request_header(memoryview(frame)[4:])
                request = KeptRequest(header.api_key, header.api_version, frame)
                fate = self.decide(request)
                if fate in (Fate.KEEP, Fate.HOLD):
                    self.kept.append(request)
                if fate is Fate.HOLD:
                    self.lost += 1
                    return
                if fate is Fate.LOSE_ANSWER:
                    unwanted.add(frame[8:12])  # its correlation id
                writer.write(frame)
                await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unwanted: set[bytes]) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                answer = await reader.readexactly(int.from_bytes(size, "big"))
                if answer[:4] in unwanted:
                    self.lost += 1
                    return
                writer.write(size + answer)
                await writer.drain()
