"""A node on a thread of its own, with an event loop of its own, in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from semel.broker.config.sources import LoadedConfig
from semel.broker.listeners.interception import Interceptor
from semel.broker.metadata.store import MetadataStore
from semel.broker.node import Listener, Node
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.storage import Storage

CALL_TIMEOUT_S: Final = 60.0
_BEGIN_TIMEOUT_S: Final = 5.0
"""How long a start that was interrupted waits for its thread, which there may be none of."""

_Result = TypeVar("_Result")


class HostedNode:
    """Runs from `start` to `stop` or `kill`, once.

    The process belongs to somebody else: no signal handler is set, and the caller's event loop and its policy are not
    touched.
    """

    def __init__(
        self,
        config: LoadedConfig,
        *,
        name: str,
        listeners: Collection[Listener],
        storage: Storage | None = None,
        clock: Clock | None = None,
        executor: Executor | None = None,
        interceptor: Interceptor | None = None,
        metadata_store: MetadataStore | None = None,
        accept_loss_of: Collection[TopicPartition] = (),
        stop_grace_ms: int | None = None,
        on_started: Callable[[Node], None] | None = None,
        on_failure: Callable[[SemelError], None] | None = None,
    ) -> None:
        """See `Node.start` for what is not told here.

        name:          of the thread
        stop_grace_ms: how long `stop` waits for requests in flight; None: shutdown.grace.ms of the configuration
        on_started:    called on the node's loop as soon as the node has started
        on_failure:    called on the node's loop once the node can't continue, before it is stopped because of that;
                       None: it runs on, and refuses what it can't do
        """
        self.node: Node
        self.failure: SemelError | None = None
        """Why the node was stopped on its own."""
        self._config = config
        self._name = name
        self._listeners = listeners
        self._storage = storage
        self._clock = clock
        self._executor = executor
        self._interceptor = interceptor
        self._metadata_store = metadata_store
        self._accept_loss_of = accept_loss_of
        self._stop_grace_ms = stop_grace_ms
        self._on_started = on_started
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Future[Callable[[], None] | None]
        self._thread: threading.Thread
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._is_given_up = False
        self._end_error: BaseException | None = None

    def start(self, timeout_s: float | None = None) -> None:
        """Start, and return when its listeners accept. Raises what the node's start raises."""
        started: Future[None] = Future()
        # A daemon: a program that ends without a word to it ends all the same, and the next start recovers.
        self._thread = threading.Thread(target=self._run, args=(started,), name=self._name, daemon=True)
        try:
            self._thread.start()
            started.result(timeout_s)
        except BaseException:
            # Also where it has not failed: after the timeout, and at Ctrl-C, nothing of it shall be left.
            self._is_given_up = True
            self._begin_end(None)
            if self._begun.wait(_BEGIN_TIMEOUT_S):
                self._wait_ended()
            raise

    def run(self, work: Coroutine[Any, Any, _Result], timeout_s: float = CALL_TIMEOUT_S) -> _Result:
        """Run a coroutine on the node's loop, and return what it returns."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("the node can't be called from its own event loop: call it from another thread")
        assert self._loop is not None, "the node is not started"
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop cleanly, and wait for it; may be called again where that was interrupted. Raises what went wrong."""
        self._end(None)

    def kill(self, crash: Callable[[], None]) -> None:
        """End as a killed process does. `crash` is called at that moment: nothing reaches the storage after it."""
        self._end(crash)

    def _end(self, how: Callable[[], None] | None) -> None:
        self._begin_end(how)
        self._wait_ended()
        error, self._end_error = self._end_error, None
        if error is not None:
            raise error

    def _wait_ended(self) -> None:
        # A join that Ctrl-C interrupts takes the thread for ended from then on: so it comes when that is true.
        self._ended.wait()
        self._thread.join()

    def _begin_end(self, how: Callable[[], None] | None) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended, and its loop is closed
                self._loop.call_soon_threadsafe(self._set_ending, how)

    def _set_ending(self, how: Callable[[], None] | None) -> None:
        if not self._ending.done():
            self._ending.set_result(how)

    def _run(self, started: Future[None]) -> None:
        self._begun.set()
        try:
            # Not what the program's policy would make: a node is tested with this loop alone.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._main(started))
        finally:
            self._ended.set()

    async def _main(self, started: Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._ending = loop.create_future()
        self._loop = loop
        try:
            self.node = await Node.start(
                self._config,
                storage=self._storage,
                clock=self._clock,
                executor=self._executor,
                listeners=self._listeners,
                accept_loss_of=self._accept_loss_of,
                interceptor=self._interceptor,
                metadata_store=self._metadata_store,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        if self._on_started is not None:
            self._on_started(self.node)
        started.set_result(None)
        try:
            await self._live(self.node)
        except Exception as error:
            self._end_error = error

    async def _live(self, node: Node) -> None:
        if self._is_given_up:
            self._set_ending(None)
        ends: list[asyncio.Future[Any]] = [self._ending]
        if self._on_failure is not None:
            ends.append(node.failed)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._ending.done():
            crash = self._ending.result()
            await (node.stop(grace_ms=self._stop_grace_ms) if crash is None else self._die(node, crash))
            return
        assert self._on_failure is not None
        self.failure = node.failed.result()
        self._on_failure(self.failure)
        await node.stop(grace_ms=0)

    async def _die(self, node: Node, crash: Callable[[], None]) -> None:
        # What still runs meets a storage that is gone. Nobody is left to be told of it.
        asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
        crash()
        await node.abandon()
        # A connection that was half accepted is closed in a turn of the loop of its own, and told so in the next one.
        for _ in range(3):
            await asyncio.sleep(0)
