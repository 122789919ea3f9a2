"""Logs that have lost what was written last, such as the marker of a transaction."""

from __future__ import annotations

from pathlib import Path

from semel.protocol.batch_header import iter_batches


def cut_last_batch(folder: Path) -> None:
    """Take the last batch from a stopped partition's log, as if it never had reached the disk."""
    (path,) = folder.glob("*.log")
    data = path.read_bytes()
    place = 0
    for header in iter_batches(memoryview(data)):
        place = header.position
    path.write_bytes(data[:place])
    for other in folder.glob("*.snapshot"):
        other.unlink()
    (folder.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)
