"""What a node gives up while its disk refuses producers: a part at a time, and what it says of its disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from chained_changes import chained
from three_nodes import ALL, TOPIC_ID, image_of

from semel.broker.metadata.changes import FULL_DISKS_VERSION, Change, PartitionState
from semel.broker.replication import full_disk
from semel.broker.replication.full_disk import AGAIN_S, FullDisk
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import ManualClock

ALONE = replace(ALL, isr=(1,))
"""Nobody else may lead."""


@dataclass(frozen=True)
class Led:
    """What is asked of a partition here."""

    topic_id: TopicId
    tp: TopicPartition


class Scene:
    """Node 1, which leads all; its metadata is changed at once."""

    broker_epoch = 1

    def __init__(self, *states: PartitionState) -> None:
        self.image = image_of(*states, version=FULL_DISKS_VERSION)
        self.led: list[Any] = [Led(TOPIC_ID, TopicPartition("t", number)) for number in range(len(states))]
        self.clock = ManualClock()
        self.asked = 0
        self.fails = False
        self.is_refusing = True
        self.disk = FullDisk(1, self, self.clock, lambda: self.is_refusing)  # type: ignore[arg-type]

    async def change(self, decide: Callable[[Any], Sequence[Change]]) -> None:
        self.asked += 1
        if self.fails:
            raise error_for(ErrorCode.NETWORK_EXCEPTION, "the database is away")
        self.image = self.image.apply_all(chained(decide(self.image), self.image.position))

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.disk.look(self.led)

    def given_up(self) -> list[int]:
        return [number for number, state in enumerate(self.image.topics["t"].partitions) if state.leader != 1]


def test_R4_many_are_given_up_in_parts_and_those_that_stay_keep_nothing_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(full_disk, "TOGETHER_MAX", 30)

    async def run() -> None:
        scene = Scene(*[ALONE] * 50, *[ALL] * 70)
        await scene.look()
        assert len(scene.given_up()) == 30
        await scene.look(5)
        assert scene.given_up() == list(range(50, 120))
        assert scene.asked == 3, "what nobody else can lead is no reason to ask again"
        assert scene.image.brokers[1].is_full

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == ["30", "30", "10"]


def test_R4_what_others_can_lead_later_is_given_up_then() -> None:
    async def run() -> None:
        scene = Scene(ALONE)
        await scene.look(2)
        assert (scene.given_up(), scene.asked) == ([], 1)
        after = image_of(ALL, version=FULL_DISKS_VERSION, full=(1,))
        scene.image = after
        await scene.look(2)
        assert (scene.given_up(), scene.asked) == ([0], 2)

    asyncio.run(run())


def test_a_database_that_is_away_is_asked_again_later() -> None:
    async def run() -> None:
        scene = Scene(ALL)
        scene.fails = True
        await scene.look(3)
        assert scene.asked == 1
        scene.fails = False
        scene.clock.advance(ms=round(AGAIN_S * 1000))
        await scene.look()
        assert (scene.given_up(), scene.asked) == ([0], 2)

    asyncio.run(run())


def test_room_is_told_once_and_nothing_is_asked_while_there_is_some(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        scene = Scene(ALL)
        await scene.look()
        scene.is_refusing = False
        await scene.look(3)
        assert scene.asked == 2
        assert not scene.image.brokers[1].is_full

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert sum("has room again" in record.getMessage() for record in caplog.records) == 1
