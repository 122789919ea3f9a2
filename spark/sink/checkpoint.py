"""Reads from a query's checkpoint which query it is of, and what source offsets a batch covers.

Spark writes `offsets/<batch id>` before the tasks of a batch run: a line with the version of the format, one with
metadata, and one for each source with the offset at which the batch ends. `metadata` holds the query's id. Runs on
the driver.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semel.protocol.errors import FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.spark.first_start import first_start
from semel.spark.options import offsets_from_json, without_secrets

if TYPE_CHECKING:
    import pyarrow.fs

_log = logging.getLogger("semel.spark")

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
_FILE_BYTES_MAX: Final = 64 << 20

_OWN_FILE: Final = "semel-query-id"
_checked: Final[set[tuple[str, str]]] = set()
"""Checkpoints and queries that this process has compared: neither changes while a query runs."""

_OFFSET: Final = "a source's offset"
_NOWHERE: Final = -1

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
        return _lowest(offsets_from_json(value, _OFFSET) for value in _in_kafkas_shape(self.ends))

    def group_starts(self) -> dict[TopicPartition, int]:
        """Return where a group must stand for the ends to be committed (O5): where those sources start, else nowhere.

        The first batch has no batch before it that says so. Semel's source says it with the batch's end.
        """
        starts = _lowest(
            [offsets_from_json(value, _OFFSET) for value in _in_kafkas_shape(self.starts)]
            if self.starts
            else [first_start(value, _OFFSET) or {} for value in _in_kafkas_shape(self.ends)]
        )
        return {tp: (starts or {}).get(tp, _NOWHERE) for tp in self.group_offsets() or {}}


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

    def check_query(self, query_id: str) -> None:
        """Refuse to continue a checkpoint under another query's id: its decisions would not be found under this one.

        Spark makes a new id where the file `metadata` is lost. So the sink keeps the id in a file of its own.
        """
        if (self.location, query_id) in _checked:
            return
        path = f"{self._folder}/{_OWN_FILE}"
        try:
            with self._files.open_input_stream(path) as stream:
                known = stream.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
        except FileNotFoundError:
            known = query_id
            self._keep(path, query_id)
        except OSError as error:
            _log.warning("%s can't be read: %s", path, without_secrets(str(error)))
            return  # the offsets of the batch are read next, and where that fails, too, it is an error
        if known != query_id:
            raise FatalError(
                f"{self.location} is the checkpoint of query {known}, and Spark now runs it as query {query_id}: the "
                "file metadata in it was lost, and Spark has made another. What is committed was committed under the "
                "first id, so the last batch could be written twice. Nothing was written. Restore metadata, or "
                f'write {{"id":"{known}"}} into {self.location}/metadata and delete .metadata.crc beside it, and '
                "start the query again"
            )
        _checked.add((self.location, query_id))

    def _keep(self, path: str, query_id: str) -> None:
        try:
            with self._files.open_output_stream(path) as stream:
                stream.write(query_id.encode())
        except OSError as error:
            _log.warning(
                "%s can't be written: %s. Should the checkpoint's file metadata ever be lost, the sink will not notice",
                path,
                without_secrets(str(error)),
            )

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


def _in_kafkas_shape(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the offsets of those sources that have one for each partition of a topic."""
    for line in lines:
        with suppress(ValueError, UsageError):
            value = json.loads(_offset_in(line))
            if isinstance(value, dict):
                offsets_from_json(value, _OFFSET)
                yield value


def _lowest(of_sources: Iterable[Mapping[TopicPartition, int]]) -> dict[TopicPartition, int] | None:
    """Return the offsets of all sources: the lowest of a partition that several read. None where there is no source."""
    found: dict[TopicPartition, int] | None = None
    for offsets in of_sources:
        found = found or {}
        for tp, offset in offsets.items():
            found[tp] = min(offset, found.get(tp, offset))
    return found


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


def _literal(rest: str) -> str:
    """Return a URI without its scheme in such a way that pyarrow takes its path as Spark does: as it is written."""
    found = re.fullmatch(r"(//[^/]*)?([^?]*)(.*)", rest, re.DOTALL)
    assert found is not None
    return f"{found[1] or ''}{found[2].replace('%', '%25')}{found[3]}"


def _file_system(location: str) -> tuple[pyarrow.fs.FileSystem, str]:
    import pyarrow as pa
    import pyarrow.fs

    found = re.match(r"^([A-Za-z][A-Za-z0-9+.-]*):(/.*)$", location)
    if found is None:
        return pyarrow.fs.LocalFileSystem(), location.rstrip("/")
    scheme = _SCHEMES.get(found[1].lower(), found[1].lower())
    if scheme == "file":
        return pyarrow.fs.LocalFileSystem(), re.sub(r"^/+", "/", found[2]).rstrip("/")
    try:
        files, folder = pyarrow.fs.FileSystem.from_uri(f"{scheme}:{_literal(found[2])}")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise FatalError(
            f"the checkpoint {without_secrets(location)} is in a file system that pyarrow can't reach: "
            f"{without_secrets(str(error))}. To do without it, {_NONE_FINDS}"
        ) from None
    return files, folder.rstrip("/")
