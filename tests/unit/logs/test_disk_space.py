"""The reserve of the disk: who is refused, and that the node's own log says so once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.logs.disk_space import DiskSpace, WriteFailures
from semel.protocol.errors import RetriableError


def test_a_nearly_full_disk_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    free = 100
    storage = cast("Any", SimpleNamespace(free_bytes=lambda _: free))
    space = DiskSpace(storage, "/data", min_free_bytes=1000)
    with caplog.at_level(logging.INFO, logger="semel.disk"):
        for _ in range(3):
            with pytest.raises(RetriableError, match="nearly full"):
                space.take(10)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "producers are refused: 100 bytes are free in /data" in caplog.text
        free = 5000
        space.take(10)
        space.take(10)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_disk_that_is_full_from_the_start_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    space = DiskSpace(cast("Any", SimpleNamespace(free_bytes=lambda _: 5)), "/data", min_free_bytes=1000)
    space.refresh()
    assert "the disk is nearly full" in caplog.text


def test_an_append_beyond_the_reserve_does_not_flap(caplog: pytest.LogCaptureFixture) -> None:
    """Just above the reserve each look finds room, and each append none."""
    space = DiskSpace(cast("Any", SimpleNamespace(free_bytes=lambda _: 1005)), "/data", min_free_bytes=1000)
    with caplog.at_level(logging.INFO, logger="semel.disk"):
        for _ in range(3):
            with pytest.raises(RetriableError):
                space.take(10)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_refused_producers_are_served_again_only_when_more_than_the_reserve_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While others wrote and deleted around the threshold it said both in the same milliseconds."""
    free = 990
    space = DiskSpace(cast("Any", SimpleNamespace(free_bytes=lambda _: free)), "/data", min_free_bytes=1000)
    with caplog.at_level(logging.INFO, logger="semel.disk"):
        for found in (990, 1020, 999, 1050, 1095):
            free = found
            space.refresh()
            assert space.is_refusing
            with pytest.raises(RetriableError, match="served again from 1100 on"):
                space.take(10)
        free = 1120
        space.take(10)
        assert not space.is_refusing
        free = 1015
        space.take(10)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_write_that_finds_the_disk_full_is_believed_before_the_next_look(caplog: pytest.LogCaptureFixture) -> None:
    free = 8 << 20
    space = DiskSpace(cast("Any", SimpleNamespace(free_bytes=lambda _: free)), "/data", min_free_bytes=0)
    space.take(10)
    free = 100  # by others, between two looks
    space.write_failed()
    with pytest.raises(RetriableError, match="nearly full"):
        space.take(10)
    free = 8 << 20
    space.take(10)
    assert "producers are refused" in caplog.text


def test_an_append_larger_than_what_is_written_between_two_looks_is_no_full_disk() -> None:
    """Batches above 16 MiB were refused for ever, with any amount of room."""
    free = 1000 + (40 << 20)
    space = DiskSpace(cast("Any", SimpleNamespace(free_bytes=lambda _: free)), "/data", min_free_bytes=1000)
    space.take(40 << 20)
    free = 1000
    with pytest.raises(RetriableError, match="nearly full"):
        space.take(1)


def test_appends_that_fail_now_and_then_are_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """On a disk that is just full, small appends succeed between the large ones that fail."""
    failures = WriteFailures()
    with caplog.at_level(logging.INFO, logger="semel.disk"):
        for second in range(61):
            failures.failed(1000.0 + second, "the disk is full")
            failures.failed(1000.0 + second, "the disk is full")
            failures.succeeded()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR", "INFO"]
    assert not failures.last
