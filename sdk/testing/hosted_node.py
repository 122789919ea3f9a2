"""A node on a thread of its own, with an event loop of its own, in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

from semel.broker.config.sources import LoadedConfig
from semel.broker.node import Node
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.storage import Storage
from semel.sdk.testing.interceptor import FaultInterceptor

START_TIMEOUT_S: Final = 30.0
CALL_TIMEOUT_S: Final = 60.0
STOP_GRACE_MS: Final = 20
"""Requests that are still in flight after it wait for others: a join, or a paused partition."""

_Result = TypeVar("_Result")


class HostedNode:
    """Runs from `start` to `stop` or `kill`, once."""

    def __init__(
        self,
        config: LoadedConfig,
        storage: Storage,
        clock: Clock,
        interceptor: FaultInterceptor,
        executor: Executor | None = None,
        *,
        accept_loss_of: Collection[TopicPartition] = (),
    ) -> None:
        """`executor` runs what waits for the disk; without one the node has threads of its own for that.

        `accept_loss_of`: see `Node.start`.
        """
        self._accept_loss_of = accept_loss_of
        self.node: Node
        self._config = config
        self._storage = storage
        self._clock = clock
        self._interceptor = interceptor
        self._executor = executor
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Future[Callable[[], None] | None]
        self._thread: threading.Thread
        self._end_error: BaseException | None = None

    def start(self) -> None:
        """Start, and return when both listeners accept. Raises what the node's start raises."""
        started: Future[Node] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started)), name="semel-test-broker", daemon=True
        )
        self._thread.start()
        try:
            self.node = started.result(START_TIMEOUT_S)
        except Exception:
            self._thread.join()
            raise

    def run(self, work: Coroutine[Any, Any, _Result], timeout_s: float = CALL_TIMEOUT_S) -> _Result:
        """Run a coroutine on the node's loop, and return what it returns."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("the broker can't be called from its own event loop: call it from the test's thread")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop cleanly."""
        self._end(None)

    def kill(self, crash: Callable[[], None]) -> None:
        """End as a killed process does. `crash` is called at that moment: nothing reaches the storage after it."""
        self._end(crash)

    def _end(self, how: Callable[[], None] | None) -> None:
        self._loop.call_soon_threadsafe(self._set_ending, how)
        self._thread.join()
        if self._end_error is not None:
            raise self._end_error

    def _set_ending(self, how: Callable[[], None] | None) -> None:
        if not self._ending.done():
            self._ending.set_result(how)

    async def _main(self, started: Future[Node]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = self._loop.create_future()
        try:
            node = await Node.start(
                self._config,
                storage=self._storage,
                clock=self._clock,
                executor=self._executor,
                accept_loss_of=self._accept_loss_of,
                interceptor=self._interceptor,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        self._interceptor.topic_name = node.metadata.topic_name
        started.set_result(node)
        crash = await self._ending
        try:
            await (node.stop(grace_ms=STOP_GRACE_MS) if crash is None else self._die(node, crash))
        except Exception as error:
            self._end_error = error

    async def _die(self, node: Node, crash: Callable[[], None]) -> None:
        # What still runs meets a storage that is gone. Nobody is left to be told of it.
        self._loop.set_exception_handler(lambda _, __: None)
        self._interceptor.die()
        crash()
        await node.abandon()
        # A connection that was half accepted is closed in a turn of the loop of its own, and told so in the next one.
        for _ in range(3):
            await asyncio.sleep(0)
