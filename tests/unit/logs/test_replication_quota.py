"""A quota for throttled replicas over the last seconds (KIP-73)."""

from __future__ import annotations

import random

import pytest

from semel.broker.logs.replication_quota import SAMPLE_S, WINDOW_S, ReplicationQuota
from semel.protocol.int_bounds import INT64_MAX

RATE = 1_000


def quota(rate: int = RATE) -> ReplicationQuota:
    return ReplicationQuota(lambda: rate)


def test_so_many_bytes_a_second_are_left_and_what_was_copied_counts() -> None:
    one = quota()
    assert one.left_bytes(100.0) == RATE, "there is a second's worth at once"
    one.record(600, 100.0)
    assert one.left_bytes(100.0) == 400
    one.record(400, 100.5)
    assert (one.left_bytes(100.5), one.is_exceeded(100.5)) == (0, True)
    assert one.left_bytes(101.5) == 500
    assert one.total_bytes == 1_000


def test_one_fetch_may_go_beyond_and_the_next_wait_for_it() -> None:
    one = quota()
    one.record(5_000, 0.0)
    assert one.free_in_s(0.0) == pytest.approx(5.0, abs=0.01)
    assert one.is_exceeded(5.0)
    assert not one.is_exceeded(5.01)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    one = quota()
    one.record(1_000_000, 0.0)
    one.record(1, 2.0)
    assert one.free_in_s(2.0) == pytest.approx(WINDOW_S - 2.0)
    assert one.is_exceeded(WINDOW_S - 0.01)
    assert not one.is_exceeded(WINDOW_S)
    assert one.left_bytes(50.0) == RATE


@pytest.mark.parametrize("rate", [0, 1, 7, 1_000, 50_000_000, INT64_MAX])
def test_a_quota_that_is_used_up_is_free_when_it_says_so(rate: int) -> None:
    """Nobody waits in vain, for ever, or without an end to the looking."""
    chance = random.Random(rate)
    one, now_s = quota(rate), 0.0
    for _ in range(500):
        one.record(chance.choice([1, 100, 100_000, 1 << 20]), now_s)
        now_s += chance.choice([0.0, 0.01, 0.4, SAMPLE_S, 3.0])
        wait_s = one.free_in_s(now_s)
        assert wait_s <= WINDOW_S + 1e-6
        assert one.is_exceeded(now_s) == (wait_s > 0)
        if wait_s:
            assert one.is_exceeded(now_s + wait_s * 0.98) or wait_s <= 0.001
            now_s += wait_s + 1e-6
            assert not one.is_exceeded(now_s)


def test_over_time_the_rate_is_held_by_whoever_copies_when_something_is_left() -> None:
    one, now_s, chance = quota(100_000), 0.0, random.Random(1)
    while now_s < 300.0:
        if one.is_exceeded(now_s):
            now_s += one.free_in_s(now_s)
        else:
            one.record(chance.randrange(1, 60_000), now_s)
    assert one.total_bytes / now_s == pytest.approx(100_000, rel=0.02)


def test_another_rate_counts_at_once() -> None:
    rates = [10]
    one = ReplicationQuota(lambda: rates[0])
    one.record(1_000, 0.0)
    assert one.is_exceeded(1.0)
    rates[0] = 100_000
    assert not one.is_exceeded(1.0)
    rates[0] = INT64_MAX
    assert one.left_bytes(1.0) > 1 << 60


def test_without_a_rate_one_fetch_in_a_window_goes_as_in_kafka() -> None:
    one = quota(0)
    assert not one.is_exceeded(0.0)
    one.record(10, 0.0)
    assert one.free_in_s(0.0) == WINDOW_S
    assert not one.is_exceeded(WINDOW_S)
