"""What a request with a key asks for: records and offsets that take effect together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from semel.protocol.ids import TopicPartition
from semel.sdk.producer.delivery import RecordMetadata
from semel.web.rest.record_data import NewRecord

Told: TypeAlias = Callable[[Sequence[RecordMetadata]], Any]
"""Makes the body of the answer from where the records are, in their order."""


@dataclass(frozen=True, slots=True)
class Work:
    """records: to write, in their order; group, offsets: where a group moves to; expected: where it must stand (O5)."""

    records: tuple[NewRecord, ...]
    told: Told
    group: str = ""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    expected: Mapping[TopicPartition, int] = field(default_factory=dict)
