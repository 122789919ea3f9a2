"""Rates by windows and the bucket of changes, with a clock that moves when it is told to."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.broker.quotas.rates import Rate, TokenBucket, Windows

ELEVEN = Windows(11, 1.0)


def test_a_rate_is_over_all_windows_but_the_one_in_progress_at_least() -> None:
    rate = Rate(ELEVEN)
    rate.record(1_000, 100.0)
    assert rate.per_second(100.0) == 100.0
    assert rate.per_second(105.0) == 100.0
    assert rate.per_second(110.5) == pytest.approx(1_000 / 10.5)
    assert rate.per_second(111.0) == 0.0


def test_the_wait_is_so_long_that_the_rate_is_within_the_bound_after_it() -> None:
    rate = Rate(ELEVEN)
    rate.record(2_000, 0.0)
    assert rate.wait_s(200.0, 0.0) == 0.0
    assert rate.wait_s(100.0, 0.0) == pytest.approx(10.0)
    rate.record(1, 0.0)
    assert rate.wait_s(200.0, 0.0) == pytest.approx(0.005)


def test_what_is_taken_back_does_not_count() -> None:
    rate = Rate(ELEVEN)
    rate.record(300, 5.0)
    rate.record(700, 6.0)
    rate.record(-700, 6.0)
    assert rate.per_second(6.0) == 30.0


def test_who_waits_as_he_is_told_takes_no_more_than_his_quota() -> None:
    """For requests of no more than a second's worth: what is larger is forgotten before it is paid for, as in Kafka."""
    draw = random.Random(7)
    rate, now, total = Rate(ELEVEN), 0.0, 0.0
    while now < 1_000:
        size = draw.choice((100, 500, 1_000))
        rate.record(size, now)
        total += size
        now += rate.wait_s(1_000, now) + draw.random() / 10
    assert 900 <= total / now <= 1_100


class NaiveRate:
    """All that was recorded, with the window that it fell in."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.taken: list[tuple[float, float]] = []

    def record(self, value: float, now: float) -> None:
        begun = [start for start, _ in self.taken if now - start < self.windows.remembered_s]
        newest = begun[-1] if begun and now - begun[-1] < self.windows.seconds else now
        self.taken.append((newest, value))

    def per_second(self, now: float) -> float:
        counted = [(start, value) for start, value in self.taken if now - start < self.windows.remembered_s]
        if not counted:
            return 0.0
        elapsed = now - counted[0][0]
        elapsed += max(self.windows.kept - 1 - int(elapsed / self.windows.seconds), 0) * self.windows.seconds
        return sum(value for _, value in counted) / max(elapsed, 0.001)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.integers(2, 12),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 10_000)), max_size=60),
)
def test_rates_are_those_of_a_naive_model(kept: int, seconds: int, steps: list[tuple[int, int]]) -> None:
    windows = Windows(kept, float(seconds))
    rate, naive, now = Rate(windows), NaiveRate(windows), 1_000.0
    for pause_ms, value in steps:
        now += pause_ms / 1_024
        rate.record(value, now)
        naive.record(value, now)
        assert rate.per_second(now) == pytest.approx(naive.per_second(now))


def test_a_bucket_is_full_at_first_and_is_overdrawn_by_one_request() -> None:
    bucket = TokenBucket(ELEVEN)
    assert bucket.wait_s(2.0, 50.0) == 0.0
    bucket.take(22, 2.0, 50.0)
    assert bucket.wait_s(2.0, 50.0) == 0.0
    bucket.take(4, 2.0, 50.0)
    assert bucket.wait_s(2.0, 50.0) == pytest.approx(2.0)
    assert bucket.wait_s(2.0, 51.0) == pytest.approx(1.0)
    assert bucket.wait_s(2.0, 52.0) == 0.0
    assert not bucket.is_full(2.0, 52.0)
    assert bucket.is_full(2.0, 63.0)


def test_a_bucket_holds_no_more_than_its_windows() -> None:
    bucket = TokenBucket(Windows(3, 1.0))
    bucket.take(0, 10.0, 0.0)
    bucket.take(31, 10.0, 1_000_000.0)
    assert bucket.wait_s(10.0, 1_000_000.0) == pytest.approx(0.1)
