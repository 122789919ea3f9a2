"""When a start last found that the node had not stopped cleanly, and what recovery found: kept for `semel doctor`.

A small file in the data folder, because the starts after that one are clean again.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import Final

from semel.broker.logs.journal_replay import RecoveryReport
from semel.runtime.storage import Storage, read_whole, write_whole

_log = logging.getLogger("semel.logs")

NOTE_FILE: Final = "last-recovery.json"
_BYTES_MAX: Final = 64 << 10
_DAMAGED_LOGS_TOLD_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """`at_ms`: when; -1 where there was none. `found`: what recovery says it found.

    `damage` is of the last start, after whatever stop, that found records lost or unreadable that had been synced, and
    `damaged_ms` when that was. Later starts do not find it again, so it stays until somebody removes the file.
    """

    at_ms: int = -1
    found: str = ""
    damaged_ms: int = -1
    damage: str = ""


def update_note(storage: Storage, path: str, report: RecoveryReport, now_ms: int) -> RecoveryNote:
    """Write down damage, and a recovery that there was something to recover in; else return what an earlier start did.

    Never fails: a node must not stay down because of what is only told to people.
    """
    before = note = _read_note(storage, path)
    if not report.clean and (report.partitions or report.journal_entries):
        note = replace(note, at_ms=now_ms, found=str(report))
    if report.damage:
        note = replace(note, damaged_ms=now_ms, damage=_told(report.damage))
    if note != before:
        try:
            write_whole(storage, path, json.dumps(asdict(note)).encode())
        except OSError as error:
            _log.warning("could not write %s: %s", path, error)
    return note


def _told(damage: tuple[str, ...]) -> str:
    more = len(damage) - _DAMAGED_LOGS_TOLD_MAX
    return "; ".join(damage[:_DAMAGED_LOGS_TOLD_MAX]) + (f"; and {more} more partitions" if more > 0 else "")


def _read_note(storage: Storage, path: str) -> RecoveryNote:
    try:
        found = json.loads(read_whole(storage, path, size_bytes_max=_BYTES_MAX))
        return RecoveryNote(
            int(found["at_ms"]), str(found["found"]), int(found.get("damaged_ms", -1)), str(found.get("damage", ""))
        )
    except FileNotFoundError:
        return RecoveryNote()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("could not read %s: %s", path, error)
        return RecoveryNote()
