"""How many entries a request may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.protocol.kafka.messages import MAX_ENTRIES

if TYPE_CHECKING:
    from semel.broker.services import Services


def entries_max(node: Services) -> int:
    """Return how many entries a request may have: it may name every partition that there may be, each in a topic."""
    return max(MAX_ENTRIES, 2 * node.config.max_partitions)
