"""How many producer ids a node remembers: in one partition, and in all of them together (S2, S3).

Kafka has no such bound, only `producer.id.expiration.ms`, and has this problem (KIP-936). Beyond a bound new producer
ids are refused, and the known ones continue: to forget one of those before its time would be to append its next
duplicate (P1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import TopicPartition

_log = logging.getLogger(__name__)

DEFAULT_PER_PARTITION_MAX: Final = 100_000
DEFAULT_MAX: Final = 500_000
_COUNTED_EVERY_MS: Final = 10_000
_COUNTED_AGAIN_MS: Final = 1_000
_TOLD_EVERY_MS: Final = 60_000


class ProducerIdBound:
    """Shared by all logs of a node. `count` returns how many producer ids they remember in sum."""

    __slots__ = (
        "_counted_ms",
        "_refused_untold",
        "_told_ms",
        "count",
        "held",
        "max",
        "per_partition_max",
        "refused",
        "refused_of_partition",
    )

    def __init__(self, per_partition_max: int = DEFAULT_PER_PARTITION_MAX, max: int = DEFAULT_MAX) -> None:  # noqa: A002
        self.per_partition_max = per_partition_max
        self.max = max
        self.count: Callable[[], int] = lambda: 0
        self.held = 0
        """How many there were when they were last counted, and those admitted since."""
        self.refused = 0
        """How many batches of new producer ids were refused so far."""
        self.refused_of_partition = 0
        """Those of them for the bound of one partition."""
        self._counted_ms: int | None = None
        self._told_ms: int | None = None
        self._refused_untold = 0

    def admit(self, tp: TopicPartition, known: int, now_ms: int) -> None:
        """Let a client's new producer id into a partition that knows `known` others.

        Raises `RetriableError` (THROTTLING_QUOTA_EXCEEDED): ids expire, so there may be room later.
        """
        if known >= self.per_partition_max:
            self.refused_of_partition += 1
            self._refuse(
                f"{tp} remembers {known} producer ids, and takes no new ones beyond "
                f"producer.ids.per.partition.max={self.per_partition_max}",
                now_ms,
            )
        self._count(now_ms, _COUNTED_EVERY_MS if self.held < self.max else _COUNTED_AGAIN_MS)
        if self.held >= self.max:
            self._refuse(
                f"{tp}: the partitions of this node remember {self.held} producer ids, and take no new ones beyond "
                f"producer.ids.max={self.max}",
                now_ms,
            )
        self.held += 1

    def _count(self, now_ms: int, every_ms: int) -> None:
        """Counting all now and then costs less than to tell of each id that goes, and forgets no way to go."""
        if self._counted_ms is None or abs(now_ms - self._counted_ms) >= every_ms:
            self._counted_ms = now_ms
            self.held = self.count()

    def _refuse(self, message: str, now_ms: int) -> None:
        self.refused += 1
        self._refused_untold += 1
        message += ". They expire after producer.id.expiration.ms; producers that are known continue"
        if self._told_ms is None or abs(now_ms - self._told_ms) >= _TOLD_EVERY_MS:
            self._told_ms = now_ms
            _log.warning("%s. Batches refused since this was last said: %d", message, self._refused_untold)
            self._refused_untold = 0
        raise RetriableError(message, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
