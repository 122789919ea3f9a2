"""ElectLeaders, and AlterPartitionReassignments as far as it adds replicas.

An election is decided in `broker/controller/elections.py` (R4). To elect a replica that may lack committed records is
an operator's word alone, and is said loudly in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from semel.broker.controller.elections import Election, elect_preferred, elect_unclean
from semel.broker.controller.membership import changed, follows, stopping_nodes
from semel.broker.metadata.changes import Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError, error_for
from semel.protocol.ids import TopicPartition

_log = logging.getLogger("semel.cluster")

_NAMED_MAX: Final = 10


async def elect_leaders(
    node: Services, wanted: Sequence[TopicPartition], *, unclean: bool
) -> dict[TopicPartition, SemelError | None]:
    """Elect the preferred replica of each partition, or with `unclean` any that is alive where there is no leader.

    Returns for each None, or why nothing was elected. Raises `SemelError` where the metadata can't be changed.
    """
    outcomes: dict[TopicPartition, SemelError | None] = {}
    lossy: list[str] = []

    def decide(image: MetadataImage) -> list[Change]:
        outcomes.clear()
        lossy.clear()
        changes: list[Change] = []
        for tp in wanted:
            try:
                election = _elected(node, image, tp, unclean)
            except SemelError as error:
                outcomes[tp] = error
                continue
            outcomes[tp] = None
            changes.append(election.change)
            if election.is_unclean:
                lossy.append(f"{tp} (node {election.change.state.leader})")
        return changes

    await node.metadata.change(decide)
    if lossy:
        _log.error("elected by an operator's word though committed records may be lost: %s", ", ".join(lossy)[:1_000])
    await node.caught_up()
    return outcomes


def _elected(node: Services, image: MetadataImage, tp: TopicPartition, unclean: bool) -> Election:
    stopping = stopping_nodes(image)
    if unclean:
        return elect_unclean(image, tp, default_min_isr=node.config.min_insync_replicas, stopping=stopping)
    return elect_preferred(image, tp, stopping=stopping)


async def reassign(
    node: Services, wanted: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, SemelError | None]:
    """Give partitions more replicas, which join the in-sync ones when they have caught up. None cancels a move.

    Returns for each None, or what is wrong with it. Raises `SemelError` where the metadata can't be changed.
    """
    outcomes: dict[TopicPartition, SemelError | None] = {}

    def decide(image: MetadataImage) -> list[Change]:
        outcomes.clear()
        changes: list[Change] = []
        for tp, replicas in wanted.items():
            try:
                changes += _reassigned(image, tp, replicas)
            except SemelError as error:
                outcomes[tp] = error
            else:
                outcomes[tp] = None
        return changes

    await node.metadata.change(decide)
    await node.caught_up()
    return outcomes


def _reassigned(image: MetadataImage, tp: TopicPartition, replicas: Sequence[int] | None) -> list[PartitionChanged]:
    topic, state = image.topic(tp.topic), image.partition(tp)
    if topic is None or state is None:
        name = TopicPartition(tp.topic[:300], tp.partition)
        raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}: check its name")
    if replicas is None:
        raise FatalError(f"the replicas of {tp} are not being moved", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    listed = list(replicas)[:_NAMED_MAX]
    unknown = [each for each in replicas if each not in image.brokers]
    if unknown or len(set(replicas)) < len(replicas):
        raise _refusal(f"the replicas of {tp} can't be {listed}: name nodes of the cluster, each once")
    if not set(state.replicas) <= set(replicas):
        raise _refusal(
            f"the replicas of {tp} can't be moved from {list(state.replicas)} to {listed}: this version only adds "
            "replicas, so name those that it has, too"
        )
    alone = [each for each in replicas if not image.brokers[each].peer_port]
    if len(replicas) > 1 and alone:
        raise _refusal(f"node {alone[0]} can't have a replica of {tp} beside others: it has no peer.listen")
    return changed(topic, tp.partition, follows(state, replace(state, replicas=tuple(replicas))))


def _refusal(message: str) -> UsageError:
    return UsageError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
