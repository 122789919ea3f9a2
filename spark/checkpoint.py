"""Reads from a query's checkpoint which query it is of, and what source offsets a batch covers.

Spark writes `offsets/<batch id>` before the tasks of a batch run: a line with the version of the format, one with
metadata, and one for each source with the offset at which the batch ends. `metadata` holds the query's id.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from semel.protocol.api.shared_transactions import PAYLOAD_BYTES_MAX
from semel.protocol.errors import FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.spark.options import offsets_from_json

if TYPE_CHECKING:
    import pyarrow.fs

_log = logging.getLogger("semel.spark")

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
_FILE_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What a batch covers: for each source, where it starts and ends, as the source writes its offsets."""

    starts: tuple[str, ...]
    ends: tuple[str, ...]

    def payload(self) -> bytes:
        """Return the range as it is recorded with the decision: as it is, or its digest where it is too long."""
        text = json.dumps({"start": self.starts, "end": self.ends}, separators=(",", ":")).encode()
        if len(text) <= PAYLOAD_BYTES_MAX:
            return text
        return json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode()

    def group_offsets(self) -> dict[TopicPartition, int]:
        """Return the ends of those sources whose offsets have Kafka's shape."""
        found: dict[TopicPartition, int] = {}
        for line in self.ends:
            with suppress(ValueError, UsageError):
                value = json.loads(line)
                if isinstance(value, dict):
                    for tp, offset in offsets_from_json(value, "a source's offset").items():
                        found[tp] = min(offset, found.get(tp, offset))  # a topic that two sources read
        return found


class Checkpoint:
    """A checkpoint's folder: a path, or a URI of any file system that pyarrow knows."""

    def __init__(self, location: str) -> None:
        self.location = location
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
        lines = self._read(f"offsets/{batch_id}").decode().splitlines()
        if len(lines) < 2 or not lines[0].startswith("v"):
            raise FatalError(f"{self.location}/offsets/{batch_id} is no log of offsets as Spark writes it")
        return tuple(_canonical(line) for line in lines[2:])

    def _read(self, name: str) -> bytes:
        path = f"{self._folder}/{name}"
        try:
            with self._files.open_input_stream(path) as stream:
                data: bytes = stream.read(_FILE_BYTES_MAX)
        except OSError as error:
            raise FatalError(
                f"{path} of the checkpoint can't be read: {error}. The sink commits what the batch has read together "
                "with its output: give checkpointLocation whole, with its file system (hdfs://..., s3a://...). Where "
                "pyarrow can't reach it, set option sourceRange to 'none' (then a checkpoint that was rolled back is "
                "found by its batch numbers alone)"
            ) from None
        return data


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
    except (pa.ArrowInvalid, OSError) as error:
        raise FatalError(
            f"the checkpoint {location} is in a file system that pyarrow can't reach: {error}. Set option sourceRange "
            "to 'none' to do without it (then a checkpoint that was rolled back is found by its batch numbers alone)"
        ) from None
    return files, folder.rstrip("/")
