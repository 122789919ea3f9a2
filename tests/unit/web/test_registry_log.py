"""How changes of `_schemas` are decided: on all there is, or again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

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
        self.log = SchemaLog(self.gateway, self.state.replay)
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
