"""Warnings about peers are bounded, and what is left out is said."""

from __future__ import annotations

import asyncio
import logging

import pytest
from kafka_node import until

from semel.runtime.limited_log import LimitedLog


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def filled(period_s: float, count: int) -> LimitedLog:
    log = LimitedLog(logging.getLogger("test"), lines_max=2, period_s=period_s)
    for number in range(count):
        log.warning("peer %d", number)
    return log


def test_a_peer_that_misbehaves_on_purpose_fills_no_disk(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        (await filled(3600, 1000)).close()

    asyncio.run(run())
    assert lines(caplog) == [
        "peer 0",
        "peer 1",
        "left out: lines=998 like these, after the first 2 of the last 3600 s",
    ]


def test_the_next_period_starts_at_zero(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        log = await filled(0.01, 3)
        await until(lambda: len(caplog.records) == 3)
        log.warning("later")
        log.close()

    asyncio.run(run())
    assert lines(caplog)[-1] == "later"
    assert sum("left out: lines=1 " in line for line in lines(caplog)) == 1


def test_nothing_is_said_where_nothing_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        log = await filled(3600, 2)
        log.close()
        log.close()

    asyncio.run(run())
    assert lines(caplog) == ["peer 0", "peer 1"]
