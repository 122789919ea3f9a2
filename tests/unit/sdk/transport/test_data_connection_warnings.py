"""A node that takes no data connection for a while is reported, and a single failure now and then is not."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from semel.runtime.clock import ManualClock
from semel.runtime.kafka_client.connection import ConnectionLostError
from semel.sdk.transport.connection import Connections
from semel.sdk.transport.options import ClientOptions


def test_a_warning_names_what_lasts(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    clock = ManualClock()
    connections = Connections(ClientOptions(("a:1",), retry_backoff_ms=1), clock, lambda _: ("127.0.0.1", port))

    async def fails_after(seconds: float) -> None:
        clock.advance(ms=int(seconds * 1_000))
        with pytest.raises(ConnectionLostError):
            await connections._connect(1)

    async def main() -> None:
        await fails_after(0)
        await fails_after(3_600)  # nobody has tried in between
        assert not caplog.records
        for _ in range(4):
            await fails_after(1)

    with caplog.at_level(logging.WARNING, "semel.client"):
        asyncio.run(main())
    (line,) = caplog.records
    assert "node 1 takes no data connection, still trying (3 s): can't connect to 127.0.0.1" in line.getMessage()
