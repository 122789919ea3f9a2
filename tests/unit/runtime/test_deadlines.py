"""Deadlines by key: which is due, and how little is kept for those that moved or went."""

from __future__ import annotations

from semel.runtime.deadlines import Deadlines


def test_deadlines_keep_one_entry_however_often_a_deadline_moves() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now in range(1_000):
        deadlines.schedule("a", now + 100)
    deadlines.schedule("b", 50)
    assert len(deadlines._heap) <= 3
    assert deadlines.pop_due(49) is None
    assert deadlines.pop_due(50) == "b"
    assert deadlines.pop_due(1_098) is None
    assert deadlines.next_deadline_ms() == 1_099
    deadlines.schedule("a", 7)
    assert deadlines.pop_due(7) == "a"
    deadlines.schedule("c", 5)
    deadlines.cancel("c")
    assert deadlines.next_deadline_ms() is None
    assert len(deadlines) == 0
    assert "a" not in deadlines


def test_a_deadline_that_moves_earlier_rings_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.hasten("a", 100)
    deadlines.hasten("a", 50)
    deadlines.hasten("a", 70)
    assert deadlines.next_deadline_ms() == 50
    assert [deadlines.pop_due(60), deadlines.pop_due(60)] == ["a", None]
    deadlines.hasten("a", 200)
    assert deadlines.pop_due(150) is None
    assert [deadlines.pop_due(200), deadlines.pop_due(200), deadlines.next_deadline_ms()] == ["a", None, None]


def test_deadlines_of_keys_that_come_and_go_leave_nothing_behind() -> None:
    """Each writer of a shared transaction is a key of its own, and most are gone long before their deadline."""
    deadlines: Deadlines[str] = Deadlines()
    deadlines.hasten("stays", 5_000)
    for number in range(10_000):
        deadlines.hasten(f"writer-{number}", 10_000 + number)
        deadlines.cancel(f"writer-{number}")
        assert len(deadlines._heap) < 100
    deadlines.cancel("unknown")
    assert [deadlines.pop_due(1_000_000), deadlines.pop_due(1_000_000)] == ["stays", None]


def test_many_that_go_at_once_leave_the_others_in_order() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(1_000):
        deadlines.schedule(number, 5_000 - number)
    deadlines.schedule(3, 9_000)
    for number in range(7, 1_000):
        deadlines.cancel(number)
    assert len(deadlines._heap) < 100
    assert [deadlines.pop_due(10_000) for _ in range(8)] == [6, 5, 4, 2, 1, 0, 3, None]
