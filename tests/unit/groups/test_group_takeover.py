"""What comes between the reading of a partition of groups and its first request: topics that are gone are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from coordinator_node import Node
from group_driver import GROUP, commit, fetch
from memory_log import MemoryLog
from ready_topic import topic_is_ready

from semel.group_coordinator.coordinator import GroupCoordinator
from semel.protocol.api.groups import ListGroupsRequest
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import ManualClock

P0, Q0, R0 = (TopicPartition(name, 0) for name in ("orders", "payments", "returns"))


class Topics:
    """Tells what topics there are, once it may; fails as often as the test says."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)
        self.failures = 0
        self.asked = asyncio.Event()
        self.may_tell = asyncio.Event()

    async def __call__(self) -> frozenset[str]:
        self.asked.set()
        await self.may_tell.wait()
        if self.failures:
            self.failures -= 1
            raise RetriableError("the metadata can't be read")
        return self.names


def coordinator() -> GroupCoordinator:
    log = MemoryLog()
    return GroupCoordinator(
        partition_count=lambda: 1,
        open_log=lambda _: log,
        topic_ready=topic_is_ready,
        transactions=Node().service,
        clock=ManualClock(),
    )


async def refusal(groups: GroupCoordinator) -> ErrorCode:
    try:
        await groups.fetch_offsets(fetch(P0, group=GROUP))
    except SemelError as error:
        return error.code
    return ErrorCode.NONE


async def offsets(groups: GroupCoordinator) -> list[int]:
    found = (await groups.fetch_offsets(fetch(P0, Q0, R0, group=GROUP))).offsets
    return [found[tp].offset for tp in (P0, Q0, R0)]


def run(test: Callable[[GroupCoordinator, Topics], Awaitable[None]]) -> None:
    async def main() -> None:
        groups = coordinator()
        await groups.load(0, 1)
        await groups.commit_offsets(commit({P0: 5, Q0: 6, R0: 7}, group=GROUP))
        async with asyncio.timeout(60):
            await test(groups, Topics(P0.topic, Q0.topic))
        groups.close()

    asyncio.run(main())


def test_nobody_is_served_before_the_offsets_of_topics_that_are_gone_are_forgotten() -> None:
    """A topic that is made again under its name would be read from where the old one's offsets say."""

    async def test(groups: GroupCoordinator, topics: Topics) -> None:
        loading = groups.load(0, 4, topics)
        await topics.asked.wait()
        assert await refusal(groups) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert groups.shard_states() == {"active": 0, "loading": 1, "unreadable": 0}
        assert groups.partitions_away() == {0: ""}
        assert not loading.done()
        topics.may_tell.set()
        await loading
        assert await offsets(groups) == [5, 6, -1]
        assert groups.partitions_away() == {}
        assert groups.shard_states()["active"] == 1

    run(test)


def test_a_topic_that_is_deleted_while_a_partition_is_read_is_forgotten_too() -> None:
    async def test(groups: GroupCoordinator, topics: Topics) -> None:
        loading = groups.load(0, 4, topics)
        await topics.asked.wait()
        await groups.topics_deleted([P0.topic])
        topics.may_tell.set()
        await loading
        assert await offsets(groups) == [-1, 6, -1]

    run(test)


def test_where_the_topics_can_not_be_told_it_is_tried_again() -> None:
    async def test(groups: GroupCoordinator, topics: Topics) -> None:
        topics.failures = 1
        topics.may_tell.set()
        await groups.load(0, 4, topics)
        assert topics.failures == 0
        assert await offsets(groups) == [5, 6, -1]

    run(test)


def test_who_gives_a_partition_up_meanwhile_waits_no_more_and_says_whose_it_is() -> None:
    async def test(groups: GroupCoordinator, topics: Topics) -> None:
        loading = groups.load(0, 4, topics)
        await topics.asked.wait()
        groups.unload(0)
        await asyncio.wait([loading])
        assert await refusal(groups) is ErrorCode.NOT_COORDINATOR
        assert (await groups.list(ListGroupsRequest())).groups == ()
        await groups.load(0, 5)
        assert await offsets(groups) == [5, 6, 7]

    run(test)
