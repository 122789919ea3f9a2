"""What an operator asks for of many partitions at once: each succeeds or fails for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition

DECIDED_TOGETHER: Final = 200
"""So many partitions are decided on by one change of the metadata: a few milliseconds of the event loop (S3)."""

Outcomes: TypeAlias = "dict[TopicPartition, SemelError | None]"


async def decide_on_each(
    node: Services,
    wanted: Sequence[TopicPartition],
    decide_one: Callable[[MetadataImage, TopicPartition], Sequence[Change]],
) -> Outcomes:
    """Return for each partition None, once its changes are made and carried out here, or what is wrong with it.

    decide_one: returns the changes for one partition, or raises `SemelError`. Called again for the same one where the
        metadata has changed meanwhile
    """
    outcomes: Outcomes = {}
    for first in range(0, len(wanted), DECIDED_TOGETHER):
        part = wanted[first : first + DECIDED_TOGETHER]

        def decide(image: MetadataImage, part: Sequence[TopicPartition] = part) -> list[Change]:
            changes: list[Change] = []
            for tp in part:
                outcomes[tp] = None
                try:
                    changes += decide_one(image, tp)
                except SemelError as error:
                    outcomes[tp] = error
            return changes

        try:
            await node.metadata.change(decide)
        except SemelError as error:  # the metadata can't be changed: what was decided before stays
            outcomes.update(dict.fromkeys(wanted[first:], error))
            break
    await node.caught_up()
    return outcomes
