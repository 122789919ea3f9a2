"""`semel export`: write a topic to Parquet or JSON lines."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import semel
from semel.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    command_app,
    counted,
    examples,
    fails_well,
    open_admin,
    print_json,
)
from semel.cli.exports.directory import ExportDirectory, FileFormat, Manifest
from semel.cli.exports.formats import open_writer
from semel.cli.moments import MOMENT, MOMENT_FORMS, parse_moment
from semel.cli.signals import finishing_on_signals
from semel.protocol.errors import ErrorCode, FatalError, UsageError

if TYPE_CHECKING:
    import pyarrow

    from semel.sdk.arrow.scan import Scan

app = command_app()

FILE_BYTES: Final = 256 << 20
_SET_ON_TOPIC: Final = "DYNAMIC_TOPIC"


@app.command(
    epilog=examples(
        "semel export orders backup/orders",
        "semel export orders backup/orders  # again: what has come since",
        "semel export orders today --since 24h --format json",
    )
)
@fails_well
def export(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to write.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where to: a new directory, or one of an earlier export.")
    ],
    format_: Annotated[
        FileFormat | None,
        typer.Option(
            "--format",
            help="parquet: columns, as pyarrow writes them. json: an object on each line, as "
            "`semel consume --json` prints them. Default: that of the earlier export, else parquet.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar=MOMENT, help=f"Begin with the records of this time. {MOMENT_FORMS}. Default: the first."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar=MOMENT, help="End before the records of this time. Default: with the last.")
    ] = None,
    file_bytes: Annotated[
        int,
        typer.Option(
            min=1 << 20, max=16 << 30, metavar="BYTES", help="Begin another file after about so many, uncompressed."
        ),
    ] = FILE_BYTES,
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost",
            help="Go on where retention has deleted records that were not written yet. A warning says which.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a topic to Parquet or JSON lines, each record once; repeated, what has come since.

    What is written are the records of committed transactions, with offset, time, key, value and headers, up to the last
    one that is there when it begins. Interrupted or repeated, it continues behind what the directory has. `semel
    import` brings them back.
    """
    now_ms = int(time.time() * 1000)
    start = None if since is None else _moment(since, "--since", now_ms)
    end = None if until is None else _moment(until, "--until", now_ms)
    target = ExportDirectory(directory)
    with finishing_on_signals():
        with open_admin(bootstrap) as admin:
            described = admin.topic(topic)
            settings = {one.name: one.value for one in admin.topic_configs(topic) if one.source == _SET_ON_TOPIC}
        topic_id = str(described.topic_id)
        with target.writing(), _explained(directory):
            before = target.manifest()
            starts: dict[int, int] = {}
            if before is not None:
                _check_same(directory, before, topic, topic_id, format_, since)
                target.check_folders(before)
                # A partition that was added since has not been written at all: what it has lost is missing, too.
                starts = dict.fromkeys(range(len(described.partitions)), 0) | _behind(target, before)
            scan = semel.arrow.scan(
                topic,
                start if before is None and start is not None else starts,
                "latest" if end is None else end,
                topic_id=topic_id,
                bootstrap=bootstrap,
                columns=semel.arrow.ALL_COLUMNS,
                on_data_loss="skip" if skip_lost else "raise",
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
            )
            manifest = Manifest(
                uuid.uuid4().hex if before is None else before.export_id,
                topic,
                topic_id,
                scan.start if before is None else {**scan.start, **before.start},
                {} if before is None else before.end,
                since if before is None else before.since,
                before.format if before is not None else format_ or FileFormat.PARQUET,
                settings,
            )
            if manifest != before:
                target.write_manifest(manifest)
            exporter = _Exporter(target, manifest.format, scan, file_bytes)
            try:
                exporter.run()
            except KeyboardInterrupt:
                told = counted(exporter.records, "record")
                print(f"interrupted; wrote {told} to whole files. The same command continues", file=sys.stderr)
                raise
            ends = _behind(target, manifest)
            if ends != manifest.end:
                target.write_manifest(replace(manifest, end=ends))
    if as_json:
        print_json({"topic": topic, "records": exporter.records, "files": exporter.files, "end": scan.end})
    else:
        files_said = counted(exporter.files, "file")
        print(f"wrote {counted(exporter.records, 'record')} of {topic} in {files_said} to {directory}", file=sys.stderr)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Turn what may happen to an export into errors with the next step."""
    try:
        yield
    except semel.arrow.DataLossError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
            raise FatalError(f"{error.what}. Give that one another directory", error.code) from error
        raise FatalError(
            f"{error.what}. Where retention has deleted records since the last export, --skip-lost continues with "
            "those that are left, and warns of what is missing",
            error.code,
        ) from error
    except OSError as error:
        raise UsageError(f"can't write to {directory}: {error.strerror or error}") from error


def _check_same(
    directory: Path, before: Manifest, topic: str, topic_id: str, format_: FileFormat | None, since: str | None
) -> None:
    """Raises `UsageError` where the directory has an export of something else."""
    if before.topic != topic:
        raise UsageError(f"{directory} has an export of topic {before.topic}: give {topic} another directory")
    if before.topic_id != topic_id:
        raise UsageError(
            f"{directory} has an export of another {topic}: the topic was deleted and created again since. Give this "
            "one another directory"
        )
    if format_ not in (None, before.format):
        raise UsageError(f"{directory} has an export in {before.format}: leave out --format")
    if since not in (None, before.since):
        began = "began with the first record" if before.since is None else f"began with --since {before.since}"
        raise UsageError(f"{directory} has an export that {began}, and continues where it ended: leave out --since")


def _behind(target: ExportDirectory, before: Manifest) -> dict[int, int]:
    """Return where an export continues, in the partitions that it had."""
    starts = dict(before.start)
    for number in starts:
        files = target.files(before, number)
        starts[number] = files[-1].next_offset if files else starts[number]
    return starts


def _moment(text: str, option: str, now_ms: int) -> datetime:
    moment_ms = parse_moment(text, option, now_ms)
    try:
        return datetime.fromtimestamp(moment_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{option} {text} is later than any time that there is") from None


class _Exporter:
    """Writes what a scan has, in files that have their name when they are whole."""

    def __init__(self, target: ExportDirectory, format_: FileFormat, scan: Scan, file_bytes: int) -> None:
        self._target = target
        self._format = format_
        self._scan = scan
        self._file_bytes = file_bytes
        self._next: dict[int, int] = {}
        """Where the next file of a partition begins that has one already."""
        self.records = 0
        """In files that have their name."""
        self.files = 0

    def run(self) -> None:
        for number in self._scan.start:
            self._target.remove_unfinished(number)
        file: _File | None = None
        try:
            # A scan reads one partition after the other.
            for records, offsets in self._scan.with_offsets():
                number = records.column("partition")[0].as_py()
                if file is not None and file.partition != number:
                    self._finish(file, self._scan.end[file.partition])
                    file = None
                if file is None:
                    file = self._begin(number)
                file.write(records)
                file.next_offset = offsets[number]
                self._tell(file)
                if file.size_bytes >= self._file_bytes:
                    self._finish(file, file.next_offset)
                    file = None
            if file is not None:
                self._finish(file, self._scan.end[file.partition])
                file = None
        finally:
            if file is not None:
                file.abandon()

    def _begin(self, partition: int) -> _File:
        first = self._next.get(partition, self._scan.start[partition])
        return _File(self._target.unfinished(partition, first), self._format, partition, first, self._scan.schema)

    def _finish(self, file: _File, next_offset: int) -> None:
        file.writer.close()
        self._target.finish(file.path, file.first_offset, next_offset, file.records, self._format)
        self._next[file.partition] = next_offset
        self.files += 1
        self.records += file.records

    def _tell(self, file: _File) -> None:
        if sys.stderr.isatty():
            count = counted(self.records + file.records, "record")
            print(f"\rpartition {file.partition}: {count} in all", end="", file=sys.stderr)


class _File:
    """One that is being written."""

    def __init__(
        self, path: Path, format_: FileFormat, partition: int, first_offset: int, schema: pyarrow.Schema
    ) -> None:
        self.path = path
        self.partition = partition
        self.first_offset = first_offset
        self.next_offset = first_offset
        self.writer = open_writer(path, format_, schema)
        self.records = 0
        self.size_bytes = 0

    def write(self, records: pyarrow.RecordBatch) -> None:
        self.writer.write(records)
        self.records += records.num_rows
        self.size_bytes += records.nbytes

    def abandon(self) -> None:
        """Close it as it is, and delete it: the next export writes it again."""
        with suppress(Exception):  # the error that ended the export is the one to show
            self.writer.close()
        self.path.unlink(missing_ok=True)
