"""What a node leaves that it can't write: a part at a time, and it says what it left, and not what it stays in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from chained_changes import chained
from three_nodes import ALL, TOPIC_ID, image_of

from semel.broker.metadata.changes import Change
from semel.broker.replication import unwritable
from semel.broker.replication.unwritable import AGAIN_S, Reason, UnwritableReplicas
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import TopicId
from semel.runtime.clock import ManualClock

FULL = Reason("No space left on device")
TOO_FEW = replace(ALL, isr=(1, 3))


class Metadata:
    """The metadata of node 3, which is changed at once."""

    broker_epoch = 3

    def __init__(self, *states: Any) -> None:
        self.image = image_of(*states, min_isr=2)
        self.decisions = 0
        self.fails = False

    async def change(self, decide: Callable[[Any], Sequence[Change]]) -> None:
        self.decisions += 1
        if self.fails:
            raise error_for(ErrorCode.NETWORK_EXCEPTION, "the database is away")
        self.image = self.image.apply_all(chained(decide(self.image), self.image.position))

    def left(self) -> list[int]:
        return [number for number, state in enumerate(self.image.topics["t"].partitions) if 3 not in state.isr]


def first(count: int) -> dict[tuple[TopicId, int], Reason]:
    return {(TOPIC_ID, number): FULL for number in range(count)}


def made(metadata: Metadata, clock: ManualClock) -> UnwritableReplicas:
    return UnwritableReplicas(3, metadata, clock, lambda: 1)  # type: ignore[arg-type]


def test_R2_only_what_is_left_is_told_and_what_stays_is_looked_at_later(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        metadata, clock = Metadata(ALL, TOO_FEW), ManualClock()
        leaving = made(metadata, clock)
        with caplog.at_level(logging.ERROR):
            await leaving.leave(first(2))
        assert metadata.left() == [0]
        assert [record.getMessage().split(":")[0] for record in caplog.records] == ["t-0"]
        metadata.image = image_of(replace(ALL, isr=(1, 2)), ALL, min_isr=2)
        await leaving.leave(first(2))
        assert metadata.left() == [0], "it was just looked at"
        clock.advance(ms=round(AGAIN_S * 1000))
        await leaving.leave(first(2))
        assert metadata.left() == [0, 1]

    asyncio.run(run())


def test_many_are_left_in_parts_and_a_few_of_them_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unwritable, "TOGETHER_MAX", 30)

    async def run() -> None:
        metadata = Metadata(*[TOO_FEW] * 30, *[ALL] * 40)
        leaving = made(metadata, ManualClock())
        for _ in range(3):
            await leaving.leave(first(70))
        assert metadata.left() == list(range(30, 70)), "those that stay do not keep the others from leaving"
        assert metadata.decisions == 2

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert len(caplog.records) == 20 + 1 + 10
    assert "10 other partitions" in caplog.text


def test_a_database_that_is_away_is_asked_again_later() -> None:
    async def run() -> None:
        metadata, clock = Metadata(ALL), ManualClock()
        metadata.fails = True
        leaving = made(metadata, clock)
        await leaving.leave(first(1))
        metadata.fails = False
        clock.advance(ms=round(AGAIN_S * 1000))
        await leaving.leave(first(1))
        assert (metadata.left(), metadata.decisions) == ([0], 2)

    asyncio.run(run())


def test_what_was_left_and_what_others_do_not_have_keep_nothing_from_being_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were looked at again and again, and of many partitions the last ones never were."""
    monkeypatch.setattr(unwritable, "TOGETHER_MAX", 10)
    alone = replace(ALL, leader=3, replicas=(3,), isr=(3,))

    async def run() -> None:
        metadata, clock = Metadata(*[alone] * 50, *[ALL] * 200), ManualClock()
        leaving = made(metadata, clock)
        for _ in range(20):
            await leaving.leave(first(250))
            clock.advance(ms=round(AGAIN_S * 1000))
        assert metadata.left() == list(range(50, 250))

    asyncio.run(run())
