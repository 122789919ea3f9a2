"""What nodes for tests have other than nodes, and the names of their settings as keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.broker.config.node_config import SETTINGS, attribute_of

DEFAULTS: Final[Mapping[str, object]] = {
    "kafka.listen": "127.0.0.1:0",
    "grpc.listen": "127.0.0.1:0",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "disk.min.free.bytes": 0,
    "group.min.session.timeout.ms": 1,
    "journal.file.bytes": 1 << 20,
    "journal.flush.bytes": 16 << 20,
    "log.level": "warning",
}
"""What a test's broker has other than a node: free ports, few internal partitions, sessions as short as wanted."""

START_TIMEOUT_S: Final = 30.0
STOP_GRACE_MS: Final = 20
"""Requests that are still in flight after it wait for others: a join, or a paused partition."""


def setting_name(attribute: str) -> str:
    """Return the setting that a keyword names; one that there isn't is left for the configuration to refuse."""
    return next((name for name in SETTINGS if attribute_of(name) == attribute), attribute)
