"""When a start last found that the node had not stopped cleanly, and what recovery found: kept for `semel doctor`.

A small file in the data folder, because the starts after that one are clean again.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import Final

from semel.broker.log_recovery import RecoveryReport
from semel.runtime.storage import Storage, read_whole, write_whole

_log = logging.getLogger("semel.logs")

NOTE_FILE: Final = "last-recovery.json"
_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """`at_ms`: when; -1 where there was none. `found`: what recovery says it found."""

    at_ms: int = -1
    found: str = ""


def update_note(storage: Storage, path: str, report: RecoveryReport, now_ms: int) -> RecoveryNote:
    """Write down a recovery that there was something to recover in; else return what an earlier start wrote.

    Never fails: a node must not stay down because of what is only told to people.
    """
    if not report.clean and (report.partitions or report.journal_entries):
        note = RecoveryNote(now_ms, str(report))
        try:
            write_whole(storage, path, json.dumps(asdict(note)).encode())
        except OSError as error:
            _log.warning("could not write %s: %s", path, error)
        return note
    try:
        found = json.loads(read_whole(storage, path, size_bytes_max=_BYTES_MAX))
        return RecoveryNote(int(found["at_ms"]), str(found["found"]))
    except FileNotFoundError:
        return RecoveryNote()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("could not read %s: %s", path, error)
        return RecoveryNote()
