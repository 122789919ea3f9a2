"""When a start last found that the node had not stopped cleanly, and what recovery found: kept for `semel doctor`.

A small file in the data folder, because the starts after that one are clean again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from semel.broker.logs.journal_replay import RecoveryReport
from semel.protocol.ids import TopicPartition
from semel.runtime.storage import Storage, read_whole, write_whole

_log = logging.getLogger("semel.logs")

NOTE_FILE: Final = "last-recovery.json"
_BYTES_MAX: Final = 16 << 20
_DAMAGED_LOGS_TOLD_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """`at_ms`: when; -1 where there was none. `found`: what recovery says it found.

    `damage` says where starts, after whatever stop, found records lost or unreadable that had been synced, and
    `damaged_ms` when one did last. `damaged` are the partitions, of each what was found. Later starts do not find it
    again, so it stays until the partitions are repaired (`without`), or somebody removes the file.
    """

    at_ms: int = -1
    found: str = ""
    damaged_ms: int = -1
    damage: str = ""
    damaged: Mapping[TopicPartition, str] = field(default_factory=dict)

    def without(self, partitions: Collection[TopicPartition]) -> RecoveryNote:
        """Return the note after these partitions were repaired."""
        left = {tp: told for tp, told in self.damaged.items() if tp not in partitions}
        if len(left) == len(self.damaged):
            return self
        return replace(self, damaged=left, damage=_told(left), damaged_ms=self.damaged_ms if left else -1)


def update_note(storage: Storage, path: str, report: RecoveryReport, now_ms: int) -> RecoveryNote:
    """Write down damage, and a recovery that there was something to recover in; else return what an earlier start did.

    Never fails: a node must not stay down because of what is only told to people.
    """
    before = note = _read_note(storage, path)
    if not report.clean and (report.partitions or report.journal_entries):
        note = replace(note, at_ms=now_ms, found=str(report))
    if report.damage:
        damaged = {**note.damaged, **report.damage}
        note = replace(note, damaged_ms=now_ms, damage=_told(damaged), damaged=damaged)
    if note != before:
        write_note(storage, path, note)
    return note


def write_note(storage: Storage, path: str, note: RecoveryNote) -> None:
    """Write it, as a whole. Never fails, as above."""
    try:
        damaged = [[*tp, told] for tp, told in note.damaged.items()]
        fields = {name: getattr(note, name) for name in ("at_ms", "found", "damaged_ms", "damage")}
        write_whole(storage, path, json.dumps({**fields, "damaged": damaged}).encode())
    except OSError as error:
        _log.warning("could not write %s: %s", path, error)


def _told(damaged: Mapping[TopicPartition, str]) -> str:
    more = len(damaged) - _DAMAGED_LOGS_TOLD_MAX
    some = list(damaged.values())[:_DAMAGED_LOGS_TOLD_MAX]
    return "; ".join(some) + (f"; and {more} more partitions" if more > 0 else "")


def _read_note(storage: Storage, path: str) -> RecoveryNote:
    try:
        found = json.loads(read_whole(storage, path, size_bytes_max=_BYTES_MAX))
        return RecoveryNote(
            int(found["at_ms"]),
            str(found["found"]),
            int(found.get("damaged_ms", -1)),
            str(found.get("damage", "")),
            {TopicPartition(str(topic), int(number)): str(told) for topic, number, told in found.get("damaged", ())},
        )
    except FileNotFoundError:
        return RecoveryNote()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("could not read %s: %s", path, error)
        return RecoveryNote()
