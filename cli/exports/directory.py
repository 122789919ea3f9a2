"""The directory that `semel export` writes and `semel import` reads: what is in it, by the names of its files.

    export.json                                                         of which topic, in which format
    partition-0/00000000000000000000-00000000000000001200-1150-5f3a9c21.parquet
        offsets 0 to 1199, 1,150 records, and the CRC-32 of the file

A file takes its name when it is whole and on the disk. So the names say how far an export has come, whatever ended it;
and where a file is missing, has lost records, or was damaged, an import can tell.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Final

from semel.protocol.errors import UsageError

MANIFEST: Final = "export.json"
_VERSION: Final = 1
_MANIFEST_BYTES_MAX: Final = 16 << 20
_BLOCK_BYTES: Final = 1 << 20
_UNFINISHED: Final = ".partial"
_LOCK: Final = ".lock"
_FILE: Final = re.compile(
    r"(?P<first>[0-9]{20})-(?P<next>[0-9]{20})-(?P<records>[0-9]{1,20})-(?P<crc>[0-9a-f]{8})\.(?:parquet|jsonl)"
)
_ID: Final = re.compile(r"[0-9a-f]{32}")


class FileFormat(StrEnum):
    PARQUET = "parquet"
    JSON = "json"

    @property
    def suffix(self) -> str:
        return "jsonl" if self is FileFormat.JSON else "parquet"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `export.json` says.

    export_id:  of this directory, for good: imports know by it what they have taken
    topic_id:   which one it is, of those that have had this name
    start:      the offset in each partition where the export began
    end:        the offset up to which the last export that was not interrupted has written each partition
    since:      what --since said when the export began
    settings:   those of the topic that were set on it
    """

    export_id: str
    topic: str
    topic_id: str
    start: Mapping[int, int]
    end: Mapping[int, int]
    since: str | None
    format: FileFormat
    settings: Mapping[str, str]

    @property
    def partitions(self) -> int:
        """How many the topic had when the directory was last written to."""
        return len(self.start)


@dataclass(frozen=True, slots=True, order=True)
class ExportFile:
    """A whole file. It has what there is to read of the offsets from `first_offset` up to before `next_offset`."""

    first_offset: int
    next_offset: int
    records: int
    crc32: int
    path: Path

    def check(self) -> None:
        """Raises `UsageError` where it is not what was written."""
        try:
            found = _crc32(self.path)
        except OSError as error:
            raise UsageError(f"can't read {self.path}: {error.strerror}") from error
        if found != self.crc32:
            raise UsageError(
                f"{self.path} has the CRC-32 {found:08x}, and its name says {self.crc32:08x}: it was damaged, changed, "
                "or not copied as a whole. Bring it back, or export into a new directory"
            )


class ExportDirectory:
    """A directory of an export, new or written to before."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def manifest(self) -> Manifest | None:
        """Return what the directory says of itself; None where it is new. Raises `UsageError` where it is no export."""
        path = self.path / MANIFEST
        try:
            with path.open("rb") as file:
                data = file.read(_MANIFEST_BYTES_MAX + 1)
        except FileNotFoundError:
            ours = (_LOCK, MANIFEST + _UNFINISHED)  # what an export may leave that was cut off before it had a manifest
            if self.path.is_dir() and any(one.name not in ours for one in self.path.iterdir()):
                raise UsageError(
                    f"{self.path} has files and no {MANIFEST}: it is not an export. Name one, or a new directory"
                ) from None
            return None
        except OSError as error:
            raise UsageError(f"can't read {path}: {error.strerror}") from error
        return _parsed(path, data)

    def write_manifest(self, manifest: Manifest) -> None:
        """Say what the directory has."""
        said = {
            "version": _VERSION,
            "export_id": manifest.export_id,
            "topic": manifest.topic,
            "topic_id": manifest.topic_id,
            "start": manifest.start,
            "end": manifest.end,
            "since": manifest.since,
            "format": manifest.format.value,
            "settings": dict(manifest.settings),
        }
        unfinished = self.path / f"{MANIFEST}{_UNFINISHED}"
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(said, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        _take_name(unfinished, self.path / MANIFEST)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make the directory, and keep other exports out of it meanwhile. Raises `UsageError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"can't write to {self.path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another export writes to {self.path} now: wait for it, or end it") from None
            yield
        finally:
            os.close(descriptor)

    def folder(self, partition: int) -> Path:
        return self.path / f"partition-{partition}"

    def files(self, manifest: Manifest, partition: int) -> list[ExportFile]:
        """Return a partition's files by offset. Raises `UsageError` where one is missing, or there twice."""
        folder = self.folder(partition)
        found = []
        for path in folder.iterdir() if folder.is_dir() else ():
            named = _FILE.fullmatch(path.name)
            if named is not None:
                offsets = int(named["first"]), int(named["next"])
                found.append(ExportFile(*offsets, int(named["records"]), int(named["crc"], 16), path))
        found.sort()
        for before, after in pairwise(found):
            if after.first_offset < before.next_offset:
                raise UsageError(
                    f"{before.path} and {after.path} both have offset {after.first_offset}: one of them was put there "
                    "by something else. Move it away"
                )
            if after.first_offset > before.next_offset:
                raise self._missing(partition, before.next_offset, after.first_offset)
        begins = manifest.start.get(partition, 0)
        if found and found[0].first_offset != begins:
            raise self._missing(partition, begins, found[0].first_offset)
        behind = found[-1].next_offset if found else begins
        if behind < manifest.end.get(partition, 0):
            raise self._missing(partition, behind, manifest.end[partition])
        return found

    def check_folders(self, manifest: Manifest) -> None:
        """Raises `UsageError` where there are files of a partition that the manifest does not know."""
        for folder in self.path.glob("partition-*"):
            number = folder.name.removeprefix("partition-")
            is_unknown = number.isdecimal() and int(number) not in manifest.start
            if is_unknown and folder.is_dir() and any(folder.iterdir()):
                raise UsageError(
                    f"{self.path / MANIFEST} does not know {folder.name}, which has files: it is from before. Bring "
                    "back the one that belongs to them, or export into a new directory"
                )

    def _missing(self, partition: int, first: int, behind: int) -> UsageError:
        return UsageError(
            f"{self.folder(partition)} has no file with the offsets {first} to {behind - 1}, which the export has "
            "written: bring it back, or export into a new directory"
        )

    def remove_unfinished(self, partition: int) -> None:
        """Delete what an export that was cut off had begun to write."""
        folder = self.folder(partition)
        for path in folder.glob(f"*{_UNFINISHED}") if folder.is_dir() else ():
            path.unlink()

    def unfinished(self, partition: int, first_offset: int) -> Path:
        """Return where to write a file until it is whole."""
        folder = self.folder(partition)
        folder.mkdir(exist_ok=True)
        return folder / f"{first_offset:020}{_UNFINISHED}"

    def finish(self, unfinished: Path, first_offset: int, next_offset: int, records: int, format_: FileFormat) -> None:
        """Give a file that is whole its name, for good."""
        descriptor = os.open(unfinished, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        name = f"{first_offset:020}-{next_offset:020}-{records}-{_crc32(unfinished):08x}.{format_.suffix}"
        _take_name(unfinished, unfinished.with_name(name))


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc


def _take_name(unfinished: Path, path: Path) -> None:
    unfinished.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parsed(path: Path, data: bytes) -> Manifest:
    if len(data) > _MANIFEST_BYTES_MAX:
        raise UsageError(f"{path} is more than {_MANIFEST_BYTES_MAX} bytes large: it is not what `semel export` writes")
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON: restore it, or export into a new directory") from None
    wrong = UsageError(f"{path} does not say what an export says: restore it, or export into a new directory")
    if not isinstance(said, dict):
        raise wrong
    if said.get("version") != _VERSION:
        raise UsageError(
            f"{path} has version {said.get('version')!r}, and this `semel` knows {_VERSION}: take a newer one"
        )
    settings, since = said.get("settings"), said.get("since")
    is_right = (
        all(isinstance(said.get(name), str) for name in ("topic", "topic_id", "export_id"))
        and _ID.fullmatch(said["export_id"])
        and said.get("format") in list(FileFormat)
        and isinstance(settings, dict)
        and all(isinstance(value, str) for value in settings.values())
        and (since is None or isinstance(since, str))
        and all(_are_offsets(said.get(name)) for name in ("start", "end"))
    )
    if not is_right:
        raise wrong
    assert isinstance(settings, dict)
    start, end = ({int(number): offset for number, offset in said[name].items()} for name in ("start", "end"))
    format_ = FileFormat(said["format"])
    return Manifest(said["export_id"], said["topic"], said["topic_id"], start, end, since, format_, settings)


def _are_offsets(said: object) -> bool:
    """Whether it is an offset for each partition from 0 on."""
    return (
        isinstance(said, dict)
        and set(said) == {str(number) for number in range(len(said))}
        and all(isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0 for offset in said.values())
    )
