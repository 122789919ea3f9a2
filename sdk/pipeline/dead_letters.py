"""How a dead letter looks: the record as it was, and in its headers where it is from and why it failed."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from semel.protocol.errors import UsageError
from semel.protocol.record_decoder import Record
from semel.sdk.transport.options import check_text

HEADER_REASON: Final = "semel.error.reason"
HEADER_TOPIC: Final = "semel.source.topic"
HEADER_PARTITION: Final = "semel.source.partition"
HEADER_OFFSET: Final = "semel.source.offset"
HEADER_TIMESTAMP: Final = "semel.source.timestamp"
HEADER_GROUP: Final = "semel.source.group"
REASON_CHARS_MAX: Final = 1_000


def dead_letter_headers(record: Record, reason: str, group: str) -> list[tuple[str, bytes | str | None]]:
    """Return the record's own headers, and after them where it is from and why it failed."""
    return [
        *record.headers,
        (HEADER_REASON, reason[:REASON_CHARS_MAX]),
        (HEADER_TOPIC, record.topic),
        (HEADER_PARTITION, str(record.partition)),
        (HEADER_OFFSET, str(record.offset)),
        (HEADER_TIMESTAMP, str(record.timestamp_ms)),
        (HEADER_GROUP, group),
    ]


def check_dead_letter_topic(topic: object, topics: Collection[str], pattern: re.Pattern[str] | None = None) -> str:
    """Return where dead letters go. Raises `UsageError` for a topic that is read: each would come back for ever."""
    name = check_text("dead_letter_topic", topic)
    if name in topics or (pattern is not None and pattern.fullmatch(name)):
        raise UsageError(
            f"dead_letter_topic {name!r} is among the topics that are read: a dead letter would come back and become "
            "another one, for ever; name a topic of their own"
        )
    return name
