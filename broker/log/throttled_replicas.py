"""Which replicas of a topic are throttled while they are not in sync (KIP-73), as its settings name them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from semel.protocol.errors import ErrorCode, UsageError

ALL: Final = "*"
THROTTLED_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""The settings of a topic that name them."""
_REPLICA: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """The value of `leader.replication.throttled.replicas`, or of the follower's.

    is_all: on all nodes, of all partitions
    pairs:  those of (partition, node)
    """

    is_all: bool = False
    pairs: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def parse(cls, name: str, text: str) -> ThrottledReplicas:
        """Return what the value of the setting `name` says. Raises `UsageError` (INVALID_CONFIG), as Kafka does."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if words == [ALL]:
            return ALL_REPLICAS
        for word in words:
            if not _REPLICA.fullmatch(word):
                raise UsageError(
                    f"{name}: {word[:100]!r} is no replica: use PARTITION:NODE,PARTITION:NODE,... or {ALL} alone for "
                    "all of the topic",
                    ErrorCode.INVALID_CONFIG,
                )
        pairs = (word.split(":") for word in words)
        return cls(pairs=frozenset((int(partition), int(node)) for partition, node in pairs)) if words else NO_REPLICAS

    def has(self, partition: int, node_id: int) -> bool:
        return self.is_all or (partition, node_id) in self.pairs


NO_REPLICAS: Final = ThrottledReplicas()
ALL_REPLICAS: Final = ThrottledReplicas(is_all=True)
