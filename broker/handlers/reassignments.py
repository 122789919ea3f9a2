"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455): replicas are moved to other nodes.

What a move is, and when it is complete, is decided in `broker/controller/moves.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.broker.controller.membership import partitions_of, stopping_nodes
from semel.broker.controller.moves import begin_move, cancel_move
from semel.broker.handlers.newest import read_newest
from semel.broker.handlers.partition_decisions import Outcomes, decide_on_each
from semel.broker.metadata.changes import PartitionChanged, PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.api.cluster import Reassignment
from semel.protocol.ids import TopicPartition
from semel.runtime.turns import in_turns


async def reassign(
    node: Services, wanted: Mapping[TopicPartition, Sequence[int] | None], *, may_change_factor: bool = True
) -> Outcomes:
    """Move each partition's replicas to these nodes, the preferred leader first; None cancels a move.

    may_change_factor: there may be more or fewer replicas than before

    Returns for each None, or what is wrong with it. The moves have begun then, and continue after the answer.
    """

    def moved(image: MetadataImage, tp: TopicPartition) -> list[PartitionChanged]:
        min_isr, stopping, replicas = node.config.min_insync_replicas, stopping_nodes(image), wanted[tp]
        if replicas is None:
            return cancel_move(image, tp, default_min_isr=min_isr, stopping=stopping)
        return begin_move(
            image, tp, replicas, default_min_isr=min_isr, stopping=stopping, may_change_factor=may_change_factor
        )

    return await decide_on_each(node, list(wanted), moved)


async def reassignments(node: Services, wanted: Sequence[TopicPartition] | None = None) -> list[Reassignment]:
    """Return the partitions that are being moved, all or those of `wanted`, by the newest metadata that can be read."""
    await read_newest(node)
    image = node.metadata.image
    if wanted is None:
        return [
            _described(TopicPartition(topic.name, number), state)
            async for topic, number, state in in_turns(partitions_of(image))
            if state.is_moving
        ]
    found: list[Reassignment] = []
    async for tp in in_turns(dict.fromkeys(wanted)):
        named = image.partition(tp)
        if named is not None and named.is_moving:
            found.append(_described(tp, named))
    return found


def _described(tp: TopicPartition, state: PartitionState) -> Reassignment:
    adding = tuple(each for each in state.adding if each not in state.removing)
    return Reassignment(tp, state.replicas, adding, state.removing)
