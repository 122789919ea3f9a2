"""Kafka's text checkpoint files: a version line, a count line, then one entry a line. Written atomically and durably.

`OffsetCheckpoint` is the node's (recovery-point-, log-start-, replication-offset-checkpoint: `topic partition offset`);
`leader-epoch-checkpoint` is each partition's (`epoch start-offset`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.runtime.storage import Storage, read_whole, write_whole

_VERSION: Final = 0
CHECKPOINT_BYTES_MAX: Final = 256 << 20


def _malformed(path: str, why: str) -> SemelError:
    return error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"the checkpoint file {path} is malformed: {why}")


def read_checkpoint(storage: Storage, path: str) -> list[list[str]]:
    """Return the words of each entry, or nothing where there is no file.

    Raises `SemelError` (KAFKA_STORAGE_ERROR) for a file that is not one.
    """
    try:
        data = read_whole(storage, path, size_bytes_max=CHECKPOINT_BYTES_MAX)
    except FileNotFoundError:
        return []
    try:
        lines = data.decode("ascii").splitlines()
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError) as error:
        raise _malformed(path, "it does not begin with a version and a count") from error
    if version != _VERSION:
        raise _malformed(path, f"its version is {version}, not {_VERSION}")
    entries = [line.split() for line in lines[2:] if line]
    if len(entries) != count:
        raise _malformed(path, f"it has {len(entries)} entries, not the {count} that it names")
    return entries


def write_checkpoint(storage: Storage, path: str, entries: Sequence[str]) -> None:
    """Replace a checkpoint file. Raises `OSError`."""
    text = "\n".join([str(_VERSION), str(len(entries)), *entries]) + "\n"
    write_whole(storage, path, text.encode("ascii"))


class OffsetCheckpoint:
    """One offset for each partition of the node."""

    __slots__ = ("_path", "_storage")

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path

    def read(self) -> dict[TopicPartition, int]:
        """Return the offsets. Raises `SemelError` (KAFKA_STORAGE_ERROR) for a file that is not a checkpoint."""
        offsets: dict[TopicPartition, int] = {}
        for words in read_checkpoint(self._storage, self._path):
            try:
                topic, partition, offset = words
                offsets[TopicPartition(topic, int(partition))] = int(offset)
            except ValueError as error:
                raise _malformed(self._path, f"an entry is {' '.join(words)!r}") from error
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file. Raises `OSError`."""
        write_checkpoint(
            self._storage, self._path, [f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()]
        )


def read_epochs(storage: Storage, path: str) -> list[tuple[int, int]]:
    """Return (epoch, start offset) of each entry. Raises `SemelError` (KAFKA_STORAGE_ERROR)."""
    epochs: list[tuple[int, int]] = []
    for words in read_checkpoint(storage, path):
        try:
            epoch, start_offset = words
            epochs.append((int(epoch), int(start_offset)))
        except ValueError as error:
            raise _malformed(path, f"an entry is {' '.join(words)!r}") from error
    return epochs


def write_epochs(storage: Storage, path: str, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace the file. Raises `OSError`."""
    write_checkpoint(storage, path, [f"{epoch} {start_offset}" for epoch, start_offset in epochs])
