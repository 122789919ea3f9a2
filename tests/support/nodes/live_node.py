"""A whole node on a thread of its own, for tests of clients that block; and the asyncio consumer for such tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

from running_node import SMALL

import semel
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import LoadedConfig
from semel.broker.node import Listener, Node
from semel.protocol.ids import TopicPartition
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.storage import Storage
from semel.sdk.embedded.hosted_node import HostedNode
from semel.sdk.testing.lasting_listeners import addresses_again
from semel.sdk.testing.settings import START_TIMEOUT_S, STOP_GRACE_MS

FAST: dict[str, Any] = {
    **SMALL,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 50,
}
"""Settings of a node whose groups begin and end fast."""


class LiveNode:
    """Runs from `start` to `stop`, and on the same ports after another `start`. A context manager.

    Its data is in a folder, and `node` is there to be looked into. Where neither is needed, use `semel.testing.Broker`.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        given = {**FAST, "data_dir": str(folder / "data"), **settings}
        listeners = {name.removesuffix("ers") for name in settings if name.endswith("_listeners")}
        self._settings = {name: value for name, value in given.items() if name not in listeners}
        self._hosted: HostedNode | None = None
        self.storage: Storage = DiskStorage()
        self.node: Node
        self.bootstrap = ""

    def start(self, accept_loss_of: Collection[TopicPartition] = ()) -> None:
        config = LoadedConfig(NodeConfig(**self._settings), {})
        self._hosted = HostedNode(
            config,
            name="semel-live-node",
            listeners=(Listener.KAFKA, Listener.GRPC),
            storage=self.storage,
            accept_loss_of=accept_loss_of,
            stop_grace_ms=STOP_GRACE_MS,
        )
        self._hosted.start(START_TIMEOUT_S)
        self.node = self._hosted.node
        self.bootstrap = str(self.node.grpc_address)
        for name, value in addresses_again(self.node).items():
            self._settings[name.replace(".", "_")] = value

    def stop(self) -> None:
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.stop()

    def run(self, call: Callable[[], Any]) -> Any:
        """Run a function that may return a coroutine on the node's loop."""

        async def work() -> Any:
            result = call()
            return await result if asyncio.iscoroutine(result) else result

        assert self._hosted is not None
        return self._hosted.run(work())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class BlockingAioConsumer:
    """`semel.aio.Consumer` with the methods of `semel.Consumer`: each is run on a loop of its own until it is done."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        try:
            self._consumer = semel.aio.Consumer(*args, **options)
        except BaseException:
            self._loop.close()
            raise

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._consumer, name)
        if not callable(method):
            return method

        def call(*args: Any, **options: Any) -> Any:
            async def work() -> Any:
                result = method(*args, **options)
                return await result if asyncio.iscoroutine(result) else result

            if self._loop.is_closed():
                with asyncio.Runner() as runner:
                    return runner.run(work())
            return self._loop.run_until_complete(work())

        return call

    def batches(self, *args: Any, **options: Any) -> Iterator[semel.Batch]:
        return self._blocking(self._consumer.batches(*args, **options))

    def __iter__(self) -> Iterator[semel.Record]:
        return self._blocking(self._consumer.__aiter__())

    def _blocking(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(items.aclose())

    def close(self, *args: Any) -> None:
        if self._loop.is_closed():
            return
        self._loop.run_until_complete(self._consumer.close(*args))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._loop.is_closed():
            return
        self._loop.run_until_complete(self._consumer.__aexit__(kind, error, trace))
        self.close()
