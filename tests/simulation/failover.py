"""The database of the metadata fails over to a standby that is behind, in a world that lives on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.protocol.ids import INTERNAL_TOPICS
from simulation.actors import INPUT, OUTPUT

if TYPE_CHECKING:
    from simulation.nemesis import Fault, Stage

_NEEDED: Final = {INPUT, OUTPUT, *INTERNAL_TOPICS}
"""Topics that are not to be lost: no promise is left without them."""
_LOOK_S: Final = 0.05


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
            stage.later(fault.for_s, take_over)
        else:
            stage.later(_LOOK_S, fall_behind)

    def take_over() -> None:
        if not stage.is_healed:
            for node in world.nodes.values():
                node.operator_accepts_after_s = fault.amount / 1000
            lost = database.fail_over()
            world.told(f"the database has failed over, and lost {lost} changes")

    fall_behind()
