"""The pauses between attempts, of which the client has one form."""

from __future__ import annotations

import asyncio
import math

from semel.protocol.errors import ErrorCode
from semel.runtime.backoff import Backoff
from semel.runtime.clock import ManualClock
from semel.sdk.transport.options import ClientOptions


def test_pauses_double_up_to_the_longest() -> None:
    backoff = ClientOptions(("localhost:1",), retry_backoff_ms=20, retry_backoff_max_ms=100).backoff
    assert [backoff.pause_ms(failures) for failures in (0, 1, 2, 3, 4, 1_000_000)] == [20, 20, 40, 80, 100, 100]


def test_the_end_of_the_last_transaction_is_asked_for_sooner() -> None:
    backoff = Backoff(20, 100)
    waiting = [backoff.pause_ms(failures, ErrorCode.CONCURRENT_TRANSACTIONS) for failures in (1, 2, 3, 100)]
    assert waiting == [1, 2, 4, 100]


def test_clients_spread_by_a_fifth_either_way() -> None:
    pauses = [Backoff(1_000, 1_000).jittered_s(1) for _ in range(200)]
    assert 0.8 <= min(pauses) < max(pauses) <= 1.2


def test_nobody_waits_for_an_attempt_that_there_is_no_time_for() -> None:
    async def run() -> None:
        clock = ManualClock()
        clock.advance(ms=5_000)
        assert not await Backoff(60_000, 60_000).pause(1, clock, 6.0)
        assert not await Backoff(1, 1).pause(1, clock, 5.0)
        assert await Backoff(1, 1).pause(1, clock, 6.0)
        assert await Backoff(1, 1).pause(1, clock, math.inf)

    asyncio.run(asyncio.wait_for(run(), 30))
