"""What clients are made to wait for, and what is remembered of them, with a clock that moves when it is told to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from semel.broker.config.quotas import QuotaConfig
from semel.broker.quotas import client_quotas as module
from semel.broker.quotas.client_quotas import ClientQuotas, QuotaType
from semel.broker.quotas.request_usage import Measured, RequestUsage
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.quotas import QuotaEntity
from semel.runtime.clock import ManualClock

CLOCK_START_S = 1_000


class World:
    """Quotas, a clock, and how long a channel was muted."""

    def __init__(self, quotas: dict[QuotaEntity, dict[str, float]]) -> None:
        self.clock = ManualClock()
        self.clock.advance(ms=CLOCK_START_S * 1_000)
        self.image = SimpleNamespace(client_quotas=quotas)
        self.quotas = ClientQuotas(QuotaConfig(), SimpleNamespace(image=self.image), self.clock)
        self.muted_s: list[float] = []

    def mute(self, seconds: float) -> None:
        self.muted_s.append(seconds)

    def request(self, user: str = "alice", client_id: str = "app", size: int = 0) -> RequestUsage:
        client = self.quotas.of(user, client_id)
        assert client is not None
        return RequestUsage(client, self, size)


ALICE = QuotaEntity("alice")


def test_without_a_quota_nothing_is_measured_and_nothing_remembered() -> None:
    world = World({})
    assert world.quotas.of("alice", "app") is None
    assert world.quotas.connection_wait_s("10.0.0.1") == 0.0
    others = World({QuotaEntity("bob"): {"producer_byte_rate": 1.0}, QuotaEntity(ip="10.0.0.2"): {}})
    assert others.quotas.of("alice", "app") is None
    assert others.quotas.connection_wait_s("10.0.0.1") == 0.0
    assert (world.quotas.remembered, others.quotas.remembered) == (0, 0)


def test_a_producer_waits_for_what_is_beyond_its_quota() -> None:
    world = World({ALICE: {"producer_byte_rate": 100.0}})
    assert world.request(size=1_000).produced() == 0
    assert world.request(client_id="another", size=500).produced() == 5_000, "a user's quota is for all his client ids"
    assert world.muted_s == [5.0]
    assert world.quotas.throttled[QuotaType.PRODUCE] == 1
    assert world.quotas.throttled_s[QuotaType.PRODUCE] == 5.0
    world.clock.advance(ms=11_000)
    assert world.request(size=1_000).produced() == 0


def test_a_default_is_for_each_one_by_himself() -> None:
    world = World({QuotaEntity("", ""): {"producer_byte_rate": 100.0}})
    assert world.request("alice", "app", 1_100).produced() > 0
    assert world.request("alice", "other", 1_000).produced() == 0
    assert world.request("bob", "app", 1_000).produced() == 0


def test_what_would_be_too_much_is_not_sent_to_a_reader_and_not_counted() -> None:
    world = World({ALICE: {"consumer_byte_rate": 100.0}})
    assert world.request().bytes_max() == 1_000
    assert world.request().fetched(900) == 0
    waits = [world.request().fetched(200) for _ in range(3)]
    assert waits == [1_000] * 3, "what was not sent does not count"
    world.clock.advance(ms=11_000)
    assert world.request().fetched(200) == 0


def test_a_batch_larger_than_the_quota_ever_allows_is_read_all_the_same() -> None:
    world = World({ALICE: {"consumer_byte_rate": 10.0}})
    assert world.request().fetched(5_000) == 0
    assert world.request().fetched(1) > 0


def test_the_time_of_requests_counts_and_makes_wait_for_no_more_than_a_window() -> None:
    world = World({ALICE: {"request_percentage": 1.0}})
    usage = world.request()
    usage.begin()
    world.clock.advance(ms=100)
    usage.pause()
    world.clock.advance(ms=5_000)
    assert usage.answered() == 0, "100 ms in ten seconds are the 1 % that it may take"
    usage = world.request()
    usage.begin()
    world.clock.advance(ms=700)
    assert usage.answered() == usage.answered() == 1_000
    assert world.muted_s == [1.0]


def test_records_that_are_withheld_for_the_time_of_requests_do_not_count() -> None:
    world = World({ALICE: {"request_percentage": 1.0, "consumer_byte_rate": 100.0}})
    usage = world.request()
    usage.begin()
    world.clock.advance(ms=500)
    assert usage.fetched(900) == 1_000
    world.clock.advance(ms=30_000)
    assert world.request().fetched(500) == 0
    assert world.request().fetched(500) == 0


def test_a_coroutine_counts_while_the_loop_works_on_it() -> None:
    world = World({ALICE: {"request_percentage": 1.0}})
    usage = world.request()

    async def handle(fails: bool) -> str:
        world.clock.advance(ms=10)
        await asyncio.sleep(0)
        world.clock.advance(ms=10)
        if fails:
            raise RetriableError("no")
        return "answer"

    async def others() -> None:
        world.clock.advance(ms=90_000)

    async def main() -> None:
        task = asyncio.ensure_future(others())
        assert await Measured(handle(False), usage.begin, usage.pause) == "answer"
        await task
        with pytest.raises(RetriableError):
            await Measured(handle(True), usage.begin, usage.pause)
        hanging = asyncio.ensure_future(awaited(asyncio.Event()))
        await asyncio.sleep(0)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging

    async def awaited(event: asyncio.Event) -> None:
        async def wait() -> None:
            await event.wait()

        await Measured(wait(), usage.begin, usage.pause)

    asyncio.run(main())
    assert usage._spent() == pytest.approx(0.04)


@pytest.mark.parametrize("strict", [True, False])
def test_changes_beyond_the_quota_are_refused_or_paid_for_by_waiting(strict: bool) -> None:
    world = World({ALICE: {"controller_mutation_rate": 2.0}})
    usage = world.request()
    mutations = usage.counted_mutations(strict=strict)
    mutations.take("a", 22)
    mutations.take("a", 22)  # decided on again: the metadata had changed meanwhile
    mutations.take("b", 6)
    if not strict:
        mutations.take("c", 1)
        assert usage.answered() == 3_500
        assert world.muted_s == [3.5]
        return
    with pytest.raises(RetriableError) as refused:
        mutations.take("c", 1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert usage.answered() == 3_000
    assert world.muted_s == [], "who is refused may ask for something else at once"
    world.clock.advance(ms=3_000)
    again = world.request().counted_mutations(strict=True)
    again.take("c", 1)


def test_connections_of_an_address_are_closed_later_beyond_its_quota() -> None:
    world = World({QuotaEntity(ip=""): {"connection_creation_rate": 1.0}})
    waits = [world.quotas.connection_wait_s("10.0.0.1") for _ in range(12)]
    assert waits[:10] == [0.0] * 10
    assert waits[10:] == [1.0, 1.0], "a connection that was not served does not count, and none waits for longer"
    assert world.quotas.connection_wait_s("10.0.0.2") == 0.0
    assert world.quotas.connection_wait_s("::ffff:10.0.0.1") == 1.0


def test_another_quota_counts_from_the_next_request_on() -> None:
    world = World({ALICE: {"producer_byte_rate": 100.0}})
    told: list[bool] = []
    world.quotas.on_change(lambda: told.append(world.quotas.is_on))
    assert world.request(size=1_500).produced() == 5_000
    world.image.client_quotas = {ALICE: {"producer_byte_rate": 1_000.0}}
    world.quotas.update()
    assert world.request(size=1_500).produced() == 0, "what was taken before is remembered, by the new bound"
    world.image.client_quotas = {}
    world.quotas.update()
    assert world.quotas.of("alice", "app") is None
    assert told == [True, False]


def test_S2_what_strangers_choose_is_bounded_and_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 50)
    monkeypatch.setattr(module, "CLIENTS_MAX", 40)
    world = World({QuotaEntity(None, ""): {"producer_byte_rate": 100.0}})
    for number in range(500):
        world.request(client_id=f"made-up-{number}", size=2_000).produced()
        world.request(client_id="used", size=1).produced()
    assert world.quotas.remembered == 50
    assert len(world.quotas._clients) == 40
    assert world.request(client_id="used", size=600).produced() > 0, "who is active is not forgotten for others"
    world.clock.advance(ms=11_000)
    world.quotas.forget_idle()
    assert world.quotas.remembered == 0


def test_S2_long_client_ids_are_cut() -> None:
    world = World({QuotaEntity(None, ""): {"producer_byte_rate": 100.0}, QuotaEntity(None, "x" * 255): {}})
    world.request(client_id="x" * 30_000, size=1_100).produced()
    assert all(len(client_id) < 300 for _, client_id in world.quotas._clients)


def test_a_bucket_that_was_far_overdrawn_is_not_forgotten_before_it_is_full() -> None:
    world = World({ALICE: {"controller_mutation_rate": 1.0}})
    world.request().counted_mutations(strict=True).take("a", 100)
    world.clock.advance(ms=20_000)
    world.quotas.forget_idle()
    with pytest.raises(RetriableError):
        world.request().counted_mutations(strict=True).take("b", 1)
