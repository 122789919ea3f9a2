"""What the log of a process can grow by is bounded, whatever writes to it (S2)."""

from __future__ import annotations

import io
import logging

import pytest

from semel.broker.node_log import configure_logging
from semel.runtime.flood_guard import FloodGuard

logger = logging.getLogger("semel.test.flood")


class Log:
    """A log in memory, whose minutes the test ends."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.guard = FloodGuard(lines_max=3, tracebacks_max=2, period_s=60, monotonic=lambda: self.now)
        self.guard.handler = self.handler
        self.handler.addFilter(self.guard)

    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def log() -> Log:
    made = Log()
    root = logging.getLogger()
    root.handlers[:] = [made.handler]
    root.setLevel("INFO")
    return made


def test_S2_each_place_in_the_code_has_so_many_lines_a_minute(log: Log) -> None:
    for number in range(10):
        logger.info("one %d", number)
        if number < 2:
            logger.warning("other %d", number)
    assert log.lines() == ["one 0", "other 0", "one 1", "other 1", "one 2"]
    log.now = 60.0
    logger.info("next")
    assert log.lines()[5:] == ["left out: lines=7 of one kind, after the first 3 in 60 s", "next"]


def test_S2_what_was_left_out_is_said_at_the_end_too(log: Log) -> None:
    for number in range(5):
        logger.info("one %d", number)
    log.guard.flush()
    log.guard.flush()
    assert log.lines()[3:] == ["left out: lines=2 of one kind, after the first 3 in 60 s"]


def test_S2_tracebacks_are_fewer_than_lines(log: Log) -> None:
    for _ in range(3):
        try:
            raise ValueError("a mistake")
        except ValueError:
            logger.exception("failed")
    text = log.stream.getvalue()
    assert text.count("Traceback") == 2
    assert log.lines()[-1] == "failed: ValueError('a mistake') (its traceback was written before)"


def test_what_is_critical_is_always_said(log: Log) -> None:
    for _ in range(10):
        logger.critical("the end")
    assert len(log.lines()) == 10


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_S2_S3_no_stranger_makes_a_line_that_is_long_or_takes_long(log_format: str) -> None:
    """A name of 32 KB took seconds to look through for passwords: with a megabyte this would not end."""
    stream = io.StringIO()
    configure_logging(log_format, "info", stream)
    for name in ("x" * 1_000_000, "://" * 300_000, "://x:" * 200_000, "://" + "x:" * 500_000):
        stream.truncate(0)
        stream.seek(0)
        logger.info("group rebalancing detail=%s", name)
        assert 16_000 < len(stream.getvalue()) < 20_000
    assert "characters left out" in stream.getvalue()


def test_the_log_of_a_node_is_guarded() -> None:
    stream = io.StringIO()
    guard = configure_logging("text", "info", stream)
    for name in ("semel.kafka", "asyncio", "grpc._cython.cygrpc"):
        for number in range(1000):
            logging.getLogger(name).error("line %d", number)
    guard.flush()
    assert stream.getvalue().count("\n") == 201, "the place is one: here"
    assert "left out: lines=2800" in stream.getvalue()


def test_a_log_that_can_not_be_written_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    configure_logging("text", "info", Full())
    logger.error("nobody reads this")
    assert capsys.readouterr().err == ""
