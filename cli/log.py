"""`semel log`: print and check the files of a node's data directory, without the node."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from semel.cli.common import AsJson, ExitCode, command_app, counted, examples, fails_well, parse_partition, print_json
from semel.protocol.errors import UsageError

app = command_app("Print and check the files of a node's data directory, or of a remote storage. No node is needed.")

_PROGRESS_EVERY_S = 2.0
_MEGABYTE = 1e6


class DumpFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class DecoderName(StrEnum):
    AUTO = "auto"
    NONE = "none"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


@app.command(
    epilog=examples(
        "semel log dump data/orders-0",
        "semel log dump data/orders-0 --records --offset 1200",
        "semel log dump data --partition orders:0 --transactional",
        "semel log dump data/__transaction_state-3 --records --format json",
        "semel log dump --remote s3://my-bucket/semel orders:0 --records --from 1200",
    )
)
@fails_well
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="A data directory, a partition's directory in it, or a file in one; or an object that was downloaded "
            "from a remote storage. With --remote: TOPIC, TOPIC:PARTITION, an object's key, or what keys begin with "
            "before a slash.",
        ),
    ],
    remote_storage: Annotated[
        str,
        typer.Option(
            "--remote", metavar="URL", help="Read objects of this remote storage: the nodes' remote.storage.url."
        ),
    ] = "",
    records: Annotated[
        bool,
        typer.Option("--records", help="Print the records too: keys, values, headers; decoded in internal topics."),
    ] = False,
    offset: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="Only the batch with this offset, and this record.")
    ] = None,
    first: Annotated[int | None, typer.Option("--from", min=0, metavar="OFFSET", help="Begin at this offset.")] = None,
    last: Annotated[int | None, typer.Option("--to", min=0, metavar="OFFSET", help="End with this offset.")] = None,
    producer_id: Annotated[
        int | None, typer.Option(min=0, metavar="ID", help="Only batches of this producer id.")
    ] = None,
    transactional: Annotated[
        bool, typer.Option("--transactional", help="Only batches of transactions, and transaction markers.")
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option(metavar="TOPIC:PARTITION", help="Only this partition of a data directory, or of many objects."),
    ] = None,
    decoder: Annotated[
        DecoderName,
        typer.Option(
            help="How to decode records. auto: by the directory's name; offsets: as in __consumer_offsets; "
            "transactions: as in __transaction_state; none: as bytes."
        ),
    ] = DecoderName.AUTO,
    format_: Annotated[
        DumpFormat, typer.Option("--format", help="text: for people. json: a line for each entry.")
    ] = DumpFormat.TEXT,
) -> None:
    """Print the files of a data directory: batches, records, indexes, snapshots, checkpoints, journal and metadata.

    Or the objects of a remote storage: what each says of itself, batches, index, aborted transactions and producers.

    Nothing is written or locked, so the node may be running; what it is writing may then look torn. Damage is printed
    where it is found, after everything that could be read. The exit code is 1 if there was any.
    """
    from semel.broker.inspection.dump import Dump
    from semel.broker.inspection.dump_options import Decoder, DumpOptions
    from semel.broker.inspection.text import line_of

    if offset is not None and (first is not None or last is not None):
        raise UsageError("--offset is one offset: leave it out, or --from and --to")
    if first is not None and last is not None and first > last:
        raise UsageError(f"--from {first} is after --to {last}: swap them")
    options = DumpOptions(
        records=records,
        first_offset=first if offset is None else offset,
        last_offset=last if offset is None else offset,
        producer_id=producer_id,
        transactional=transactional,
        partition=None if partition is None else parse_partition(partition),
        decoder=Decoder(decoder.value),
    )
    if remote_storage:
        from semel.broker.inspection.remote_objects import RemoteObjects

        remote = RemoteObjects.at(remote_storage)
    else:
        remote = None
        _say_where_a_node_runs(paths)
    progress = _Progress()
    reading = Dump(paths, options, progress.read, remote)
    try:
        for entry in reading.entries():
            if format_ is DumpFormat.JSON:
                print_json(entry)
            else:
                print(line_of(entry))
    finally:
        if remote is not None:
            remote.close()
    if reading.damaged:
        verify_command = "semel log verify" if remote is None else "semel log verify DIR --remote URL"
        print(f"semel: damaged in {counted(reading.damaged, 'place')}; `{verify_command}` says more", file=sys.stderr)
        sys.stdout.flush()
        raise typer.Exit(ExitCode.REFUSED)


@app.command(
    epilog=examples(
        "semel log verify data",
        "semel log verify /var/lib/semel --deep --json",
        "semel log verify data --remote s3://my-bucket/semel",
        exit_codes="0 no damage; 1 something is damaged; 2 the command line is wrong",
    )
)
@fails_well
def verify(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A node's data.dir.")],
    deep: Annotated[bool, typer.Option("--deep", help="Also decompress each batch and read its records.")] = False,
    metadata_url: Annotated[
        str,
        typer.Option(metavar="URL", help="The node's metadata.url, if its metadata is not in the directory."),
    ] = "",
    remote_storage: Annotated[
        str,
        typer.Option(
            "--remote",
            metavar="URL",
            help="Also read and check all that the cluster has in its remote storage: its remote.storage.url.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check a whole data directory, and say what the node would do about damage when it starts.

    Every batch is read and compared with what is derived from it: indexes, aborted transactions, producer snapshots,
    leader epochs, checkpoints, the journal, the metadata, the coordinators' topics, and hanging transactions. A dry run
    shows what a start would do. The directory is not changed. If the node is running, what it is writing may look torn:
    check again, or stop the node, before you act.
    """
    from semel.broker.inspection.report import print_report, report_fields
    from semel.broker.inspection.verify import verify as verify_folder

    progress = _Progress()
    report = verify_folder(
        folder,
        deep=deep,
        metadata_url=metadata_url,
        remote_storage=remote_storage,
        progress=lambda now: progress.read(now.doing, now.done_bytes, now.total_bytes),
    )
    if as_json:
        print_json(report_fields(report))
    else:
        print_report(report)
    if not report.is_whole:
        sys.stdout.flush()
        raise typer.Exit(ExitCode.REFUSED)


class _Progress:
    """Says on standard error how far it is, where it takes long."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_EVERY_S

    def read(self, what: str, done: int, size: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_EVERY_S
            of = f": {done / _MEGABYTE:,.0f} of {size / _MEGABYTE:,.0f} MB" if size else ""
            print(f"semel: {what}{of}", file=sys.stderr)


def _say_where_a_node_runs(paths: Iterable[str]) -> None:
    import os

    from semel.broker.inspection.verify import is_in_use

    for path in paths:
        whole = os.path.abspath(path)
        for folder in (whole, os.path.dirname(whole), os.path.dirname(os.path.dirname(whole))):
            if is_in_use(folder):
                print(f"semel: a node is running on {folder}: what it is writing may look torn", file=sys.stderr)
                return
