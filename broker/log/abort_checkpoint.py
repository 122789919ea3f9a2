"""`aborted-transactions-checkpoint`: what a clean stop left in each segment's list of aborted transactions (L3).

A list has no checksum of its own, and none at all says that nothing was aborted. So a list that was spoilt or removed
between two runs would show readers aborted records, if nobody had noted what it was. Kafka's tools pass the file over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from semel.broker.log.checkpoints import read_checkpoint, write_checkpoint
from semel.broker.log.segment import Segment
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, error_for
from semel.runtime.storage import Storage

ABORTED_TRANSACTIONS_FILE: Final = "aborted-transactions-checkpoint"

_READ_BYTES: Final = 1 << 20


def write_aborts(storage: Storage, folder: str, segments: Iterable[Segment]) -> None:
    """Note the lists as they are now; where there are none, leave no file. Raises `OSError`."""
    path = f"{folder}/{ABORTED_TRANSACTIONS_FILE}"
    entries = [f"{each.base_offset} {checksum(each)}" for each in segments if each.transactions.exists]
    if entries:
        write_checkpoint(storage, path, entries)
    elif storage.exists(path):
        storage.remove(path)


def read_aborts(storage: Storage, folder: str) -> dict[int, int]:
    """Return the checksum of each segment's list, by base offset. Raises `SemelError` (KAFKA_STORAGE_ERROR)."""
    path = f"{folder}/{ABORTED_TRANSACTIONS_FILE}"
    noted: dict[int, int] = {}
    for words in read_checkpoint(storage, path):
        try:
            base_offset, known = words
            noted[int(base_offset)] = int(known)
        except ValueError as error:
            raise error_for(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the checkpoint file {path} has an entry {' '.join(words)!r}"
            ) from error
    return noted


def checksum(segment: Segment) -> int:
    """Return a checksum of a segment's list, 0 where there is none: CRC-32C, each part's taken into the next one's."""
    if not segment.transactions.exists:
        return 0
    value, position = 0, 0
    while data := segment.transactions.file.read_at(_READ_BYTES, position):
        value = crc32c(value.to_bytes(4, "big") + data)
        position += len(data)
    return value
