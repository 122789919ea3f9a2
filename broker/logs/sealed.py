"""Refuses what would be appended to a partition that is about to become another one."""

from __future__ import annotations

from semel.broker.logs.commit_tracker import CommitTracker
from semel.protocol.errors import SemelError, error_for


class Sealed(CommitTracker):
    """In place of what tracks a partition's appends: nothing is appended, because nothing passes its checks."""

    def __init__(self, tracker: CommitTracker, why: SemelError) -> None:
        """tracker: what is in its place otherwise; why: the error that each append gets"""
        super().__init__(None, tracker.space)
        self.dirty = tracker.dirty
        self._why = why

    def check_room(self, size: int) -> None:
        raise error_for(self._why.code, self._why.message)

    def check_journal(self, bytes_max: int = 0) -> None:
        raise error_for(self._why.code, self._why.message)
