"""How changes of `_schemas` are decided: on all there is, or again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from semel.testing import Broker
from semel.web.gateway import Caller, Gateway
from semel.web.registry.log import TRANSACTIONAL_ID, SchemaLog
from semel.web.registry.records import Content, Event, SchemaStored
from semel.web.registry.state import RegistryState


class Writer:
    """A gateway that gives the next id, and does something else between deciding and writing, the first time."""

    def __init__(self, broker: Broker, subject: str) -> None:
        self.state = RegistryState()
        self.gateway = Gateway(broker.bootstrap)
        self.log = SchemaLog(self.gateway, self.state.replay, self.state.clear)
        self.decisions = 0
        self._subject = subject

    async def register(self, meanwhile: Writer | None = None, broker: Broker | None = None) -> None:
        async def decide() -> Sequence[Event]:
            self.decisions += 1
            decided = SchemaStored(self._subject, 1, self.state.highest_id(".") + 1, Content("AVRO", '"int"'))
            if self.decisions == 1 and meanwhile is not None:
                await meanwhile.register()
            if self.decisions == 1 and broker is not None:
                await asyncio.to_thread(broker.fence_producer, TRANSACTIONAL_ID)
            return [decided]

        await self.log.change(Caller(), decide)


def ids(broker: Broker) -> list[int]:
    return [json.loads(record.value or b"")["id"] for record in broker.records("_schemas")]


def test_a_gateway_that_decided_on_less_than_everything_decides_again() -> None:
    async def run(broker: Broker) -> None:
        slow, quick = Writer(broker, "slow"), Writer(broker, "quick")
        try:
            await slow.register(meanwhile=quick)
            assert (slow.decisions, quick.decisions) == (2, 1)
            assert [slow.state.highest_id("."), ids(broker)] == [2, [1, 2]]
        finally:
            await slow.gateway.close()
            await quick.gateway.close()

    with Broker() as broker:
        asyncio.run(run(broker))


def test_a_gateway_that_takes_the_topic_over_reads_first_what_others_wrote() -> None:
    async def run(broker: Broker) -> None:
        behind, other = Writer(broker, "behind"), Writer(broker, "other")
        reads, waits = asyncio.Event(), asyncio.Event()
        try:
            await behind.log.ready()
            consumer = behind.log._follower._consumer
            assert consumer is not None
            poll = consumer.poll

            async def held(*given: float) -> object:
                waits.set()
                await reads.wait()
                return await poll(*given)

            consumer.poll = held  # type: ignore[method-assign, assignment]
            await waits.wait()
            await other.register()
            registering = asyncio.create_task(behind.register())
            await asyncio.wait({registering}, timeout=0.5)  # so long it could decide, if it did not read first
            reads.set()
            await registering
            assert ids(broker) == [1, 2]
        finally:
            reads.set()
            await behind.gateway.close()
            await other.gateway.close()

    with Broker() as broker:
        asyncio.run(run(broker))


def test_a_gateway_that_is_fenced_while_it_decides_writes_once() -> None:
    async def run(broker: Broker) -> None:
        writer = Writer(broker, "s")
        try:
            await writer.register(broker=broker)
            assert writer.decisions == 2
            assert ids(broker) == [1]
        finally:
            await writer.gateway.close()

    with Broker() as broker:
        asyncio.run(run(broker))


def test_what_was_written_is_applied_when_the_change_returns() -> None:
    async def run(broker: Broker) -> None:
        writer = Writer(broker, "s")
        try:
            for number in range(1, 6):
                await writer.register()
                assert writer.state.highest_id(".") == number
        finally:
            await writer.gateway.close()

    with Broker() as broker:
        asyncio.run(run(broker))


def test_a_record_that_can_not_be_applied_does_not_stop_what_comes_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run(broker: Broker) -> None:
        writer, later = Writer(broker, "s"), Writer(broker, "t")
        replay = later.state.replay

        def refuses_the_first(event: Event) -> None:
            if isinstance(event, SchemaStored) and event.subject == "s":
                raise KeyError("a mistake")
            replay(event)

        later.log = SchemaLog(later.gateway, refuses_the_first, later.state.clear)
        try:
            await writer.register()
            await asyncio.wait_for(later.register(), 20)
            assert later.state.subjects() == ["t"]
        finally:
            await writer.gateway.close()
            await later.gateway.close()

    with Broker() as broker:
        asyncio.run(run(broker))
    assert "the record at offset 0 of _schemas is passed over, because it can't be applied" in caplog.text


def test_a_topic_that_is_made_again_is_read_from_its_start() -> None:
    """Gateways that have read the old one, which had more records, agree on what is in the new one."""

    async def run(broker: Broker) -> None:
        one, other, late = Writer(broker, "one"), Writer(broker, "other"), Writer(broker, "late")
        try:
            for _ in range(3):
                await one.register()
            await other.register()
            assert ids(broker) == [1, 2, 3, 4]
            await asyncio.to_thread(broker.delete_topic, "_schemas")
            await asyncio.wait_for(one.register(), 10)  # it makes the topic, and does not wait for somebody to do so
            assert (one.state.subjects(), ids(broker)) == (["one"], [1])
            await other.register()
            assert (other.state.subjects(), ids(broker)) == (["one", "other"], [1, 2])
            await one.log.refresh()
            await late.log.ready()
            assert [each.state.subjects() for each in (one, late)] == [["one", "other"]] * 2
            assert [each.state.highest_id(".") for each in (one, other, late)] == [2, 2, 2]
        finally:
            for each in (one, other, late):
                await each.gateway.close()

    with Broker() as broker:
        asyncio.run(run(broker))


def test_a_refresh_forgets_a_topic_that_was_deleted() -> None:
    async def run(broker: Broker) -> None:
        one, other = Writer(broker, "one"), Writer(broker, "other")
        try:
            await one.register()
            await other.log.ready()
            assert other.state.subjects() == ["one"]
            await asyncio.to_thread(broker.delete_topic, "_schemas")
            await other.log.refresh()
            assert other.state.subjects() == []
        finally:
            await one.gateway.close()
            await other.gateway.close()

    with Broker() as broker:
        asyncio.run(run(broker))
