"""Reads from a query's checkpoint which query it is of, and what source offsets a batch covers.

Spark writes `offsets/<batch id>` before the tasks of a batch run: a line with the version of the format, one with
metadata, and one for each source with the offset at which the batch ends. `metadata` holds the query's id.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from semel.protocol.errors import FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.spark.options import offsets_from_json, without_secrets

if TYPE_CHECKING:
    import pyarrow.fs

_log = logging.getLogger("semel.spark")

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
_FILE_BYTES_MAX: Final = 64 << 20

_NONE_FINDS: Final = (
    "set option sourceRange to 'none' (then of a checkpoint that was rolled back it is noticed where batches are gone "
    "that came after the one that runs again, and not where the last one alone is gone)"
)


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What a batch covers: for each source, where it starts and ends, as the source writes its offsets."""

    starts: tuple[str, ...]
    ends: tuple[str, ...]

    def recorded(self, room_bytes: int) -> dict[str, Any]:
        """Return the range as it is recorded with the decision: as it is, or its digest where it is too long."""
        text = self._text()
        if len(text) <= room_bytes:
            return {"start": self.starts, "end": self.ends}
        return {"sha256": hashlib.sha256(text).hexdigest()}

    def is_recorded(self, record: Mapping[str, Any]) -> bool:
        """Whether this range is what was recorded, in whichever way."""
        if "sha256" in record:
            return bool(record["sha256"] == hashlib.sha256(self._text()).hexdigest())
        return [_comparable(record.get(name)) for name in ("start", "end")] == [
            _comparable(lines) for lines in (self.starts, self.ends)
        ]

    def _text(self) -> bytes:
        return json.dumps({"start": self.starts, "end": self.ends}, separators=(",", ":")).encode()

    def group_offsets(self) -> dict[TopicPartition, int] | None:
        """Return the ends of those sources whose offsets have Kafka's shape; None where none has it."""
        found: dict[TopicPartition, int] | None = None
        for line in self.ends:
            with suppress(ValueError, UsageError):
                value = json.loads(_offset_in(line))
                if isinstance(value, dict):
                    offsets = offsets_from_json(value, "a source's offset")
                    found = found or {}
                    for tp, offset in offsets.items():
                        found[tp] = min(offset, found.get(tp, offset))  # a topic that two sources read
        return found


class Checkpoint:
    """A checkpoint's folder: a path, or a URI of any file system that pyarrow knows."""

    def __init__(self, location: str) -> None:
        self.location = without_secrets(location)
        self._files, self._folder = _file_system(location)

    def query_id(self) -> str:
        """Return the id that the query has for as long as its checkpoint lives."""
        try:
            return str(json.loads(self._read("metadata"))["id"])
        except (ValueError, KeyError, TypeError):
            raise FatalError(f"{self.location}/metadata does not hold a query's id: is this a checkpoint?") from None

    def source_range(self, batch_id: int) -> SourceRange:
        """Return what a batch covers. Raises `FatalError` where the checkpoint does not say."""
        ends = self._offsets(batch_id)
        starts = self._offsets(batch_id - 1) if batch_id > 0 else ()
        return SourceRange(starts, ends)

    def _offsets(self, batch_id: int) -> tuple[str, ...]:
        """Spark's two formats: v1 has an offset per line, v2 the source's id, a colon, and its offset."""
        what = f"{self.location}/offsets/{batch_id}"
        lines = self._read(f"offsets/{batch_id}").decode(errors="replace").splitlines()
        version = lines[0].strip() if lines else ""
        if len(lines) < 2 or not re.fullmatch(r"v\d+", version):
            raise FatalError(f"{what} is no log of offsets as Spark writes it")
        if version not in ("v1", "v2"):
            raise FatalError(
                f"{what} is a log of offsets in format {version}, and this sink knows v1 and v2: set "
                "spark.sql.streaming.offsetLog.formatVersion to 2 for a new checkpoint, or use a newer Semel"
            )
        if version == "v1":
            return tuple(_canonical(line) for line in lines[2:])
        found = []
        for line in lines[2:]:
            source, colon, offset = line.partition(":")
            if not colon:
                raise FatalError(f"{what} is no log of offsets as Spark writes it: a line of v2 has no source's id")
            found.append(f"{source}:{_canonical(offset)}")
        return tuple(sorted(found))

    def _read(self, name: str) -> bytes:
        path = f"{self._folder}/{name}"
        try:
            with self._files.open_input_stream(path) as stream:
                data: bytes = stream.read(_FILE_BYTES_MAX)
        except OSError as error:
            raise FatalError(
                f"{path} of the checkpoint can't be read: {without_secrets(str(error))}. The sink commits what the "
                "batch has read together with its output: give checkpointLocation whole, with its file system "
                f"(hdfs://..., s3a://...). Where pyarrow can't reach it, {_NONE_FINDS}"
            ) from None
        return data


def _offset_in(line: str) -> str:
    """Return the offset of a line of either format."""
    return re.sub(r"^[\w-]+:", "", line)


def _comparable(lines: object) -> list[str]:
    """Return lines of either format as they were always written: format v2 was once recorded as it is in the file."""
    if not isinstance(lines, (list, tuple)):
        return []
    return sorted(
        str(line).removesuffix(offset) + _canonical(offset) for line in lines for offset in (_offset_in(str(line)),)
    )


def _canonical(line: str) -> str:
    """Return an offset in one way of writing it: Spark's Kafka source and this one differ in blanks and order."""
    try:
        return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))
    except ValueError:
        return line


def _file_system(location: str) -> tuple[pyarrow.fs.FileSystem, str]:
    import pyarrow as pa
    import pyarrow.fs

    found = re.match(r"^([A-Za-z][A-Za-z0-9+.-]*):(/.*)$", location)
    if found is None:
        return pyarrow.fs.LocalFileSystem(), location.rstrip("/")
    scheme = _SCHEMES.get(found[1].lower(), found[1].lower())
    if scheme == "file":
        return pyarrow.fs.LocalFileSystem(), unquote(re.sub(r"^/+", "/", found[2])).rstrip("/")
    try:
        files, folder = pyarrow.fs.FileSystem.from_uri(f"{scheme}:{found[2]}")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise FatalError(
            f"the checkpoint {without_secrets(location)} is in a file system that pyarrow can't reach: "
            f"{without_secrets(str(error))}. To do without it, {_NONE_FINDS}"
        ) from None
    return files, folder.rstrip("/")
