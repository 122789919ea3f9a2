"""The way to a node in this process: nothing of a connection stays open that nobody takes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from semel.broker.listeners.in_process import InProcessListener
from semel.sdk.embedded.link import EmbeddedLink
from semel.sdk.transport.in_process import NodeGoneError


class Slow:
    """Takes connections, and never gets on with them."""

    def __init__(self) -> None:
        self.taken: list[socket.socket] = []

    async def connect(self, accepted: socket.socket) -> None:
        self.taken.append(accepted)
        await asyncio.Event().wait()


def is_closed(mine: socket.socket) -> bool:
    """Whether the other end is closed."""
    mine.setblocking(False)
    try:
        return mine.recv(1) == b""
    except BlockingIOError:
        return False


def attached(loop: asyncio.AbstractEventLoop, listener: Any) -> EmbeddedLink:
    link = EmbeddedLink("data")

    async def attach() -> None:
        link.attach(cast(InProcessListener, listener))

    loop.run_until_complete(attach())
    return link


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_a_connection_that_the_node_has_not_taken_is_closed_with_it(looks: int) -> None:
    """The node's event loop ends before it has looked at the connection, or at any moment after that."""
    loop = asyncio.new_event_loop()
    listener = Slow()
    link = attached(loop, listener)
    with link.connect() as mine:
        for _ in range(looks):
            loop.run_until_complete(asyncio.sleep(0))
        assert not is_closed(mine)
        link.close("it is over")
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert is_closed(mine)
    with pytest.raises(NodeGoneError):
        link.connect()


def test_a_connection_to_a_loop_that_is_closed_leaves_nothing_open() -> None:
    loop = asyncio.new_event_loop()
    link = attached(loop, Slow())
    loop.close()
    with pytest.raises(NodeGoneError):
        link.connect()
