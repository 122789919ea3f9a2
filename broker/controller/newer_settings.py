"""Settings that may be given once all nodes know them: an older node reads no topic, and no node, that has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from semel.broker.metadata.changes import DISKLESS_VERSION, REMOTE_STORAGE_VERSION, THROTTLES_VERSION
from semel.broker.metadata.image import MetadataImage
from semel.protocol.errors import ErrorCode, FatalError

SINCE: Final[Mapping[str, int]] = MappingProxyType(
    {
        **{
            f"{side}.replication.throttled.{what}": THROTTLES_VERSION
            for side in ("leader", "follower")
            for what in ("rate", "replicas")
        },
        **dict.fromkeys(
            ("remote.storage.enable", "local.retention.ms", "local.retention.bytes"), REMOTE_STORAGE_VERSION
        ),
        "diskless.enable": DISKLESS_VERSION,
        **dict.fromkeys(("log.local.retention.ms", "log.local.retention.bytes"), REMOTE_STORAGE_VERSION),
    }
)
"""From which version of the metadata on nodes read a setting."""


def check_all_know(image: MetadataImage, names: Iterable[str]) -> None:
    """Raise `FatalError` (UNSUPPORTED_VERSION) where settings are given that a node would not understand."""
    newer = sorted(name for name in names if image.version < SINCE.get(name, 0))
    if newer:
        raise FatalError(
            f"{newer[0]} can't be set yet: not all nodes run a semel that knows of it. Upgrade all nodes first",
            ErrorCode.UNSUPPORTED_VERSION,
        )
