"""FastAPI and Django with an outbox: the application, the relay and the node are ended with SIGKILL."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from framework_stage import WITHIN_S, Program, Stage, wait_for

from semel.runtime.ports import free_ports

PAGE = "how-to/web-applications.md"
TABLES = {"fastapi": "orders", "django": "shop_order"}
ANSWERED_WITHIN_S = 20

DEADLY = """
import os
import signal

import semel.sql

row, calls = semel.sql.Outbox.row, 0


def row_or_end(self, *arguments, **options):
    global calls
    calls += 1
    if calls == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return row(self, *arguments, **options)


semel.sql.Outbox.row = row_or_end
"""
"""Ends an application between its tenth order's INSERT and that of the event."""


class Buyers:
    """Several clients that order by HTTP, each order again and again until it is answered."""

    def __init__(self, port: int, count: int = 3) -> None:
        self.answered: list[int] = []
        self._url = f"http://127.0.0.1:{port}/orders"
        self._stops = threading.Event()
        self._threads = [threading.Thread(target=self._buy, args=(n, count), daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def more(self, count: int, program: Program) -> None:
        wanted = len(self.answered) + count
        wait_for(lambda: len(self.answered) >= wanted or not program.is_running, program.log)
        assert program.is_running, program.log()[-6000:]

    def stop(self) -> list[int]:
        """Return the numbers of all orders that were answered; none is without an answer."""
        self._stops.set()
        for thread in self._threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive()
        return sorted(self.answered)

    def close(self) -> None:
        self._stops.set()

    def _buy(self, first: int, step: int) -> None:
        number = first
        while not self._stops.is_set():
            if self._is_answered(number):
                self.answered.append(number)
                number += step
            else:
                self._stops.wait(0.1)
        while not self._is_answered(number):  # it may be in the database already
            threading.Event().wait(0.1)
        self.answered.append(number)

    def _is_answered(self, number: int) -> bool:
        body = json.dumps({"customer": f"c{number % 5}", "amount": number}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{number}", body, headers, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False


@pytest.fixture
def application(stage_of: Callable[..., Stage], framework: str) -> tuple[Stage, int, Callable[..., Program]]:
    """A stage, and what starts the web application on a port."""
    stage = stage_of(PAGE)
    stage.create_topics("orders")
    (port,) = free_ports(1)
    if framework == "fastapi":
        command: tuple[str, ...] = ("-m", "uvicorn", "fastapi_shop:app", "--port", str(port))
    else:
        for package in ("shop", "shop/migrations"):
            (stage.folder / package / "__init__.py").touch()
        command = ("-m", "django", "runserver", "--noreload", f"127.0.0.1:{port}")
        stage.run("web", "-m", "django", "migrate", DJANGO_SETTINGS_MODULE="shop.settings")
    (stage.folder / "deadly").mkdir()
    (stage.folder / "deadly" / "sitecustomize.py").write_text(DEADLY)
    return (
        stage,
        port,
        lambda **variables: stage.start("web", *command, DJANGO_SETTINGS_MODULE="shop.settings", **variables),
    )


def ids_in(stage: Stage, table: str) -> list[int]:
    with closing(sqlite3.connect(stage.folder / "shop.db", timeout=30)) as shop:
        return sorted(number for (number,) in shop.execute(f"SELECT id FROM {table}"))


@pytest.mark.parametrize("framework", TABLES)
def test_E3_a_committed_row_has_its_event_once(
    application: tuple[Stage, int, Callable[..., Program]], framework: str
) -> None:
    stage, port, start = application
    web = start(PYTHONPATH=str(stage.folder / "deadly"))
    buyers = Buyers(port)
    try:
        assert web.ended() == -signal.SIGKILL, web.log()[-6000:]
        web = start()
        buyers.more(20, web)
        web.kill()  # these are committed, and nothing is published
        assert stage.values("orders") == []
        published = stage.output("orders")
        web = start()
        relay = stage.start("web", "relay.py")
        published.more(20, relay)
        for _ in range(3):
            web.kill()
            relay.kill()
            web, relay = start(), stage.start("web", "relay.py")
            buyers.more(20, web)
            published.more(20, relay)
        stage.restart_node()
        buyers.more(20, web)
        bought = buyers.stop()
    finally:
        buyers.close()
    wait_for(lambda: not ids_in(stage, "semel_outbox"), relay.log)
    web.kill()
    relay.stop()
    found: list[dict[str, Any]] = stage.committed("orders")
    assert sorted(event["id"] for event in found) == bought == ids_in(stage, TABLES[framework])
    assert all(event["amount"] == event["id"] for event in found)
