"""A node that has partitions of a topic with remote.storage.enable, and no remote.storage.url: it can't serve them."""

from __future__ import annotations

import logging
from typing import Final

from semel.broker.log.log_types import LogRange, TimestampOffset
from semel.broker.logs.partition import Partition
from semel.protocol.errors import ErrorCode, SemelError, error_for

_log = logging.getLogger("semel.tiers")


class NoStore:
    """Refuses what would need the remote storage (`RemotePart`)."""

    is_known: Final = False
    end_offset: Final = 0

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        _log.error("%s", self._refusal().message)

    def look_up(self) -> None:
        """There is nothing to look up in."""
        self._partition.tier_is_missing(self._refusal())

    def is_end_proven(self) -> bool:
        return False

    def read(self, offset: int, max_bytes: int, upto: int, min_one_batch: bool, committed_only: bool) -> LogRange:
        raise self._refusal()

    async def record_at(self, timestamp_ms: int) -> TimestampOffset | None:
        raise self._refusal()

    async def note_start(self, offset: int) -> None:
        raise self._refusal()

    def _refusal(self) -> SemelError:
        return error_for(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self._partition.tp} can't be led by this node, because its topic has remote storage and this node no "
            "remote.storage.url: start it with the one that the other nodes have",
        )
