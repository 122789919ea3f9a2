"""What a node tells about the groups that it coordinates: how far behind they are, and how often they rebalance."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from semel.broker.diagnostics.batches import batch_time_ms
from semel.broker.services import Services
from semel.group_coordinator.machine import GroupMachine
from semel.protocol.api.diagnostics import NO_TIME, GroupFacts
from semel.protocol.ids import TopicPartition

TURN_SECONDS: Final = 0.005
RECENT_MS: Final = 3_600_000
"""Rebalances of the last hour say how restless a group is."""
_NOWHERE: Final = TopicPartition("", -1)


async def group_facts(node: Services, most: int, now_ms: int) -> tuple[list[GroupFacts], int]:
    """Return the groups that are furthest behind and those that rebalance most, and how many there are in all."""
    found: list[GroupFacts] = []
    turn_ends = node.clock.monotonic() + TURN_SECONDS
    for machine in node.groups.machines():
        for facts in _of_machine(node, machine, now_ms):
            found.append(facts)
            if node.clock.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = node.clock.monotonic() + TURN_SECONDS
    behind = heapq.nlargest(most, found, key=lambda group: (group.lag, group.group_id))
    restless = heapq.nlargest(most, found, key=lambda group: (_recent(group, now_ms), group.group_id))
    chosen = {group.group_id: group for group in (*behind, *(one for one in restless if _recent(one, now_ms) > 1))}
    return [_with_times(node, group) for group in chosen.values()], len(found)


def _recent(group: GroupFacts, now_ms: int) -> int:
    return sum(now_ms - when_ms <= RECENT_MS for when_ms in group.rebalances_ms)


def _of_machine(node: Services, machine: GroupMachine, now_ms: int) -> Iterator[GroupFacts]:
    for group_id, state, members in machine.groups():
        lag, worst, worst_lag, last_commit_ms = 0, _NOWHERE, 0, NO_TIME
        for tp, value in machine.offsets_of(group_id):
            last_commit_ms = max(last_commit_ms, value.commit_timestamp_ms)
            partition = node.partition(tp)
            if partition is None:
                continue
            behind = max(partition.last_stable_offset - max(value.offset, partition.log_start_offset), 0)
            lag += behind
            if behind > worst_lag:
                worst, worst_lag = tp, behind
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


def _with_times(node: Services, group: GroupFacts) -> GroupFacts:
    """With the time of the first record that the group has not read in its worst partition."""
    partition = node.partition(group.worst) if group.worst_lag else None
    if partition is None:
        return group
    offset = max(partition.last_stable_offset - group.worst_lag, partition.log_start_offset)
    return replace(group, unread_since_ms=batch_time_ms(partition, offset))
