"""The writer of diskless partitions: nothing is acknowledged before it is committed, and all is in order, once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tiered_topic import until
from written_partitions import WrittenPlace

from semel.broker.diskless import writer as writer_module
from semel.runtime.clock import ManualClock

LARGE = 20_000
"""More than goes into a row."""
MUCH = 64 << 10
"""More than is gathered where diskless.append.buffer.max.bytes says so."""


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr(writer_module, "_AGAIN_S", 0.001)
    monkeypatch.setattr(writer_module, "_AGAIN_S_MAX", 0.004)


def run(folder: Path, test: Callable[[WrittenPlace], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        place = WrittenPlace(folder, **settings)
        try:
            async with asyncio.timeout(120):
                await test(place)
        finally:
            await place.close()
        assert not place.writer.busy

    asyncio.run(main())


async def turns(count: int = 50) -> None:
    """Let everything go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_small_appends_of_all_partitions_are_one_commit_and_need_no_object(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        for one in place.partitions:
            one.append(b"a" * 10)
            one.append(b"b" * 5)
        await place.done()
        assert (place.writer.commits, place.asked) == (1, 1)
        assert not place.store.requests
        for one in place.partitions:
            assert place.committed_bytes(one) == one.appended
            assert len(place.rows.load(one.key).entries) == 1, "what came in one turn is one entry"
        assert place.writer.waiting_bytes == 0

    run(tmp_path, test, partitions=3)


def test_what_comes_during_a_commit_is_the_next_one(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        place.may_ask.clear()
        one.append(b"first")
        await turns()
        for _ in range(20):
            one.append(b"more")
            await turns(2)
        assert one.acknowledged == 0
        place.may_ask.set()
        await place.done()
        assert place.writer.commits == 2
        assert [entry.end_offset for entry in place.rows.load(one.key).entries] == [5, 85]

    run(tmp_path, test)


def test_large_appends_of_all_partitions_are_one_object(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        for one in place.partitions:
            one.append(bytes([65 + one.tp.partition]) * LARGE)
        await place.done()
        assert place.writer.objects == place.store.requests["put"] == len(place.store.objects) == 1
        assert place.rows.object_keys() == set(place.store.objects)
        for one in place.partitions:
            assert place.committed_bytes(one) == one.appended

    run(tmp_path, test, partitions=3)


def test_much_is_written_before_its_time_has_come(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        one.append(b"a" * LARGE)
        await turns()
        assert not place.store.requests
        one.append(b"a" * (64 << 10))
        await place.done()
        assert place.store.requests["put"] == 1

    run(
        tmp_path, test, clock=ManualClock(), diskless_append_commit_interval_ms=60_000,
        diskless_append_buffer_max_bytes=64 << 10,
    )  # fmt: skip


def test_D1_an_object_is_noted_before_it_is_written_and_counts_once_it_is_committed(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        place.store.hold()
        one.append(b"a" * LARGE)
        await until(lambda: place.store.requests["put"])
        assert len(place.rows.object_keys()) == 1
        assert one.acknowledged == 0
        place.may_ask.clear()
        place.store.let_go()
        await until(lambda: place.store.objects)
        await turns()
        assert one.acknowledged == 0
        assert place.rows.load(one.key).entries == []
        place.may_ask.set()
        await place.done()

    run(tmp_path, test)


def test_D3_small_appends_wait_for_the_object_before_them(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        one, other = place.partitions
        place.store.hold()
        one.append(b"a" * LARGE)
        await until(lambda: place.store.requests["put"])
        one.append(b"small")
        other.append(b"small")
        await until(lambda: other.is_done)
        await turns()
        assert place.rows.load(one.key).entries == [], "what is in between is not committed yet"
        place.store.let_go()
        await place.done()
        assert place.committed_bytes(one) == one.appended

    run(tmp_path, test, partitions=2)


def test_D3_an_object_waits_for_the_small_appends_before_it(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        held = asyncio.Event()
        real = place.ask

        async def ask(call: Callable[[], Any]) -> Any:
            if place.asked == 0:
                place.asked += 1
                await held.wait()
            return await real(call)

        place.ask = ask  # type: ignore[method-assign]
        one.append(b"small")
        await turns()
        one.append(b"a" * LARGE)
        await until(lambda: place.store.objects)
        await turns()
        assert place.rows.load(one.key).entries == []
        held.set()
        await place.done()
        assert place.committed_bytes(one) == one.appended

    run(tmp_path, test)


def test_D3_objects_are_written_side_by_side_and_committed_in_order(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        gates: list[asyncio.Event] = []
        real = place.store.put

        async def put(key: str, data: Any, size_bytes: int) -> None:
            gates.append(asyncio.Event())
            await gates[-1].wait()
            await real(key, data, size_bytes)

        place.store.put = put  # type: ignore[method-assign]
        for number in range(20):
            one.append(bytes([65 + number]) * LARGE)
            if number < 8:
                await until(lambda expected=number + 1: len(gates) == expected)  # type: ignore[misc]
        await turns()
        assert len(gates) == 8, "so many are written at once, and no more"
        for gate in reversed(gates[1:]):
            gate.set()
        await until(lambda: len(place.store.objects) == 7)
        await turns()
        assert place.rows.load(one.key).entries == []
        gates[0].set()
        await until(lambda: len(gates) == 9)
        gates[8].set()
        await place.done()
        assert place.committed_bytes(one) == one.appended

    run(tmp_path, test, diskless_append_buffer_max_bytes=64 << 10)


def test_more_than_the_budget_goes_to_objects_until_time_has_passed(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        for _ in range(4):
            one.append(b"a" * 1_000)
            await until(lambda: one.is_done)
        assert not place.store.requests, "after a quiet time four seconds' worth may be written at once"
        one.append(b"b" * 100)
        await turns()
        assert not one.is_done
        clock.advance(ms=5)
        await place.done()
        assert place.store.requests["put"] == 1
        clock.advance(ms=200)
        one.append(b"c" * 200)
        await place.done()
        assert place.store.requests["put"] == 1
        assert place.writer.inline_bytes == 4_200

    clock = ManualClock()
    run(tmp_path, test, clock=clock, diskless_inline_bytes_per_second=1_000, diskless_append_commit_interval_ms=5)


def test_over_the_quota_of_requests_records_are_gathered_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_THROTTLED_S_MAX", 0.001)

    async def test(place: WrittenPlace) -> None:
        one, other = place.partitions
        for _ in range(2):
            one.append(b"a" * MUCH)
            await place.done()
        assert place.store.requests["put"] == 2, "after a quiet time two seconds' worth may be written at once"
        one.append(b"b" * MUCH)
        await place.done()
        one.append(b"c" * MUCH)
        await turns()
        other.append(b"d" * MUCH)
        await asyncio.sleep(0.02)
        assert place.store.requests["put"] == 3
        assert not one.is_done
        clock.advance(ms=1_000)
        await place.done()
        assert place.store.requests["put"] == 4, "what was appended meanwhile is one object"
        assert place.quotas.throttled_s["append"] > 0

    clock = ManualClock()
    run(
        tmp_path, test, clock=clock, partitions=2, remote_storage_put_requests_per_second=1,
        diskless_append_buffer_max_bytes=MUCH,
    )  # fmt: skip


def test_a_put_that_is_repeated_counts_each_time(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        place.store.fault = lambda kind, key: "fail" if place.store.requests["put"] <= 2 else ""
        one.append(b"a" * MUCH)
        await place.done()
        assert place.store.requests["put"] == 3
        assert place.quotas.put_wait_s() == pytest.approx(1)

    run(
        tmp_path, test, clock=ManualClock(), remote_storage_put_requests_per_second=1,
        diskless_append_buffer_max_bytes=MUCH,
    )  # fmt: skip


class TickingClock(ManualClock):
    """Time passes with each look at it."""

    def monotonic(self) -> float:
        self.advance(ms=1)
        return super().monotonic()


def test_an_append_is_not_forgotten_when_the_budget_suffices_from_one_moment_to_the_next(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        one.append(b"a" * 3_900)
        for number in range(300):
            await place.done()
            one.append(b"a" * (1 + number % 37))
        await place.done()
        assert place.writer.objects

    run(tmp_path, test, clock=TickingClock(), diskless_inline_bytes_per_second=1_000)


def test_a_node_without_a_budget_writes_objects_alone(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        one.append(b"a")
        await place.done()
        assert place.writer.inline_bytes == 0
        assert place.store.requests["put"] == 1

    run(tmp_path, test, diskless_inline_max_bytes=0)


def test_D1_without_the_store_nothing_is_acknowledged_and_all_is_when_it_is_back(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        one, other = place.partitions
        place.store.fault = lambda kind, key: "fail"
        one.append(b"a" * LARGE)
        one.append(b"b")
        await until(lambda: place.store.requests["put"] > 3)
        assert "could not write an object" in place.writer.error
        assert one.acknowledged == 0
        other.append(b"small")
        await until(lambda: other.is_done)
        assert "could not write an object" in place.writer.error, "what succeeded was something else"
        place.store.fault = lambda kind, key: ""
        await place.done()
        assert place.committed_bytes(one) == one.appended
        await until(lambda: not place.writer.error)

    run(tmp_path, test, partitions=2)


def test_D1_without_the_database_nothing_is_acknowledged_and_all_is_when_it_is_back(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        one, other = place.partitions
        place.fault = lambda number: "fail"
        one.append(b"small")
        other.append(b"a" * LARGE)
        await until(lambda: place.asked > 8)
        one.append(b"more")
        assert (one.acknowledged, other.acknowledged) == (0, 0)
        assert "could not" in place.writer.error
        place.fault = lambda number: ""
        await place.done()
        assert not place.writer.error

    run(tmp_path, test, partitions=2)


@pytest.mark.parametrize("seed", range(8))
def test_D1_D3_all_is_committed_once_and_in_order_whatever_fails(tmp_path: Path, seed: int) -> None:
    """Answers are lost, too, of the store and of the database. `made_durable` checks that nothing is early."""
    chance = random.Random(seed)

    def fault(*_: object) -> str:
        return chance.choice(("fail", "lose")) if chance.random() < share else ""

    share = chance.choice((0.0, 0.2, 0.6))

    async def test(place: WrittenPlace) -> None:
        place.fault, place.store.fault = fault, fault
        for number in range(200):
            one = chance.choice(place.partitions)
            size = chance.choice((1, 5, 90, 101, 600))
            one.append(bytes([65 + number % 26]) * size)
            if chance.random() < 0.6:
                await turns(chance.randrange(8))
            if chance.random() < 0.05:
                await asyncio.sleep(0.003)
        await place.done()
        for one in place.partitions:
            assert place.committed_bytes(one) == one.appended
            assert not one.was_lost
        assert place.writer.waiting_bytes == 0
        assert {entry.object_key for found in place.entries.values() for entry in found} - {""} == {
            key for key in place.rows.object_keys() if key in place.store.objects
        }

    run(
        tmp_path, test, partitions=4, diskless_inline_max_bytes=100,
        diskless_inline_bytes_per_second=chance.choice((50, 1 << 20)),
    )  # fmt: skip


def test_R3_what_is_committed_under_a_claim_that_counts_no_more_is_never_acknowledged(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        one, other = place.partitions
        one.append(b"before")
        await place.done()
        place.may_ask.clear()
        one.append(b"late")
        other.append(b"other")
        await turns()
        one.append(b"behind it")
        place.claim(one, "another's", 2)
        place.may_ask.set()
        await until(lambda: one.was_lost and other.is_done)
        one.append(b"after")
        await until(lambda: place.writer.waiting_bytes == 0)
        await turns()
        assert one.acknowledged == len(b"before")
        assert place.committed_bytes(one) == b"before"
        assert place.committed_bytes(other) == b"other"

    run(tmp_path, test, partitions=2)


def test_R3_an_object_is_committed_for_those_partitions_alone_that_are_still_led_here(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        one, other = place.partitions
        place.store.hold()
        one.append(b"a" * LARGE)
        other.append(b"b" * LARGE)
        await until(lambda: place.store.requests["put"])
        one.append(b"small")
        place.claim(one, "another's", 2)
        place.store.let_go()
        await until(lambda: one.was_lost and other.is_done)
        await until(lambda: place.writer.waiting_bytes == 0)
        assert one.acknowledged == 0
        assert place.rows.load(one.key).entries == []
        assert place.committed_bytes(other) == other.appended

    run(tmp_path, test, partitions=2)


def test_D3_what_comes_behind_a_run_that_was_given_up_leaves_no_gap(tmp_path: Path) -> None:
    """The node claims the partition again meanwhile, under the same name: only what it appends from then on counts."""

    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        place.store.hold()
        one.append(b"a" * LARGE)
        await until(lambda: place.store.requests["put"])
        one.append(b"b" * LARGE)
        await until(lambda: place.store.requests["put"] == 2)
        one.append(b"c")
        place.claim(one, "another's", 2)
        place.store.let_go()
        await until(lambda: one.was_lost)
        await until(lambda: place.writer.waiting_bytes == 0)
        assert place.rows.load(one.key).entries == []
        assert one.acknowledged == 0

    run(tmp_path, test)


def test_D3_what_comes_behind_a_commit_that_failed_is_not_committed(tmp_path: Path) -> None:
    """A mistake in the program ends a commit, and the claim still counts: what is behind it would leave a gap."""

    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        real = place.rows.commit

        def fail(entries: object) -> set[Any]:
            place.rows.commit = real  # type: ignore[method-assign]
            raise ZeroDivisionError

        place.rows.commit = fail  # type: ignore[method-assign]
        place.store.hold()
        one.append(b"a" * LARGE)
        await until(lambda: place.store.requests["put"])
        one.append(b"b" * LARGE)
        await until(lambda: place.store.requests["put"] == 2)
        place.store.let_go()
        await until(lambda: one.was_lost)
        await until(lambda: place.writer.waiting_bytes == 0)
        assert one.acknowledged == 0
        assert place.rows.load(one.key).entries == []

    run(tmp_path, test)


def test_D6_an_object_that_was_given_up_meanwhile_is_written_again(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        place.store.hold()
        one.append(b"a" * LARGE)
        await until(lambda: place.store.requests["put"])
        (first,) = place.writer.busy
        place.rows.retire_run(place.run, 1)
        place.store.let_go()
        await place.done()
        assert place.committed_bytes(one) == one.appended
        (entry,) = place.rows.load(one.key).entries
        assert entry.object_key != first
        assert place.rows.garbage(before_ms=1) == [(first, LARGE, 1)]

    run(tmp_path, test)


def test_D6_an_object_is_busy_until_it_is_committed(tmp_path: Path) -> None:
    """So nobody gives it up meanwhile, though an answer is lost."""

    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        busy: list[set[str]] = []

        def lose_first(number: int) -> str:
            busy.append(set(place.writer.busy))
            place.rows.retire_run(place.run, 1, but=place.writer.busy)
            return "lose" if number < 4 else ""

        place.fault = lose_first
        one.append(b"a" * LARGE)
        await place.done()
        assert all(len(each) == 1 for each in busy)
        assert place.store.requests["put"] == 1

    run(tmp_path, test)


def test_D1_a_stop_commits_and_acknowledges_nothing_more(tmp_path: Path) -> None:
    async def test(place: WrittenPlace) -> None:
        one, other = place.partitions
        place.store.hold()
        one.append(b"a" * LARGE)
        await until(lambda: place.store.requests["put"])
        place.may_ask.clear()
        other.append(b"small")
        await turns()
        other.append(b"more")
        ending = place.writer.cancel()
        assert len(ending) == 2
        await asyncio.gather(*ending, return_exceptions=True)
        place.may_ask.set()
        place.store.let_go()
        one.append(b"after")
        await asyncio.sleep(0.02)
        assert (one.acknowledged, other.acknowledged) == (0, 0)
        assert place.rows.load(one.key).entries == place.rows.load(other.key).entries == []

    run(tmp_path, test, partitions=2)


@pytest.mark.parametrize("size", [10, LARGE])
def test_S2_what_a_failed_commit_had_does_not_count_as_waiting_for_ever(tmp_path: Path, size: int) -> None:
    """A mistake in the program, and not in what it asks: the partitions are read again, and nothing behind counts."""

    async def test(place: WrittenPlace) -> None:
        (one,) = place.partitions
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

        def fail(entries: object) -> set[Any]:
            one.append(b"behind")
            raise ZeroDivisionError

        place.rows.commit = fail  # type: ignore[method-assign]
        one.append(b"a" * size)
        await until(lambda: one.was_lost)
        await turns()
        assert one.acknowledged == 0
        assert place.writer.waiting_bytes == 0

    run(tmp_path, test)
