"""Elections, fences, registrations and in-sync proposals in any order, against a model of the logs (R1, R4, R5).

A node that is in sync, eligible or elected has every committed record; an epoch has one leader; epochs never go back.
"""

from __future__ import annotations

import pytest
from replica_model import World

WORLDS = 40


@pytest.mark.parametrize("block", range(10))
def test_R1_R4_R5_who_may_lead_has_every_committed_record(block: int) -> None:
    """The message of a failure ends with the seed of its world."""
    for seed in range(block * WORLDS, (block + 1) * WORLDS):
        world = World(seed)
        try:
            for _ in range(world.random.choice([60, 150, 300])):
                world.step()
            world.heal()
        except AssertionError as error:
            raise AssertionError(f"{error} (seed {seed})") from error
