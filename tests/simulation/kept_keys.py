"""What a compacted log says of each of its keys: cleaning takes away what is older, and nothing else (D4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from semel.protocol.batch_header import BatchHeader
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.record_decoder import decode_records

Latest = dict[bytes, tuple[int, bytes | None]]
"""The offset and the value of each key's last record. None: the key was deleted."""


@dataclass(slots=True)
class KeptKeys:
    """The last record of each key, of those that are in no transaction or in one that was committed."""

    latest: Latest = field(default_factory=dict)
    _pending: dict[int, Latest] = field(default_factory=dict)
    """Those of open transactions, by their producer ids."""

    def take(self, header: BatchHeader, data: bytes) -> None:
        """Take in the next batch of the log."""
        records = decode_records(data, header.position)
        if header.is_control:
            found = self._pending.pop(header.producer_id, {})
            if decode_control(records[0]).type is ControlType.COMMIT:
                for key, last in found.items():
                    # The order of the records counts, and not that of the markers.
                    self.latest[key] = max(last, self.latest.get(key, (-1, None)), key=lambda one: one[0])
            return
        place = self._pending.setdefault(header.producer_id, {}) if header.is_transactional else self.latest
        for record in records:
            if record.key is not None:
                place[bytes(record.key)] = (record.offset, None if record.value is None else bytes(record.value))

    def missing_in(self, now: KeptKeys) -> Iterator[str]:
        """Yield the keys of which another reading of the same log says something else."""
        for key, last in self.latest.items():
            found = now.latest.get(key)
            if found != last and not (last[1] is None and found is None):
                yield f"the last record of {key!r} was {last}, and is {found}"
