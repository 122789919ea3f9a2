"""What is said of a producer that nobody closed, and that could not be closed well."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from semel.protocol.errors import ErrorCode, RetriableError
from semel.sdk.producer import lifetime


@pytest.mark.parametrize(
    ("unsent", "level", "said"),
    [
        (0, logging.WARNING, "a producer that was not closed had nothing left to send, but could not end well: late"),
        (1, logging.ERROR, "1 record of a producer that was not closed may be lost: late"),
        (2, logging.ERROR, "2 records of a producer that was not closed may be lost: late"),
    ],
)
def test_a_producer_that_had_sent_everything_was_said_to_lose_0_records(
    unsent: int, level: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def close(_: float) -> None:
        raise RetriableError("late", ErrorCode.REQUEST_TIMED_OUT)

    core: Any = SimpleNamespace(accumulator=SimpleNamespace(incomplete_records=lambda: unsent), close=close)
    lifetime._close_quietly(core)
    ((_, found_level, message),) = caplog.record_tuples
    assert (found_level, message.replace(" [REQUEST_TIMED_OUT]", "")) == (level, said)
