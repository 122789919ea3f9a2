"""Leaders after the metadata has lost changes and an operator has accepted that (R3, R4, R10).

What was lost may be elections, in-sync sets and moves. So the metadata that is left may name a leader epoch as the next
that was given already, and in-sync replicas that lack committed records. Hence the first registration that accepts the
loss does two things to all partitions, in its own transaction:

- Their leader epochs continue behind all that lost changes can have given. Two logs never differ within one epoch, and
  followers find where they part (R3).
- Those with several replicas have no leader, and nobody is in sync, until it is known which replica has most. The
  controller asks all of them (`most_complete`), and has that one elected whose log ends last: in the highest epoch, and
  there at the highest offset. The leader of an epoch had all that was committed before, and its followers have its
  records in order, so every committed record is in it; unless a leader had committed others' records only, and a former
  one that was cut off had written in an epoch between (docs/architecture.md).

A replica that does not answer may have it, too. As many as `min.insync.replicas` say had each committed record, so all
but one less than that have to answer, and of those that live, all.

An epoch that only this gives, and no election, marks such a partition, also for nodes that start later and know nothing
of the loss. In place of the answers an operator may elect any replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from semel.broker.controller.membership import (
    alive_nodes,
    changed,
    follows,
    full_nodes,
    min_isr_of,
    partitions_of,
    stopping_nodes,
)
from semel.broker.metadata.changes import Change, PartitionChanged, PartitionState
from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.protocol.ids import NO_LEADER, TopicId
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.randomness import source

EPOCHS_STEP: Final = 100_000
"""More elections of one partition than the changes that a database can have lost."""
_STEPS_MAX: Final = 100
"""So many steps are skipped at most. How many is drawn: of two losses, a node may know of one alone."""


class ReplicaEnd(NamedTuple):
    """Where a replica's log ends, by the word of its node.

    broker_epoch: of the node's registration
    last_epoch: of the last record; -1 where there is none
    """

    broker_epoch: int
    last_epoch: int
    end_offset: int


Ends = Mapping[int, ReplicaEnd]
"""Of one partition's replicas, by node."""


def beyond_lost_epochs(highest: int) -> int:
    """Return a leader epoch that no lost change can have given, where `highest` is the highest that was known."""
    steps = highest // EPOCHS_STEP + 2 + source().randrange(_STEPS_MAX)
    return min(steps, INT32_MAX // EPOCHS_STEP) * EPOCHS_STEP


def first_leader_epoch(topic: TopicImage) -> int:
    """Return the leader epoch in which partitions begin that are added to a topic: 0, or behind a loss."""
    highest = max(state.leader_epoch for state in topic.partitions)
    return 0 if highest < EPOCHS_STEP else highest // EPOCHS_STEP * EPOCHS_STEP + 1


def raised_epochs(image: MetadataImage, known: int, epoch: int) -> list[PartitionChanged]:
    """Return what a registration that accepts a loss changes in all partitions; nothing where another one has done so.

    known: the highest leader epoch that the node knew of before
    epoch: what `beyond_lost_epochs` says
    """
    if image.highest_leader_epoch >= known + EPOCHS_STEP:
        return []
    changes: list[PartitionChanged] = []
    for topic, number, state in partitions_of(image):
        draft = replace(state, leader_epoch=epoch, partition_epoch=state.partition_epoch + 1)
        if len(state.replicas) > 1:
            draft = replace(draft, leader=NO_LEADER, isr=(), elr=(), last_known_elr=())
        changes += changed(topic, number, draft)
    return changes


def waits_for_ends(state: PartitionState) -> bool:
    """Say whether a partition has no leader since a loss was accepted: it is not known which replica has most."""
    return (
        state.leader == NO_LEADER
        and state.leader_epoch >= EPOCHS_STEP
        and state.leader_epoch % EPOCHS_STEP == 0
        and not (state.isr or state.elr or state.last_known_elr)
    )


def most_complete(
    image: MetadataImage, found: Mapping[tuple[TopicId, int, int], Ends], *, default_min_isr: int
) -> list[Change]:
    """Return the elections of those partitions of which enough is known.

    found: where replicas end, by topic, partition and the leader epoch in which they were asked
    default_min_isr: the nodes' min.insync.replicas
    """
    alive, stopping, full = alive_nodes(image), stopping_nodes(image), full_nodes(image)
    changes: list[Change] = []
    for (topic_id, number, leader_epoch), ends in found.items():
        partition = image.partition_by_id(topic_id, number)
        if partition is None:
            continue
        topic, state = partition
        if state.leader_epoch != leader_epoch or not waits_for_ends(state):
            continue
        told = {
            node_id: end
            for node_id, end in ends.items()
            if node_id in state.replicas
            and node_id in alive
            and node_id not in stopping
            and image.brokers[node_id].epoch == end.broker_epoch
        }
        # One that has nothing may have been moved away and back: it says nothing of what was committed.
        telling = sum(end.end_offset > 0 for end in told.values())
        min_isr = max(1, min(min_isr_of(topic, default_min_isr), state.replication_factor))
        is_enough = len(told) == len(state.replicas) or telling > len(state.replicas) - min_isr
        if not is_enough or any(each in alive and each not in told for each in state.replicas):
            continue
        best = max(told.values(), key=_length)
        equal = [each for each in state.replicas if each in told and _length(told[each]) == _length(best)]
        leader = next((each for each in equal if each not in full), equal[0])
        changes += changed(topic, number, follows(state, replace(state, leader=leader, isr=(leader,))))
    return changes


def _length(end: ReplicaEnd) -> tuple[int, int]:
    return end.last_epoch, end.end_offset
