"""A member's next step from what it has towards what it is to have (KIP-848), as a pure function.

A member first gives up what it is not to have any more, says so, and only then reaches the target's epoch. It is
given a partition once nobody else holds it. So there is no moment with two owners (G2), and no step that waits for
everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semel.group_coordinator.records.consumer_state import MemberAssignment, MemberState
from semel.protocol.api.consumer_groups import NO_PARTITIONS, Partitions, TopicIdPartition


def next_assignment(
    current: MemberAssignment,
    target_epoch: int,
    target: Partitions,
    is_held: Callable[[TopicIdPartition], bool],
    owned: Partitions | None,
) -> MemberAssignment:
    """Return what the member has from now on; the same object where it can go no further.

    is_held: whether a partition is anybody's, this member's own included that it was to give up.
    owned:   what the member says that it holds, None where it says nothing.
    """
    match current.state:
        case MemberState.STABLE:
            if current.epoch == target_epoch:
                return current
            return _step(current, current.epoch, target_epoch, target, is_held, owned)
        case MemberState.UNREVOKED_PARTITIONS:
            if owned is None or owned & current.to_revoke:
                return current
            # It gave up what it had to, so it moves on by one epoch, and from there towards the latest target.
            return _step(current, current.epoch + 1, target_epoch, target, is_held, owned)
        case MemberState.UNRELEASED_PARTITIONS:
            return _step(current, current.epoch, target_epoch, target, is_held, owned)
        case MemberState.UNKNOWN:
            assert owned == NO_PARTITIONS, "a member in an unknown state is fenced until it holds nothing"
            return _step(current, target_epoch, target_epoch, target, is_held, owned)


def _step(
    current: MemberAssignment,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    is_held: Callable[[TopicIdPartition], bool],
    owned: Partitions | None,
) -> MemberAssignment:
    kept = current.assigned & target
    to_revoke = current.assigned - kept
    if to_revoke and (owned is None or owned & to_revoke):
        return _at(current, epoch, MemberState.UNREVOKED_PARTITIONS, kept, to_revoke)
    missing = target - kept
    free = frozenset(partition for partition in missing if not is_held(partition))
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    return _at(current, target_epoch, state, kept | free, NO_PARTITIONS)


def _at(
    current: MemberAssignment, epoch: int, state: MemberState, assigned: Partitions, to_revoke: Partitions
) -> MemberAssignment:
    """Keep the previous epoch while the epoch stays: the member may not know of either yet."""
    previous_epoch = current.previous_epoch if epoch == current.epoch else current.epoch
    found = MemberAssignment(epoch, previous_epoch, state, assigned, to_revoke)
    return current if found == current else found


def away(current: MemberAssignment, epoch: int) -> MemberAssignment:
    """Return the assignment of a static member that said it would be back: it has given everything up but its claim."""
    return replace(current, epoch=epoch, previous_epoch=current.epoch, to_revoke=NO_PARTITIONS)
