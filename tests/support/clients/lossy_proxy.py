"""A TCP proxy on loopback that now and then loses an answer: the request arrives, the connection ends before it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class LossyProxy:
    """Forwards connections to `target_port` from a port of its own, in a thread of its own.

    With `loss` set, each piece of an answer is lost with that probability, and its connection with it.
    """

    def __init__(self, target_port: int, seed: int) -> None:
        self.loss = 0.0
        self.lost = 0
        self.port = 0
        self._target_port = target_port
        self._draw = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._finish(server))
        self._loop.close()

    async def _finish(self, server: asyncio.Server) -> None:
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        # Connections that were just accepted begin, so that they can end: asyncio forgets them after the close.
        await _turns()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _turns()  # aborted transports close their sockets

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            to_node = await asyncio.open_connection("127.0.0.1", self._target_port)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        pumps = [asyncio.ensure_future(pump) for pump in self._pumps(reader, writer, *to_node)]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, to_node[1]):
                end.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _pumps(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        node_reader: asyncio.StreamReader,
        node_writer: asyncio.StreamWriter,
    ) -> list[Coroutine[Any, Any, None]]:
        """What carries one connection both ways; it is over when either ends."""
        return [self._pump(reader, node_writer, can_lose=False), self._pump(node_reader, writer, can_lose=True)]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, can_lose: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if can_lose and self.loss and self._draw.random() < self.loss:
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
