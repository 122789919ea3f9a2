"""Replicas that a node could not read when it started, and can read now (R4).

A registration takes them for incomplete: nobody knows yet what is left of them. Where no other replica was complete,
nobody leads then. Once such a log is open again and nothing of it is lost, it has all that it had before, and is
eligible as if the node had started with it. The disks of several nodes may be nearly full at a time, for instance: they
get the same records.

What was complete, and has left the complete ones since, still has all that is committed: as long as it counts as one of
the last that were complete (`last_known_elr`), too few replicas are in sync for anything to be committed without it. A
leader that knows a lower min.insync.replicas asks for the end of that state before it commits (`replication/parts.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from semel.broker.controller.elections import led, lost_records
from semel.broker.controller.membership import (
    alive_nodes,
    changed,
    follows,
    full_nodes,
    min_isr_of,
    partitions_of,
    stopping_nodes,
)
from semel.broker.metadata.changes import BrokerRegistered, Change
from semel.broker.metadata.image import MetadataImage
from semel.protocol.ids import NO_LEADER, TopicId

Keys = Collection[tuple[TopicId, int]]


def incomplete_until_read(
    image: MetadataImage, registration: BrokerRegistered, *, unreadable: Keys, former: Keys, lost: Keys
) -> set[tuple[TopicId, int]]:
    """Return what a node that registers counts as incomplete of for no other reason than that it could not be read.

    image:      the one before the registration
    unreadable: what this start could not read; former: what this function returned for the start before, and the node
        still counts as incomplete of
    lost:       that of which it knows to have lost records, or of which it has nothing
    """
    known = image.brokers.get(registration.node_id)
    if known is None or known.directory_id != registration.directory_id or lost_records(known, registration):
        return set()
    node_id = registration.node_id
    found: set[tuple[TopicId, int]] = set()
    for topic, number, state in partitions_of(image):
        key = topic.topic_id, number
        was_complete = key in unreadable and (node_id in state.isr or node_id in state.elr)
        if key not in lost and (was_complete or (key in former and node_id in state.last_known_elr)):
            found.add(key)
    return found


def readable_again(
    image: MetadataImage, node_id: int, broker_epoch: int, partitions: Keys, *, default_min_isr: int
) -> list[Change]:
    """Return how replicas become eligible again, and lead where nobody does.

    partitions: of those that `incomplete_until_read` returned, the ones that are open now, and have lost nothing

    Nothing changes for a node that has registered again since, nor where it counts as one of the last complete replicas
    no more: others have committed records, or an operator has elected one of them.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != broker_epoch:
        return []
    alive, stopping, full = alive_nodes(image), stopping_nodes(image), full_nodes(image)
    changes: list[Change] = []
    for topic_id, number in partitions:
        found = image.partition_by_id(topic_id, number)
        if found is None:
            continue
        topic, state = found
        if node_id not in state.last_known_elr:
            continue
        draft = replace(
            state,
            elr=tuple(each for each in state.replicas if each in state.elr or each == node_id),
            last_known_elr=tuple(each for each in state.last_known_elr if each != node_id),
        )
        if draft.leader == NO_LEADER:
            draft = led(draft, alive, min_isr=min_isr_of(topic, default_min_isr), stopping=stopping, full=full)
        changes += changed(topic, number, follows(state, draft))
    return changes
