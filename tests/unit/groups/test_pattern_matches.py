"""S2, S3: members' regular expressions are matched once, in turns, within a budget."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from consumer_member import REBALANCE_MS, partitions, topic_id
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from group_driver import GroupDriver
from memory_log import MemoryLog
from ready_topic import topic_is_ready

from semel.group_coordinator.consumer import pattern_matches
from semel.group_coordinator.consumer.pattern_matches import (
    CLIENT_EFFORT_PER_SECOND,
    CLIENTS_MAX,
    EFFORT_PER_SECOND,
    PatternMatches,
)
from semel.group_coordinator.consumer.topics import PatternsNeededError, Topic, Topics
from semel.group_coordinator.coordinator import GroupCoordinator
from semel.protocol.api.consumer_groups import (
    JOIN_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from semel.protocol.api.groups import OffsetDeleteRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import ManualClock
from semel.runtime.linear_regex import EFFORT_MAX, LinearPattern

COSTLY = "(?i)" + "[a-z]{0,30}" * 20
"""Some 1,800 states, of which most are looked at for each character."""
LONG_NAMES = [f"t{'a' * 200}{number}" for number in range(30)]


class Known:
    """The topics of a node, which come and go, and what was looked at to match expressions."""

    def __init__(self, *names: str) -> None:
        self.clock = ManualClock()
        self.matches = PatternMatches(self.clock)
        self.topics = Topics()
        self.have(*names)

    def have(self, *names: str) -> None:
        self.topics = Topics([Topic(name, topic_id(name), 1) for name in names], self.matches)

    async def match(self, *expressions: str, client: str = "10.0.0.1") -> None:
        await self.matches.match(expressions, lambda: self.topics, client)

    async def refusal(self, expression: str, client: str = "10.0.0.1") -> RetriableError:
        with pytest.raises(RetriableError) as caught:
            await self.match(expression, client=client)
        return caught.value


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are matched, one after the other."""
    names: list[str] = []
    walk = LinearPattern.walk

    def noted(self: LinearPattern, name: str) -> Any:
        names.append(name)
        return walk(self, name)

    monkeypatch.setattr(LinearPattern, "walk", noted)
    return names


async def flood(known: Known, client_of: Callable[[int], str]) -> RetriableError:
    """Send different costly expressions until one is refused."""
    for number in range(1_000):
        try:
            await known.match(f"{COSTLY}{number}", client=client_of(number))
        except RetriableError as error:
            return error
    raise AssertionError("none was refused")


class NoTransactions:
    """A transaction coordinator that nobody asks."""

    async def add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        raise AssertionError(request)

    async def verify(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        raise AssertionError(request)


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test, 60)

    asyncio.run(main())


def test_S2_an_expression_is_matched_once_for_all_who_use_it(walked: list[str]) -> None:
    async def test() -> None:
        known = Known("orders", "orders-eu", "payments")
        assert known.topics.unmatched(["orders.*"]) == ("orders.*",)
        assert known.topics.matching("orders.*") == frozenset()
        await asyncio.gather(*(known.match("orders.*", client=str(number)) for number in range(20)))
        assert known.topics.unmatched(["orders.*"]) == ()
        assert known.topics.matching("orders.*") == {"orders", "orders-eu"}
        assert sorted(walked) == ["orders", "orders-eu", "payments"]

    run(test())


def test_S2_of_new_topics_only_those_are_matched(walked: list[str]) -> None:
    async def test() -> None:
        known = Known("orders", "payments")
        await known.match("orders.*", "pay.*")
        walked.clear()
        known.have("orders", "orders-us", "__consumer_offsets")
        assert known.topics.unmatched(["orders.*"]) == ("orders.*",)
        await known.match("orders.*")
        assert walked == ["orders-us"]
        assert known.topics.matching("orders.*") == {"orders", "orders-us"}
        known.have("orders-us")
        assert known.topics.unmatched(["orders.*"]) == ()
        assert not known.topics.may_match("orders.*", "orders")
        assert known.topics.may_match("orders.*", "orders-us")
        # What was matched before is remembered, for a topic that is made again as well.
        known.have("orders", "orders-us")
        await known.match("orders.*", "pay.*")
        assert known.topics.matching("orders.*") == {"orders", "orders-us"}
        assert known.topics.matching("pay.*") == frozenset()

    run(test())


def test_S2_more_new_topics_than_are_remembered_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_matches, "NEW_NAMES_MAX", 3)

    async def test() -> None:
        known = Known("t0")
        await known.match("t.")
        names = [f"t{number}" for number in range(9)]
        known.have(*names)
        await known.match("t.")
        assert known.topics.matching("t.") == set(names)

    run(test())


def test_S2_a_client_that_used_up_its_budget_is_refused_and_others_are_not() -> None:
    async def test() -> None:
        known = Known(*LONG_NAMES)
        refusal = await flood(known, lambda number: "10.0.0.1")
        assert refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert "10.0.0.1" in refusal.message
        statistics = known.matches.statistics()
        assert statistics.patterns < 10
        assert statistics.refused == 1
        used = statistics.effort
        await known.match("t.*", client="10.0.0.2")
        assert known.topics.matching("t.*") == set(LONG_NAMES)
        # What is known is known for everybody.
        await known.match("t.*")
        known.clock.advance(ms=used * 1000 // CLIENT_EFFORT_PER_SECOND)
        await known.match("t.*1")

    run(test())


def test_S2_all_clients_together_have_a_budget() -> None:
    async def test() -> None:
        known = Known(*LONG_NAMES)
        refusal = await flood(known, lambda number: f"10.0.0.{number}")
        assert "of all clients" in refusal.message
        effort = known.matches.statistics().effort
        assert effort < pattern_matches.TOTAL_EFFORT_MAX + 2 * EFFORT_MAX
        await known.refusal("t.*", client="10.1.0.0")
        known.clock.advance(ms=(effort - pattern_matches.TOTAL_EFFORT_MAX) * 1000 // EFFORT_PER_SECOND + 1)
        await known.match("t.*", client="10.1.0.0")

    run(test())


def test_S2_clients_with_a_budget_of_their_own_are_bounded() -> None:
    async def test() -> None:
        known = Known("orders")
        for number in range(CLIENTS_MAX + 5):
            await known.match(f"o{{{number % 9}}}{number}", client=str(number))
        assert len(known.matches._clients) == CLIENTS_MAX

    run(test())


def test_S2_results_are_bounded_in_number_and_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_matches, "PATTERNS_MAX", 4)
    monkeypatch.setattr(pattern_matches, "NAMES_MAX", 25)

    async def test() -> None:
        known = Known(*(f"t{number}" for number in range(10)))
        await known.match(*(f"none{number}" for number in range(9)))
        assert known.matches.statistics().patterns == 4
        await known.match("t.", "t.*", ".*")
        statistics = known.matches.statistics()
        assert (statistics.patterns, statistics.names) == (2, 20)
        # The one that was used longest ago made room.
        assert known.topics.unmatched(["t.", "t.*", ".*"]) == ("t.",)

    run(test())


def test_S3_a_costly_expression_is_matched_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one name, too: it may take a tenth of a second."""
    every_look_takes_a_millisecond(monkeypatch)

    async def test() -> None:
        known = Known(LONG_NAMES[0])
        _, rounds = await rounds_of_the_loop(known.match(COSTLY))
        assert rounds >= 30

    run(test())


def _scrambled(number: int) -> str:
    bits = int.from_bytes(hashlib.sha256(b"%d" % number).digest(), "big")
    return format(bits, "0249b")[-249:].replace("0", "a").replace("1", "b")


def test_S2_an_expression_that_is_too_costly_for_all_topics_is_refused() -> None:
    async def test() -> None:
        known = Known()
        known.topics = Topics(
            [Topic(_scrambled(number), topic_id(str(number)), 1) for number in range(500)], known.matches
        )
        # Where in a name the last hundred letters `a` stood makes each state different from any other.
        costly = ".*a[ab]{100}c"
        await known.match("[ab]*", costly)
        known.topics.check_pattern("[ab]*")
        assert len(known.topics.matching("[ab]*")) == 500
        with pytest.raises(ValueError, match="simplify"):
            known.topics.check_pattern(costly)
        assert known.topics.matching(costly) == frozenset()

    run(test())


def test_an_expression_that_cannot_be_read_is_remembered_too(walked: list[str]) -> None:
    async def test() -> None:
        known = Known("orders")
        await known.match("(")
        await known.match("(")
        with pytest.raises(ValueError, match="'\\('"):
            known.topics.check_pattern("(")
        assert known.topics.matching("(") == frozenset()
        assert not walked

    run(test())


# --- With the machine, and the shell around it ------------------------------------------------------------------------


def heartbeat(member_id: str = "m1", **changes: Any) -> ConsumerGroupHeartbeatRequest:
    request = ConsumerGroupHeartbeatRequest(
        "enrich",
        member_id,
        JOIN_EPOCH,
        rebalance_timeout_ms=REBALANCE_MS,
        topic_regex="orders.*",
        owned=frozenset(),
        client_host="10.0.0.1",
    )
    return replace(request, **changes)


def stays(epoch: int, member_id: str = "m1") -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest("enrich", member_id, epoch, client_host="10.0.0.1")


def test_S3_a_machine_matches_nothing_itself_and_writes_nothing_before_it_knows() -> None:
    async def test() -> None:
        known = Known("orders")
        driver = GroupDriver(topics=known.topics)
        with pytest.raises(PatternsNeededError) as caught:
            driver.ask(heartbeat())
        assert caught.value.expressions == ("orders.*",)
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert not driver.log
        await known.match("orders.*")
        assert driver.ask(heartbeat()).assignment == partitions("orders", 0)

    run(test())


def test_S3_what_the_clock_does_meanwhile_takes_nothing_from_members_whose_topics_are_not_known() -> None:
    async def test() -> None:
        known = Known("orders")
        await known.match("orders.*", "pay.*")
        driver = GroupDriver(topics=known.topics)
        first: ConsumerGroupHeartbeatResponse = driver.ask(heartbeat())
        driver.ask(heartbeat("m2", topic_regex="pay.*"))
        known.have("orders", "orders-eu")
        driver.topics = known.topics
        session_ms = driver.config.group_consumer_session_timeout_ms
        driver.advance(session_ms - 1)
        # It is refused, and yet it was heard of.
        with pytest.raises(PatternsNeededError):
            driver.ask(stays(first.member_epoch))
        driver.advance(2)
        machine_group = driver.machine.consumer_group("enrich")
        assert machine_group is not None
        assert list(machine_group.details) == ["m1"]
        assert machine_group.target("m1") == partitions("orders", 0)
        await known.match("orders.*")
        response = driver.ask(stays(first.member_epoch))
        assert response.assignment == partitions("orders", 0) | partitions("orders-eu", 0)
        assert machine_group.metadata_hash == known.topics.hash_of(["orders", "orders-eu"])

    run(test())


def test_topics_that_do_not_concern_a_group_begin_no_epoch_when_the_clock_removes_a_member() -> None:
    async def test() -> None:
        known = Known("orders")
        await known.match("orders.*", "pay.*")
        driver = GroupDriver(topics=known.topics)
        driver.ask(heartbeat())
        driver.ask(heartbeat("m2", topic_regex="pay.*"))
        group = driver.machine.consumer_group("enrich")
        assert group is not None
        driver.ask(stays(group.currents["m1"].epoch))
        known.have("orders", "other")
        driver.topics = known.topics
        epoch, session_ms = group.epoch, driver.config.group_consumer_session_timeout_ms
        driver.advance(session_ms - 1)
        with pytest.raises(PatternsNeededError):
            driver.ask(stays(group.currents["m1"].epoch))
        driver.advance(2)
        await known.match("orders.*")
        driver.ask(stays(group.currents["m1"].epoch))
        assert (list(group.details), group.epoch) == (["m1"], epoch + 1)

    run(test())


def test_offsets_of_topics_that_may_match_are_not_deleted() -> None:
    async def test() -> None:
        known = Known("orders")
        await known.match("orders.*")
        driver = GroupDriver(topics=known.topics)
        driver.ask(heartbeat())
        known.have("orders", "orders-eu")
        driver.topics = known.topics
        tp = TopicPartition("orders-eu", 0)
        asked = OffsetDeleteRequest("enrich", (tp,))
        assert driver.ask(asked).errors[tp] is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

    run(test())


def serving(test: Callable[[GroupCoordinator, Known], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        known = Known("orders", "payments")
        logs = {number: MemoryLog() for number in range(2)}
        service = GroupCoordinator(
            partition_count=lambda: 2,
            open_log=logs.__getitem__,
            topic_ready=topic_is_ready,
            transactions=NoTransactions(),
            clock=known.clock,
            topics=lambda: known.topics,
            patterns=known.matches,
        )
        for number in logs:
            await service.load(number, 0)
        try:
            await test(service, known)
        finally:
            service.close()

    run(main())


def test_S3_the_shell_matches_what_the_machine_needs() -> None:
    async def test(service: GroupCoordinator, known: Known) -> None:
        first = await service.consumer_heartbeat(heartbeat())
        assert first.assignment == partitions("orders", 0)
        known.have("orders", "orders-eu", "payments")
        again = await service.consumer_heartbeat(stays(first.member_epoch))
        assert again.assignment == partitions("orders", 0) | partitions("orders-eu", 0)

    serving(test)


def test_S2_a_flood_of_expressions_is_refused_and_members_stay() -> None:
    async def test(service: GroupCoordinator, known: Known) -> None:
        first = await service.consumer_heartbeat(heartbeat())
        known.have("orders", "payments", *LONG_NAMES)
        codes = []
        for number in range(30):
            flood = heartbeat(f"x{number}", group_id="flood", topic_regex=f"{COSTLY}{number}")
            try:
                await service.consumer_heartbeat(flood)
            except SemelError as error:
                codes.append(error.code)
        assert set(codes) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert len(codes) > 20
        assert known.matches.statistics().refused == len(codes)
        # A member at another address is not concerned, nor is a wish by names.
        moved = replace(stays(first.member_epoch), client_host="10.0.0.2")
        assert (await service.consumer_heartbeat(moved)).member_epoch == first.member_epoch
        named = heartbeat("named", group_id="other", topic_regex=None, topic_names=("payments",))
        assert (await service.consumer_heartbeat(named)).assignment == partitions("payments", 0)

    serving(test)
