"""A Produce request for very many partitions: it is appended in parts, and others have their turns in between (S3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from semel.broker.handlers.produce.batch_checks import Turn
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse
from semel.runtime.turns import Turns

_log = logging.getLogger("semel.produce")

PART: Final = 200
"""Partitions that are appended to in one turn; a request for no more is appended at once."""


class AppendsParts(Protocol):
    """What a large request needs of the handler."""

    def begin_part(
        self, request: ProduceRequest, version: int, done: Callable[[ProduceResponse], None], turn: Turn | None
    ) -> ProduceResponse | None:
        """Append one part. Returns its answer, or None where `done` is called with it later."""
        ...

    def refuse(self, item: ProducePartition, code: ErrorCode, message: str, version: int) -> ProducePartitionResponse:
        """Return the answer that refuses one partition's batch."""
        ...


class LargeProduce:
    """One of them, and the `Turn` of its parts. It holds its client's place until all of it is appended or refused."""

    def __init__(
        self,
        handler: AppendsParts,
        request: ProduceRequest,
        version: int,
        done: Callable[[ProduceResponse], None],
        turn: Turn | None,
    ) -> None:
        self.on_close: Callable[[], None] | None = None
        self._handler = handler
        self._request = request
        self._version = version
        self._done = done
        self._turn = turn
        self._held: asyncio.Future[None] | None = None
        self._answers: dict[int, list[ProducePartitionResponse]] = {}
        """The answers to the parts, by the place where each begins."""

    def start(self) -> asyncio.Task[None]:
        """Begin, and return the task that appends."""
        task = asyncio.get_running_loop().create_task(self._run(), name="append a large request")
        if self._turn is not None:
            self._turn.hold()
            self._turn.on_close = self._close
            self._task = task
        return task

    def _close(self) -> None:
        """The client is gone. What is not appended yet never is; nobody was told anything of it."""
        if self.on_close is not None:
            self.on_close()
        self._task.cancel()

    def hold(self) -> None:
        self._held = asyncio.get_running_loop().create_future()

    def go_on(self) -> None:
        if self._held is not None and not self._held.done():
            self._held.set_result(None)

    async def _run(self) -> None:
        turns = Turns()
        partitions = self._request.partitions
        try:
            for start in range(0, len(partitions), PART):
                await turns.give_way()
                self._begin(start)
                if self._held is not None:
                    await self._held
                    self._held = None
        finally:
            if self._turn is not None:
                self._turn.on_close = None
                self._turn.go_on()

    def _begin(self, start: int) -> None:
        request = self._request
        part = ProduceRequest(
            request.partitions[start : start + PART], request.transactional_id, request.acks, request.timeout_ms
        )
        try:
            answer = self._handler.begin_part(part, self._version, lambda later: self._answered(start, later), self)
        except Exception:
            _log.exception("a part of a large request failed: partitions=%d", len(part.partitions))
            message = "the append failed: see the node's own log"
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            refused = [self._handler.refuse(item, code, message, self._version) for item in part.partitions]
            answer = ProduceResponse(refused)
        if answer is not None:
            self._answered(start, answer)

    def _answered(self, start: int, response: ProduceResponse) -> None:
        self._answers[start] = response.partitions
        if len(self._answers) * PART >= len(self._request.partitions):
            answers = [each for place in sorted(self._answers) for each in self._answers[place]]
            self._done(ProduceResponse(answers))
