"""A node that is to stop: it gives up what it leads first, and stops when the others know.

So a planned stop fails no request: clients learn of a leader that is alive, and no leader waits for a replica that has
gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from semel.broker.controller.diskless import AnyLeader
from semel.broker.controller.elections import led
from semel.broker.controller.membership import (
    alive_nodes,
    changed,
    follows,
    full_nodes,
    min_isr_of,
    partitions_of,
    with_isr,
)
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.protocol.ids import TopicPartition


class StepDown(NamedTuple):
    """What a node that is to stop gives up now.

    waiting: partitions that it leads and that others have replicas of, alive and not in sync yet: it is worth waiting
        for these, for as long as the node has patience
    """

    changes: list[Change]
    waiting: list[TopicPartition]


def step_down(image: MetadataImage, node_id: int, *, default_min_isr: int, stopping: Collection[int] = ()) -> StepDown:
    """Return how a node leaves in-sync sets and leadership where another in-sync replica is alive.

    Where it is the last one in sync it stays: to elect an eligible replica instead would lose what was acknowledged
    by this one alone (acks=1). When it has stopped it is fenced, and what nobody else can lead waits for it.
    """
    out = {*stopping, node_id}
    alive, full = alive_nodes(image), full_nodes(image)
    anybody = AnyLeader(image, alive, out=out)
    changes: list[Change] = []
    waiting: list[TopicPartition] = []
    for topic, number, state in partitions_of(image):
        if topic.has_diskless(state) and state.leader == node_id and anybody.loads:
            changes += changed(topic, number, anybody.elected(state))
            continue
        if node_id not in state.isr or len(state.replicas) == 1:
            continue
        min_isr = min_isr_of(topic, default_min_isr)
        draft = state
        if state.leader == node_id:
            draft = led(state, alive, min_isr=min_isr, stopping=out, full=full)
        if draft.leader in alive and draft.leader != node_id:
            isr = [each for each in state.isr if each != node_id]
            draft = replace(with_isr(state, isr, min_isr), leader=draft.leader)
            changes += changed(topic, number, follows(state, draft))
        elif state.leader == node_id and any(each in alive and each not in out for each in state.replicas):
            waiting.append(TopicPartition(topic.name, number))
    return StepDown(changes, waiting)


def may_stop(image: MetadataImage, node_id: int, step: StepDown, *, moved_at: int, seen: Mapping[int, int]) -> bool:
    """Say whether a node may stop now, as far as the others are concerned.

    step: what it gives up as of `image`
    moved_at: the number of the last change by which it gave something up, 0 if it had nothing
    seen: the number up to which each node has applied the metadata, as of its last heartbeat
    """
    others = alive_nodes(image) - {node_id}
    return not step.changes and not step.waiting and all(seen.get(other, 0) >= moved_at for other in others)
