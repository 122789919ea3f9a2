"""S3: long work on the event loop is done in turns."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop

from semel.runtime.turns import TURN_SECONDS, CallerGoneError, Turns, call_in_turn, in_turns, set_is_gone

LOOKS_PER_TURN = round(TURN_SECONDS * 1000)


async def gathered(count: int, order: list[str] | None = None, name: str = "") -> list[int]:
    done = []
    async for number in in_turns(range(count)):
        done.append(number)
        if order is not None:
            order.append(name)
    return done


def test_S3_others_have_the_loop_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    every_look_takes_a_millisecond(monkeypatch)
    done, rounds = asyncio.run(rounds_of_the_loop(gathered(10 * LOOKS_PER_TURN)))
    assert done == list(range(10 * LOOKS_PER_TURN))
    assert rounds >= 8


def test_S3_much_long_work_takes_one_turn_a_round_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many clients asks for long work: a round of the loop must not be as long as all their turns."""
    every_look_takes_a_millisecond(monkeypatch)
    clients, turns_each = 8, 6

    async def main() -> tuple[object, int]:
        return await rounds_of_the_loop(
            asyncio.gather(*(gathered(turns_each * LOOKS_PER_TURN) for _ in range(clients)))
        )

    _, rounds = asyncio.run(main())
    assert rounds >= clients * (turns_each - 2)


def test_S3_work_in_turns_is_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    every_look_takes_a_millisecond(monkeypatch)
    order: list[str] = []

    async def main() -> None:
        await asyncio.gather(
            gathered(100 * LOOKS_PER_TURN, order, "long"), gathered(3 * LOOKS_PER_TURN, order, "short")
        )

    asyncio.run(main())
    short_ends = len(order) - order[::-1].index("short")
    assert short_ends < 20 * LOOKS_PER_TURN


def test_S3_work_for_a_caller_that_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    every_look_takes_a_millisecond(monkeypatch)
    is_gone = False
    done = 0

    async def work() -> None:
        nonlocal is_gone, done
        set_is_gone(lambda: is_gone)
        async for number in in_turns(range(1_000)):
            is_gone = number > 20
            done += 1

    async def main() -> None:
        with pytest.raises(CallerGoneError):
            await asyncio.create_task(work(), context=contextvars.copy_context())

    asyncio.run(main())
    assert done < 20 + 2 * LOOKS_PER_TURN + 2


def test_what_a_request_begins_is_done_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that a request starts, such as one that writes markers, inherits its context, and not its caller."""
    every_look_takes_a_millisecond(monkeypatch)
    count = 10 * LOOKS_PER_TURN

    async def request() -> tuple[list[int], int]:
        set_is_gone(lambda: True)
        begun = asyncio.create_task(gathered(count))
        turns = Turns(ends_with_caller=False)
        own = 0
        while own < count:
            await turns.give_way()
            own += 1
        return await begun, own

    async def main() -> tuple[list[int], int]:
        return await asyncio.create_task(request())

    assert asyncio.run(main()) == (list(range(count)), count)


def test_cancelled_work_leaves_the_turn_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    every_look_takes_a_millisecond(monkeypatch)

    async def main() -> list[int]:
        cancelled = asyncio.create_task(gathered(1_000))
        other = asyncio.create_task(gathered(20 * LOOKS_PER_TURN))
        for _ in range(4):
            await asyncio.sleep(0)
        cancelled.cancel()
        return await other

    assert asyncio.run(main()) == list(range(20 * LOOKS_PER_TURN))


def test_S3_of_callbacks_that_are_due_together_one_is_called_in_a_round() -> None:
    """Each may take long: the timers of many partitions ring at the same moment."""

    async def main() -> list[int]:
        rounds: list[int] = []
        now = 0
        for _ in range(5):
            call_in_turn(lambda: rounds.append(now))
        while len(rounds) < 5:
            await asyncio.sleep(0)
            now += 1
        return rounds

    rounds = asyncio.run(main())
    assert len(set(rounds)) == 5


def test_short_work_does_not_wait() -> None:
    async def main() -> None:
        with pytest.raises(StopIteration):
            Turns().give_way().send(None)

    asyncio.run(main())
