"""What is recorded with the decision on a batch: which sink it was, and what it had read. Runs on the driver.

So a replay is told from a second sink of the same name, and from a batch that another past of the checkpoint has given
the same number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from semel.protocol.api.commit_decisions import PAYLOAD_BYTES_MAX
from semel.spark.sink.checkpoint import SourceRange

_SINK_BYTES_MAX: Final = 4 << 10


class Repeats(Enum):
    """How a recorded decision stands to a batch with the same number."""

    SAME = "same"
    NUMBER_ALONE = "number alone"
    """Nothing contradicts it, but one of the two does not say what was read."""
    OTHER_SINK = "other sink"
    OTHER_RANGE = "other range"


@dataclass(frozen=True, slots=True)
class SinkShape:
    """What tells sinks of one name apart. `topic` is empty where a column says it; `columns` is a digest."""

    topic: str
    columns: str

    @classmethod
    def of(cls, topic: str, columns: Iterable[tuple[str, str]]) -> SinkShape:
        """`columns`: the names and types of those that the sink writes."""
        text = json.dumps(sorted(columns), separators=(",", ":")).encode()
        return cls(topic, hashlib.sha256(text).hexdigest()[:16])

    @property
    def where(self) -> str:
        """Say it in a sentence."""
        return f"topic {self.topic!r}" if self.topic else "the topics of a column"


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What is recorded. `source` is None where it is not known what the batch has read."""

    sink: SinkShape
    source: SourceRange | None

    def payload(self) -> bytes:
        """Return the record as it goes with the commit."""
        sink = {"topic": self.sink.topic or None, "columns": self.sink.columns}
        source = {} if self.source is None else self.source.recorded(PAYLOAD_BYTES_MAX - _SINK_BYTES_MAX)
        return json.dumps({**source, "sink": sink}, separators=(",", ":")).encode()

    def repeats(self, payload: bytes) -> Repeats:
        """Compare with what was recorded, also by versions that said nothing of the sink, or nothing at all."""
        try:
            record = json.loads(payload or b"{}")
        except ValueError:
            return Repeats.OTHER_RANGE
        if not isinstance(record, dict):
            return Repeats.OTHER_RANGE
        sink = record.get("sink")
        if isinstance(sink, dict) and (sink.get("topic") or "", sink.get("columns")) != (
            self.sink.topic,
            self.sink.columns,
        ):
            return Repeats.OTHER_SINK
        if self.source is None or not record.keys() & {"end", "sha256"}:
            return Repeats.NUMBER_ALONE
        return Repeats.SAME if self.source.is_recorded(record) else Repeats.OTHER_RANGE
