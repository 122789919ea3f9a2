"""SIGTERM and Ctrl-C end `Sink.run` and `Outbox.run`, sync and asyncio: the transaction under way commits first."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sink_kit import PATIENCE_S, Kit, wait_until

import semel
import semel.sql
from semel.protocol.errors import UsageError

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(params=SIGNALS, ids=lambda number: number.name)
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal, while both have the handlers that Python begins with."""
    before = {one: signal.getsignal(one) for one in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield request.param
    found = [signal.getsignal(one) for one in SIGNALS]
    for one, handler in before.items():
        signal.signal(one, handler)
    assert found == [signal.SIG_DFL, signal.default_int_handler], "they are as they were"


def striking(function: Callable[..., Any], number: signal.Signals, is_stopped: Callable[[], bool]) -> Any:
    """Return a function that sends the signal when it is called first, and continues once it has arrived."""
    first = iter((True,))

    def called(*args: Any, **kwargs: Any) -> Any:
        if next(first, False):
            os.kill(os.getpid(), number)
            wait_until(is_stopped)
        return function(*args, **kwargs)

    return called


def rows(kit: Kit) -> list[int]:
    return [row[0] for row in kit.rows()]


def test_a_sink_writes_the_transaction_under_way_and_returns(kit: Kit, number: signal.Signals) -> None:
    kit.send({"id": 1, "n": 1}, {"id": 2, "n": 2})
    with kit.sink() as sink:
        offsets = sink._state.offsets
        offsets.advance = striking(offsets.advance, number, lambda: sink.is_stopped)  # type: ignore[method-assign]
        sink.run()
        assert sink.is_stopped
        written = rows(kit)
    assert written
    assert kit.position() == len(written), "rows and offsets together"
    kit.write()
    assert rows(kit) == [1, 2]


def test_a_sink_in_asyncio_writes_the_transaction_under_way_and_returns(kit: Kit, number: signal.Signals) -> None:
    kit.send({"id": 1, "n": 1}, {"id": 2, "n": 2})

    async def run() -> None:
        made = kit.sink()
        options = {"group": kit.group, "topics": [kit.topic], "table": "items", "mapping": made._state.options.mapping}
        made.close()
        async with semel.aio.Sink(kit.node.bootstrap, kit.engine, linger_ms=0, **options) as sink:
            offsets = sink._sink._state.offsets
            offsets.advance = striking(offsets.advance, number, lambda: sink.is_stopped)  # type: ignore[method-assign]
            await sink.run()
            assert sink.is_stopped

    asyncio.run(run())
    written = rows(kit)
    assert written
    assert kit.position() == len(written)


def outbox_of(kit: Kit, kind: Any = semel.sql.Outbox) -> Any:
    """An outbox with one row to relay."""
    sync = semel.sql.Outbox(kit.node.bootstrap, kit.engine)
    sync.create_tables()
    with kit.engine.begin() as connection:
        sync.add(connection, kit.topic, b"1")
    sync.close()
    return kind(kit.node.bootstrap, kit.engine, lease_ms=500)


def test_an_outbox_relays_the_transaction_under_way_and_returns(kit: Kit, number: signal.Signals) -> None:
    with outbox_of(kit) as outbox:
        outbox._send = striking(outbox._send, number, lambda: outbox._is_stopped)
        outbox.run()
        assert outbox.statistics()["rows"] == 1


def test_an_outbox_in_asyncio_relays_the_transaction_under_way_and_returns(kit: Kit, number: signal.Signals) -> None:
    async def run() -> None:
        async with outbox_of(kit, semel.aio.Outbox) as outbox:
            sync = outbox._outbox
            sync._send = striking(sync._send, number, lambda: sync._is_stopped)
            await outbox.run()
            assert outbox.statistics()["rows"] == 1

    asyncio.run(run())


def test_an_idle_outbox_ends_too(kit: Kit, number: signal.Signals) -> None:
    with outbox_of(kit) as outbox:

        def strike() -> None:
            wait_until(lambda: outbox.statistics()["rows"])
            os.kill(os.getpid(), number)

        striker = threading.Thread(target=strike)
        striker.start()
        outbox.run()
        striker.join(PATIENCE_S)


def test_handlers_of_the_programs_own_are_left_alone(kit: Kit) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        kit.send({"id": 1, "n": 1})
        with kit.sink() as sink:
            offsets = sink._state.offsets
            offsets.advance = striking(offsets.advance, signal.SIGTERM, lambda: bool(seen))  # type: ignore[method-assign]
            kit.drain(sink)
            assert not sink.is_stopped
    finally:
        signal.signal(signal.SIGTERM, before)
    assert rows(kit) == [1]


def test_signals_can_be_left_alone(kit: Kit) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    found = []

    def mapping(record: semel.Record) -> dict[str, int]:
        found.append([signal.getsignal(one) for one in SIGNALS])
        return {"id": record.offset, "n": 1}

    kit.send("one")
    with kit.sink(mapping=mapping) as sink:
        while not rows(kit):
            sink.run(idle_timeout_s=0.1, handle_signals=False)
    assert found[0] == before
    with kit.sink() as sink, pytest.raises(UsageError, match="option handle_signals must be True or False"):
        sink.run(handle_signals="no")  # type: ignore[arg-type]
