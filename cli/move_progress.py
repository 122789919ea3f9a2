"""Says on standard error how far moves are: what is copied, what waits for a node, and what comes no closer."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import semel
from semel.cli.common import command_here, counted
from semel.protocol.wording import partition_argument, size

if TYPE_CHECKING:
    from semel.protocol.ids import TopicPartition
    from semel.sdk.balancing.carrying_out import Progress
    from semel.sdk.balancing.copies import Copy

_TOLD_EVERY_S: Final = 5.0
_STALLED_S: Final = 60.0
"""How long copies may come no closer before that is said. A throttle is measured over eleven seconds."""
_NAMED_MAX: Final = 3


class ProgressTeller:
    """Told of each look at the cluster, it says every few seconds how far the moves are."""

    def __init__(self, admin: semel.Admin, bootstrap: str) -> None:
        from semel.sdk.balancing.copies import CopyWatch

        self._admin = admin
        self._bootstrap = bootstrap
        self._watch = CopyWatch()
        self._told_at = -_TOLD_EVERY_S
        self._stall_told_at = -_STALLED_S
        self._was_end = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        is_end = progress.done + len(progress.failed) == progress.total
        if self._was_end or (now - self._told_at < _TOLD_EVERY_S and not is_end):
            return
        self._told_at, self._was_end = now, is_end
        copies = self._copies(progress)
        print(progress_line(progress, copies), file=sys.stderr)
        stalled_s = self._watch.stalled_s(copies, now)
        if stalled_s >= _STALLED_S and now - self._stall_told_at >= _STALLED_S:
            self._stall_told_at = now
            self._tell_stalled(stalled_s)

    def _copies(self, progress: Progress) -> list[Copy]:
        from semel.sdk.balancing.copies import copies_of

        if not any(move.is_copy for move in progress.moving.values()):
            return []
        moving = [one for one in self._admin.reassignments() if one.partition in progress.moving]
        return copies_of(moving, self._admin.replicas())

    def _tell_stalled(self, stalled_s: float) -> None:
        from semel.sdk.balancing.throttling import throttled_nodes

        if throttled_nodes(self._admin):
            moves_command = command_here("semel partition moves", self._bootstrap)
            fix = (
                "the throttle may be lower than what producers write. Give a higher one, or remove it: "
                f"`{moves_command} --remove-throttle`"
            )
        else:
            fix = f"`{command_here('semel doctor', self._bootstrap)}` may say why"
        print(f"semel: no copy has come closer to its end for {stalled_s:.0f} s: {fix}", file=sys.stderr)


def progress_line(progress: Progress, copies: Sequence[Copy]) -> str:
    """Return how far moves are, in one line. `copies`: what is copied now."""
    line = f"{progress.done} of {progress.total} moved"
    if progress.total_bytes:
        # What is copied now may have grown since it was planned.
        planned_bytes = sum(progress.moving[tp].copied_bytes for tp in {copy.partition for copy in copies})
        total_bytes = progress.total_bytes - planned_bytes + sum(copy.size_bytes for copy in copies)
        line += f", {size(progress.done_bytes + copied_bytes(copies))} of {size(total_bytes)}"
    by_partition: dict[TopicPartition, list[Copy]] = {tp: [] for tp in progress.moving}
    for copy in copies:
        by_partition.setdefault(copy.partition, []).append(copy)
    going = [
        f"{partition_argument(tp)} to {','.join(map(str, move.after))}{_state(by_partition[tp])}"
        for tp, move in list(progress.moving.items())[:_NAMED_MAX]
    ]
    if not going:
        return line
    if len(progress.moving) > len(going):
        going.append(f"and {counted(len(progress.moving) - len(going), 'other')}")
    return f"{line}; now {', '.join(going)}"


def _state(copies: Sequence[Copy]) -> str:
    away = waits_for(copies)
    if away is not None:
        return f" (waits for {away})"
    total_bytes = sum(copy.size_bytes for copy in copies)
    return f" ({100 * copied_bytes(copies) // total_bytes}%)" if total_bytes else ""


def copied_bytes(copies: Sequence[Copy]) -> int:
    """Return how much of what is to be copied is there, as far as the nodes could be asked."""
    return sum(min(copy.has_bytes or 0, copy.size_bytes) for copy in copies)


def waits_for(copies: Sequence[Copy]) -> str | None:
    """Return which nodes do not answer that are to have new replicas; None where all do."""
    away = sorted({copy.node_id for copy in copies if copy.has_bytes is None})
    if not away:
        return None
    many = len(away) > 1
    return f"{'nodes' if many else 'node'} {', '.join(map(str, away))}, which {'do' if many else 'does'} not answer"
