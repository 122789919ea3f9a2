"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455): replicas are moved to other nodes.

What a move is, and when it is complete, is decided in `broker/controller/moves.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from semel.broker.controller.membership import partitions_of, stopping_nodes
from semel.broker.controller.moves import begin_move, cancel_move
from semel.broker.handlers.newest import read_newest
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition


class Reassignment(NamedTuple):
    """A partition whose replicas are being moved.

    replicas: all that it has meanwhile, those that it is to have first
    adding, removing: those of them that the move has added and that stay, and those that leave at its end
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def reassign(
    node: Services, wanted: Mapping[TopicPartition, Sequence[int] | None], *, may_change_factor: bool = True
) -> dict[TopicPartition, SemelError | None]:
    """Move each partition's replicas to these nodes, the preferred leader first; None cancels a move that is under way.

    may_change_factor: there may be more or fewer replicas than before
    Returns for each None, or what is wrong with it. The moves have begun then, and go on by themselves. Raises
    `SemelError` where the metadata can't be changed.
    """
    outcomes: dict[TopicPartition, SemelError | None] = {}

    def decide(image: MetadataImage) -> list[Change]:
        outcomes.clear()
        changes: list[Change] = []
        min_isr, stopping = node.config.min_insync_replicas, stopping_nodes(image)
        for tp, replicas in wanted.items():
            try:
                changes += (
                    cancel_move(image, tp, default_min_isr=min_isr, stopping=stopping)
                    if replicas is None
                    else begin_move(
                        image,
                        tp,
                        replicas,
                        default_min_isr=min_isr,
                        stopping=stopping,
                        may_change_factor=may_change_factor,
                    )
                )
            except SemelError as error:
                outcomes[tp] = error
            else:
                outcomes[tp] = None
        return changes

    await node.metadata.change(decide)
    await node.caught_up()
    return outcomes


async def reassignments(
    node: Services, wanted: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """Return the partitions that are being moved, all or those of `wanted`, by the newest metadata that can be read."""
    await read_newest(node)
    image = node.metadata.image
    if wanted is None:
        found = ((TopicPartition(topic.name, number), state) for topic, number, state in partitions_of(image))
    else:
        found = ((tp, state) for tp in wanted if (state := image.partition(tp)) is not None)
    return {
        tp: Reassignment(
            state.replicas, tuple(each for each in state.adding if each not in state.removing), state.removing
        )
        for tp, state in found
        if state.is_moving
    }
