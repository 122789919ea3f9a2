"""Clocks: a jump of the wall clock is found out by the monotonic one."""

from __future__ import annotations

from semel.runtime.clock import ClockWatch, ManualClock


def test_a_jump_is_told_once_and_time_that_passes_is_none() -> None:
    clock = ManualClock()
    watch = ClockWatch(clock)
    clock.advance(ms=86_400_000)
    assert watch.jumped_ms() == 0
    assert watch.now_ms() == clock.now_ms()
    clock.jump(ms=3_600_000)
    clock.advance(ms=5_000)
    assert watch.now_ms() == clock.now_ms() - 3_600_000 + ClockWatch.TOLERATED_MS
    assert (watch.jumped_ms(), watch.jumped_ms()) == (3_600_000, 0)
    assert watch.now_ms() == clock.now_ms()
    clock.jump(ms=-7_200_000)
    assert watch.now_ms() == clock.now_ms(), "the earlier of both"
    assert (watch.jumped_ms(), watch.jumped_ms()) == (-7_200_000, 0)


def test_small_corrections_are_no_jumps_and_add_up() -> None:
    clock = ManualClock()
    watch = ClockWatch(clock)
    for _ in range(2):
        clock.jump(ms=ClockWatch.TOLERATED_MS // 2)
        assert watch.jumped_ms() == 0
    clock.jump(ms=1)
    assert watch.jumped_ms() == ClockWatch.TOLERATED_MS + 1
