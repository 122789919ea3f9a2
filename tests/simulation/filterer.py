"""A pipeline that makes nothing of what it reads: its transactions have offsets alone (O1)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import semel
from simulation.sdk_pipelines import Transformer

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

FILTERER_SHARE: Final = 0.25
"""How many worlds with one node have one."""


def has_filterer(world: World) -> bool:
    return len(world.nodes) == 1 and random.Random(f"filterer of {world.seed}").random() < FILTERER_SHARE


class Filterer(Transformer):
    """Its group has to come to the end of the input, so its commits have to count though nothing is written."""

    group = "filterers"

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int) -> None:
        super().__init__(world, ledger, name, partitions)
        self._think_s = random.Random(f"{name} of {world.seed}").choice((0.0, 0.01, 0.2))

    async def _handle(self, worker: str, record: semel.Record) -> semel.ProducerRecord | None:
        await self.think(self._think_s)
        return None
