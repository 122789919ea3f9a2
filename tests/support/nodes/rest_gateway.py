"""A gateway with the REST API in the test's process, on a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from semel.web.app import Part
from semel.web.gateway import Gateway
from semel.web.limits import Limits
from semel.web.rest import part as rest
from semel.web.serve import Listen, serve

WITHIN_S = 60.0


@contextmanager
def rest_gateway(
    bootstrap: str, *, limits: Limits | None = None, parts: Sequence[Part] = (rest,), has_users: bool = False
) -> Iterator[str]:
    """Serve, and yield the gateway's address: HOST:PORT with a scheme. has_users: each request names its user."""
    started = threading.Event()
    address: list[str] = []
    failed: list[BaseException] = []
    loop = asyncio.new_event_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def ready(where: str) -> None:
        address.append(f"http://{where.rpartition('/')[2]}")
        started.set()

    def run() -> None:
        try:
            loop.run_until_complete(
                serve(
                    Gateway(bootstrap, limits, asks_for_passwords=has_users),
                    parts,
                    Listen("127.0.0.1", 0, has_users=has_users),
                    stop=stop,
                    ready=ready,
                )
            )
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=run, name="http gateway")
    thread.start()
    assert started.wait(WITHIN_S), "the gateway did not start"
    try:
        assert not failed, failed
        yield address[0]
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(lambda: stop.done() or stop.set_result(None))
        thread.join(WITHIN_S)
    assert not thread.is_alive(), "the gateway did not end"
    if failed:
        raise failed[0]
