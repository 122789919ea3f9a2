"""The database of the metadata fails over to a standby that is behind, in a world that lives on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import semel.aio
from semel.protocol.errors import SemelError
from semel.protocol.ids import INTERNAL_TOPICS
from simulation.actors import INPUT, OUTPUT

if TYPE_CHECKING:
    from simulation.nemesis import Fault, Stage
    from simulation.world import World

_NEEDED: Final = {INPUT, OUTPUT, *INTERNAL_TOPICS}
"""Topics that are not to be lost: no promise is left without them."""
_LOOK_S: Final = 0.05
_BEGIN_S: Final = 1.5
"""How long clients have to begin again before the standby takes over."""
AFTER_RESTART: Final = "fail-over of the database after a restart"
"""The kind of fault in which clients have new producer ids, which the standby has not given."""


def fail_over(stage: Stage, fault: Fault) -> None:
    """What the standby lacks is gone for good: registrations, producer ids, topics that were made, deleted, or changed.

    A node that has seen it stops, and does not start again until an operator accepts the loss.
    """
    world = stage.world
    database = world.database

    def fall_behind() -> None:
        if stage.is_healed:
            return
        if set(database.store_of_the_judge().load().topics) >= _NEEDED:
            database.keep_copy()
            world.client("operator").start(_make_topic(world, f"late-{world.scheduler.steps}"))
            if fault.kind == AFTER_RESTART:
                restart()
                stage.later(_BEGIN_S + fault.for_s, take_over)
            else:
                stage.later(fault.for_s, take_over)
        else:
            stage.later(_LOOK_S, fall_behind)

    def restart() -> None:
        for node in world.nodes.values():
            node.kill()
            node.start()
        for actor in stage.actors.values():
            actor.kill()

    def take_over() -> None:
        if not stage.is_healed:
            for node in world.nodes.values():
                node.operator_accepts_after_s = fault.amount / 1000
            lost = database.fail_over()
            world.told(f"the database has failed over, and lost {lost} changes")
            if fault.kind == AFTER_RESTART:
                # Those who are new ask for ids beside those who continue.
                for actor in list(stage.actors.values())[fault.amount % 2 :: 2]:
                    actor.kill()

    fall_behind()


async def _make_topic(world: World, topic: str) -> None:
    """Make a topic with something in it: the standby will not know it."""
    with suppress(SemelError):
        async with semel.aio.Admin(world.address("operator"), request_timeout_ms=1_000, api_timeout_ms=2_000) as admin:
            await admin.create_topic(topic, partitions=1)
        async with semel.aio.Producer(world.address("operator"), delivery_timeout_ms=2_000) as producer:
            await (await producer.send(topic, "kept aside"))
