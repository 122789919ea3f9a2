"""Who leads a partition, and what becomes of partitions when nodes fail, return and restart (R4).

A leader is the first in-sync replica, in the order of replicas, that is alive and not shutting down, and whose disk has
room if there is such a one; where there is none, an eligible one (KIP-966), which has all committed records too; else
nobody, until one of them returns. To elect any other replica can lose records, and is an operator's word alone. A node
that fails or restarts leaves the in-sync sets at once (R5): what it has after a restart, it has to show again.

`stopping` are nodes that shut down; `default_min_isr` is the nodes' min.insync.replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from semel.broker.controller.diskless import AnyLeader
from semel.broker.controller.membership import (
    MIN_ISR_SETTING,
    alive_nodes,
    changed,
    existing,
    follows,
    full_nodes,
    is_enough,
    min_isr_of,
    partitions_of,
    with_isr,
)
from semel.broker.metadata.changes import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    Change,
    ConfigsChanged,
    PartitionChanged,
    PartitionState,
)
from semel.broker.metadata.image import TOPIC_RESOURCE, BrokerImage, MetadataImage, TopicImage
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import NO_LEADER, TopicPartition

_OS_DURABILITY: Final = "os"


class Election(NamedTuple):
    """An election that an operator asked for.

    is_unclean: the leader may lack committed records, which are lost then. That is to be reported
    """

    change: PartitionChanged
    is_unclean: bool


def elect(
    state: PartitionState,
    image: MetadataImage,
    *,
    min_isr: int,
    stopping: Collection[int] = (),
    unclean: bool = False,
) -> PartitionState:
    """Return the state after an election, `state` itself where it needs none or nobody can be elected in its place.

    unclean: an operator's word that any replica will do: one that was the last to have all records before it lost some,
        or else any that is alive
    """
    alive = alive_nodes(image)
    draft = led(state, alive, min_isr=min_isr, stopping=stopping, full=full_nodes(image))
    if unclean and draft.leader == NO_LEADER:
        left = [each for each in state.replicas if each in alive and each not in stopping]
        left.sort(key=lambda each: each in state.adding)  # which may have next to nothing
        leader = next((each for each in left if each in state.last_known_elr), left[0] if left else NO_LEADER)
        if leader != NO_LEADER:
            # What the others have that this one lacks is not committed any more, and nobody can be held against it.
            draft = replace(state, leader=leader, isr=(leader,), elr=(), last_known_elr=())
    return follows(state, draft)


def led(
    draft: PartitionState,
    alive: Container[int],
    *,
    min_isr: int,
    stopping: Container[int] = (),
    full: Container[int] = (),
) -> PartitionState:
    """Return a state in the making with its leader, or without one. Its epochs are as before.

    full: nodes whose disks refuse producers: of equals another one leads
    """
    is_led = draft.leader in draft.isr and draft.leader in alive
    if is_led and draft.leader not in stopping:
        return draft
    electable = [each for each in draft.replicas if each in alive and each not in stopping]
    electable.sort(key=lambda each: each in full)
    for replica in electable:
        if replica in draft.isr:
            return replace(draft, leader=replica)
    if is_led:
        return draft  # An eligible replica lacks what was acknowledged by this leader alone (acks=1).
    for replica in electable:
        if replica in draft.elr:
            return replace(with_isr(draft, (replica,), min_isr), leader=replica)
    return draft if draft.leader == NO_LEADER else replace(draft, leader=NO_LEADER)


def nodes_fenced(
    image: MetadataImage, node_ids: Collection[int], *, default_min_isr: int, stopping: Collection[int] = ()
) -> list[Change]:
    """Return the changes that take nodes for dead: out of the in-sync sets, and others lead what they led.

    Nodes that are fenced already, or not registered, are left out. A partition whose only replica is on such a node
    has no leader until that returns.
    """
    fenced = alive_nodes(image).intersection(node_ids)
    changes: list[Change] = [BrokerFenced(node_id, image.brokers[node_id].epoch) for node_id in sorted(fenced)]
    if not fenced:
        return changes
    alive, full = alive_nodes(image) - fenced, full_nodes(image)
    anybody = AnyLeader(image, alive, out=stopping)
    for topic, number, state in partitions_of(image):
        if state.leader not in fenced and fenced.isdisjoint(state.isr):
            continue
        if topic.has_diskless(state):
            changes += changed(topic, number, anybody.elected(state))
            continue
        min_isr = min_isr_of(topic, default_min_isr)
        draft = state
        if len(state.replicas) > 1:
            draft = with_isr(state, [each for each in state.isr if each not in fenced], min_isr)
        draft = led(draft, alive, min_isr=min_isr, stopping=stopping, full=full)
        changes += changed(topic, number, follows(state, draft))
    return changes


def nodes_unfenced(
    image: MetadataImage, node_ids: Collection[int], *, default_min_isr: int, stopping: Collection[int] = ()
) -> list[Change]:
    """Return the changes that take fenced nodes for alive again: what has no leader gets one, if one of them may lead.

    They join in-sync sets when they have caught up, by their leaders' proposals.
    """
    returned = sorted(each for each in set(node_ids) if each in image.brokers and image.brokers[each].is_fenced)
    changes: list[Change] = [BrokerUnfenced(node_id, image.brokers[node_id].epoch) for node_id in returned]
    if not returned:
        return changes
    alive, full = alive_nodes(image).union(returned), full_nodes(image)
    anybody = AnyLeader(image, alive, out=stopping)
    for topic, number, state in partitions_of(image):
        if state.leader == NO_LEADER and topic.has_diskless(state):
            changes += changed(topic, number, anybody.elected(state))
        elif state.leader == NO_LEADER:
            draft = led(state, alive, min_isr=min_isr_of(topic, default_min_isr), stopping=stopping, full=full)
            changes += changed(topic, number, follows(state, draft))
    return changes


def node_registered(
    image: MetadataImage,
    registration: BrokerRegistered,
    *,
    default_min_isr: int,
    stopping: Collection[int] = (),
    damaged: Container[TopicPartition] = (),
    gone: Container[TopicPartition] = (),
    is_older_copy: bool = False,
) -> list[Change]:
    """Return the changes that are written with a node's registration, behind it: its former start is nothing any more.

    The new incarnation is in no in-sync set and leads nothing, but where it is elected afresh because nobody else can
    be. It is not eligible where it may have lost records. A partition whose only replica it is stays as it is.

    image:   the one before the registration, which has how the node was registered until now
    damaged: partitions of which it has, or may have, lost records that it had synced; gone: those that it has not
    is_older_copy: its directory is from before its last run: all of its replicas may lack records
    """
    node_id = registration.node_id
    former = image.brokers.get(node_id)
    emptied = {node_id} if former is None or former.directory_id != registration.directory_id else set()
    lost = emptied or ({node_id} if is_older_copy or lost_records(former, registration) else set())
    alive, full = alive_nodes(image) | {node_id}, full_nodes(image) - {node_id}
    others_stopping = set(stopping) - {node_id}
    anybody = AnyLeader(image, alive, out=others_stopping)
    changes: list[Change] = []
    for topic, number, state in partitions_of(image):
        if topic.has_diskless(state) and (state.leader == NO_LEADER or node_id in state.replicas):
            # Also where it is elected again: it has to read again what was committed.
            changes += changed(topic, number, anybody.elected(state))
            continue
        if node_id not in state.replicas:
            continue
        min_isr = min_isr_of(topic, default_min_isr)
        draft, is_deposed = state, False
        if len(state.replicas) > 1:
            is_deposed = state.leader == node_id
            isr = [each for each in state.isr if each != node_id]
            tp = TopicPartition(topic.name, number)
            is_gone = tp in gone
            lost_here = lost
            if is_gone or tp in damaged:
                lost_here = {node_id}
            elif _is_alone(state, node_id):
                lost_here = emptied
            draft = with_isr(
                state,
                isr,
                min_isr,
                lost=lost_here,
                emptied={node_id} if is_gone else emptied,
            )
        if is_deposed or draft.leader == NO_LEADER:
            leaderless = replace(draft, leader=NO_LEADER)
            draft = led(leaderless, alive, min_isr=min_isr, stopping=others_stopping, full=full)
        changes += changed(topic, number, follows(state, draft, is_new_reign=is_deposed))
    return changes


def lost_records(former: BrokerImage | None, registration: BrokerRegistered) -> bool:
    """What the former start counted as its own was on its disk, or in memory that a crash of the machine forgets.

    A node that changed the setting is held to the weaker of both.
    """
    return not registration.is_clean and (
        former is None or _OS_DURABILITY in (former.durability, registration.durability)
    )


def _is_alone(state: PartitionState, node_id: int) -> bool:
    """Whether replicas are being added to the only one, and none was in sync yet: it leads, whatever it has lost."""
    return state.replicas_before == (node_id,) and {node_id}.issuperset((*state.isr, *state.elr))


def configs_changed(image: MetadataImage, change: ConfigsChanged, *, default_min_isr: int) -> list[Change]:
    """Return a change of settings, and before it those that it makes necessary.

    Where a lower min.insync.replicas is enough for the in-sync replicas, records are committed without the eligible
    ones from now on: these are eligible no more.

    default_min_isr: as it is after the change
    """
    changes: list[Change] = []
    topics: Iterable[TopicImage] = image.topics.values()
    if change.resource == TOPIC_RESOURCE:
        topic = image.topics.get(change.name)
        if topic is None or MIN_ISR_SETTING not in change.values:
            return [change]
        value = change.values[MIN_ISR_SETTING]
        configs = {**topic.configs, MIN_ISR_SETTING: str(default_min_isr) if value is None else value}
        topics = (replace(topic, configs=configs),)
    for topic in topics:
        min_isr = min_isr_of(topic, default_min_isr)
        for number, state in enumerate(topic.partitions):
            if (state.elr or state.last_known_elr) and is_enough(state, state.isr, min_isr):
                changes += changed(topic, number, follows(state, with_isr(state, state.isr, min_isr)))
    return [*changes, change]


def elect_preferred(image: MetadataImage, tp: TopicPartition, *, stopping: Collection[int] = ()) -> Election:
    """Return the election of a partition's first replica, which is in sync.

    Raises `SemelError`: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, or UNKNOWN_TOPIC_OR_PARTITION.
    """
    topic, state = existing(image, tp)
    preferred = state.replicas[0]
    alive = alive_nodes(image)
    if state.leader == preferred and preferred in alive:
        raise FatalError(
            f"node {preferred} leads {tp} already, and is its preferred leader", ErrorCode.ELECTION_NOT_NEEDED
        )
    wrong, until = "", "it has caught up"
    if preferred not in alive:
        wrong = "is not alive"
    elif preferred in stopping:
        wrong = "shuts down"
    elif preferred not in state.isr:
        wrong = "is not in sync"
    elif preferred in full_nodes(image):
        wrong, until = "has a full disk", "there is room"
    if wrong:
        raise FatalError(
            f"node {preferred}, the preferred leader of {tp}, {wrong}: elect it when {until}",
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        )
    after = follows(state, replace(state, leader=preferred))
    return Election(PartitionChanged(topic.name, topic.topic_id, tp.partition, after), is_unclean=False)


def elect_unclean(
    image: MetadataImage, tp: TopicPartition, *, default_min_isr: int, stopping: Collection[int] = ()
) -> Election:
    """Return the election of any replica that is alive where there is no leader; of a complete one if there is one.

    Raises `SemelError`: ELECTION_NOT_NEEDED, ELIGIBLE_LEADERS_NOT_AVAILABLE, or UNKNOWN_TOPIC_OR_PARTITION.
    """
    topic, state = existing(image, tp)
    if state.leader in alive_nodes(image):
        raise FatalError(f"node {state.leader} leads {tp} already, and is alive", ErrorCode.ELECTION_NOT_NEEDED)
    min_isr = min_isr_of(topic, default_min_isr)
    clean = elect(state, image, min_isr=min_isr, stopping=stopping)
    after = elect(state, image, min_isr=min_isr, stopping=stopping, unclean=True)
    if after.leader == NO_LEADER:
        raise FatalError(
            f"no replica of {tp} is alive, of the nodes {', '.join(map(str, state.replicas))}: start one of them, with "
            "--accept-data-loss if its directory is lost, or delete the topic",
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        )
    change = PartitionChanged(topic.name, topic.topic_id, tp.partition, after)
    return Election(change, is_unclean=clean.leader == NO_LEADER)
