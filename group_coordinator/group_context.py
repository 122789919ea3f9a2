"""What the groups of one partition of `__consumer_offsets` share: bounds, timers, and what they hold in memory."""

from __future__ import annotations

from dataclasses import dataclass

from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.effects import TimerKey
from semel.group_coordinator.held_bytes import HeldBytes, Room
from semel.runtime.deadlines import Deadlines


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The same for all groups of a machine. `held` is where what members hold is counted for all of them together."""

    config: GroupConfig
    timers: Deadlines[TimerKey]
    room: Room
    held: HeldBytes
