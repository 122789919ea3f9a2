"""What a node tells about the groups that it coordinates: how far behind they are, and how often they rebalance."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from semel.broker.diagnostics.batches import batch_time_ms, holds_markers_alone
from semel.broker.services import Services
from semel.group_coordinator.machine import GroupMachine
from semel.protocol.api.diagnostics import NO_TIME, GroupFacts
from semel.protocol.ids import TopicPartition

TURN_SECONDS: Final = 0.005
RECENT_MS: Final = 3_600_000
"""Rebalances of the last hour say how restless a group is."""
MARKERS_MAX: Final = 64
"""So many offsets behind the last record of a partition may be those of markers: as many producers that end at once."""
_NOWHERE: Final = TopicPartition("", -1)


async def group_facts(node: Services, most: int, now_ms: int) -> tuple[list[GroupFacts], int]:
    """Return the groups that are furthest behind and those that rebalance most, and how many there are in all."""
    found: list[GroupFacts] = []
    machines: dict[str, GroupMachine] = {}
    turn_ends = node.clock.monotonic() + TURN_SECONDS
    for machine in node.groups.machines():
        for facts in _of_machine(node, machine, now_ms):
            found.append(facts)
            machines[facts.group_id] = machine
            if node.clock.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = node.clock.monotonic() + TURN_SECONDS
    behind = heapq.nlargest(most, found, key=lambda group: (group.lag, group.group_id))
    restless = heapq.nlargest(most, found, key=lambda group: (_recent(group, now_ms), group.group_id))
    chosen = {group.group_id: group for group in (*behind, *(one for one in restless if _recent(one, now_ms) > 1))}
    told: list[GroupFacts] = []
    for group in chosen.values():
        lag, worst, worst_lag = _lag(node, machines[group.group_id], group.group_id, are_markers_left_out=True)
        told.append(_with_times(node, replace(group, lag=lag, worst=worst, worst_lag=worst_lag)))
        if node.clock.monotonic() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = node.clock.monotonic() + TURN_SECONDS
    return told, len(found)


def _recent(group: GroupFacts, now_ms: int) -> int:
    return sum(now_ms - when_ms <= RECENT_MS for when_ms in group.rebalances_ms)


def _of_machine(node: Services, machine: GroupMachine, now_ms: int) -> Iterator[GroupFacts]:
    for group_id, state, members in machine.groups():
        lag, worst, worst_lag = _lag(node, machine, group_id)
        last_commit_ms = max((value.commit_timestamp_ms for _, value in machine.offsets_of(group_id)), default=NO_TIME)
        expires_ms = machine.expires_ms(group_id, now_ms)
        yield GroupFacts(
            group_id=group_id,
            state=state,
            members=members,
            lag=lag,
            worst=worst,
            worst_lag=worst_lag,
            last_commit_ms=last_commit_ms,
            expires_ms=NO_TIME if expires_ms is None else expires_ms,
            rebalances_ms=tuple(node.groups.rebalance_times_ms.get(group_id, ())),
        )


def _lag(
    node: Services, machine: GroupMachine, group_id: str, *, are_markers_left_out: bool = False
) -> tuple[int, TopicPartition, int]:
    """Return how far a group is behind, and its worst partition.

    A partition of which it has read all records may end with markers, which nobody commits. They are left out only for
    the groups that are told of: it takes a look into the log.
    """
    lag, worst, worst_lag = 0, _NOWHERE, 0
    for tp, value in machine.offsets_of(group_id):
        partition = node.partition(tp)
        if partition is None:
            continue
        end, offset = partition.last_stable_offset, max(value.offset, partition.log_start_offset)
        behind = max(end - offset, 0)
        if are_markers_left_out and 0 < behind <= MARKERS_MAX and holds_markers_alone(partition, offset, end):
            continue
        lag += behind
        if behind > worst_lag:
            worst, worst_lag = tp, behind
    return lag, worst, worst_lag


def _with_times(node: Services, group: GroupFacts) -> GroupFacts:
    """With the time of the first record that the group has not read in its worst partition."""
    partition = node.partition(group.worst) if group.worst_lag else None
    if partition is None:
        return group
    offset = max(partition.last_stable_offset - group.worst_lag, partition.log_start_offset)
    return replace(group, unread_since_ms=batch_time_ms(partition, offset))
