"""What a path in a data folder is, by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from semel.broker.log.abort_checkpoint import ABORTED_TRANSACTIONS_FILE
from semel.broker.log.log_directory import parse_name
from semel.broker.log.recovery import LEADER_EPOCHS_FILE
from semel.broker.logs.data_folder import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    META_FILE,
    RECOVERY_POINT_FILE,
)
from semel.broker.metadata.store import METADATA_FILE
from semel.protocol.ids import TopicPartition
from semel.runtime.regular_files import special_kind

_LOG_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_GOING: Final = re.compile(r"(?P<name>\S+)\.[0-9a-f]{32}-(?:delete|future|stray)")
_OBJECT_NAME: Final = re.compile(r"(?P<base>[0-9]{20})-(?P<end>[0-9]{20})-[0-9a-f]{24}")
_OBJECT_TOPIC: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-[a-zA-Z0-9_-]{22}")


class FileKind(Enum):
    """What a file holds."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    PROPERTIES = "properties"
    JOURNAL = "journal"
    METADATA = "metadata"
    OBJECT = "object"
    """A segment in a remote storage, or downloaded from one."""


_BY_SUFFIX: Final = {
    ".log": FileKind.LOG,
    ".index": FileKind.OFFSET_INDEX,
    ".timeindex": FileKind.TIME_INDEX,
    ".txnindex": FileKind.TRANSACTION_INDEX,
    ".snapshot": FileKind.SNAPSHOT,
}
_BY_NAME: Final = {
    LEADER_EPOCHS_FILE: FileKind.CHECKPOINT,
    ABORTED_TRANSACTIONS_FILE: FileKind.CHECKPOINT,
    RECOVERY_POINT_FILE: FileKind.CHECKPOINT,
    LOG_START_FILE: FileKind.CHECKPOINT,
    HIGH_WATERMARK_FILE: FileKind.CHECKPOINT,
    CLEANER_FILE: FileKind.CHECKPOINT,
    META_FILE: FileKind.PROPERTIES,
    "partition.metadata": FileKind.PROPERTIES,
    ".kafka_cleanshutdown": FileKind.PROPERTIES,
    METADATA_FILE: FileKind.METADATA,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A file to read. `base_offset` is -1 where its name has none, as `end_offset` is, which objects alone have; `tp`
    None where its folder is no log's.
    """

    path: str
    kind: FileKind
    tp: TopicPartition | None
    base_offset: int
    end_offset: int = -1


def misplaced(path: str) -> str:
    """Say what is wrong with `path` if it is no file that can be read; empty where it is one."""
    kind = "a directory" if os.path.isdir(path) else special_kind(path)
    return f"it is {kind}, and a file belongs there" if kind else ""


def log_name(name: str) -> TopicPartition | None:
    """Return the partition whose log a folder of this name holds, or None."""
    match = _LOG_NAME.fullmatch(name)
    return None if match is None else TopicPartition(match["topic"], int(match["partition"]))


def place_of(path: str) -> Place | None:
    """Return what the file at `path` is, or None where its name does not say."""
    folder, _, name = os.path.abspath(path).rpartition("/")
    parent = folder.rpartition("/")[2]
    going = _GOING.fullmatch(parent)
    tp = log_name(parent if going is None else going["name"])
    kind = _BY_NAME.get(name)
    if kind is not None:
        return Place(path, kind, tp, -1)
    if name.endswith(".journal"):
        return Place(path, FileKind.JOURNAL, None, -1)
    found = object_place(f"{folder}/{name}")
    if found is not None:
        return Place(path, FileKind.OBJECT, *found)
    parsed = parse_name(name)
    if parsed is None:
        return None
    # Segments on their way in or out have another suffix behind their own.
    suffix = "." + parsed[1][1:].partition(".")[0]
    kind = _BY_SUFFIX.get(suffix)
    return None if kind is None else Place(path, kind, tp, parsed[0])


def object_place(key: str) -> tuple[TopicPartition | None, int, int] | None:
    """Return the partition of an object, where its key says it, and its offsets (base, end); None for other keys."""
    folder, _, name = key.rpartition("/")
    topic_folder, _, number = folder.rpartition("/")
    match = _OBJECT_NAME.fullmatch(name)
    if match is None:
        return None
    topic = _OBJECT_TOPIC.fullmatch(topic_folder.rpartition("/")[2])
    tp = TopicPartition(topic["topic"], int(number)) if topic is not None and number.isdecimal() else None
    return tp, int(match["base"]), int(match["end"])


def places_in(path: str, partition: TopicPartition | None = None) -> Iterator[Place]:
    """Yield the files in a data folder or a log's folder, in the order in which to read them.

    A directory with the name of such a file is one of them: its reader has to say so.

    partition: only this one's
    """
    folders = []
    for name in sorted(os.listdir(path)):
        below = f"{path.rstrip('/')}/{name}"
        if os.path.isdir(below):
            folders.append((name, below))
        elif partition is None or log_name(os.path.basename(os.path.abspath(path))) == partition:
            place = place_of(below)
            if place is not None:
                yield place
    for name, below in folders:
        place = place_of(below)
        if place is not None:  # a directory in place of a file
            if partition is None or place.tp == partition:
                yield place
            continue
        is_ours = log_name(name) is not None or name == "journal" or _GOING.fullmatch(name) is not None
        if is_ours and (partition is None or log_name(name) == partition):
            yield from places_in(below)
