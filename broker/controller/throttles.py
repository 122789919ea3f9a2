"""When replicas may be throttled (KIP-73): once all nodes know the settings. An older one reads no topic with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from semel.broker.metadata.changes import THROTTLES_VERSION
from semel.broker.metadata.image import MetadataImage
from semel.protocol.errors import ErrorCode, FatalError

THROTTLE_SETTINGS: Final = frozenset(
    f"{side}.replication.throttled.{what}" for side in ("leader", "follower") for what in ("rate", "replicas")
)


def check_may_throttle(image: MetadataImage, names: Iterable[str]) -> None:
    """Raise `FatalError` (UNSUPPORTED_VERSION) where settings are given that a node would not understand."""
    if image.version < THROTTLES_VERSION and THROTTLE_SETTINGS.intersection(names):
        raise FatalError(
            "replicas can't be throttled yet: not all nodes run a semel that knows of that. Upgrade all nodes first",
            ErrorCode.UNSUPPORTED_VERSION,
        )
