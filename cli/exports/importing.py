"""`semel import`: send what `semel export` has written, each record once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

import semel
from semel.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    command_app,
    command_here,
    counted,
    examples,
    fails_well,
    open_admin,
    print_json,
)
from semel.cli.exports.directory import MANIFEST, ExportDirectory, ExportFile, Manifest
from semel.cli.exports.formats import RECORD_BYTES_MAX, read_file
from semel.cli.json_records import Message
from semel.cli.produce import Compression, abort_soon
from semel.cli.signals import finishing_on_signals
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.wording import duration, moment

app = command_app()

_TRANSACTION_RECORDS: Final = 5_000
_TRANSACTION_BYTES: Final = 8 << 20


@app.command(
    epilog=examples(
        "semel import backup/orders --create",
        "semel import backup/orders orders-restored --bootstrap other:9094",
    )
)
@fails_well
def import_(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="What `semel export` has written.")],
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Where to. Default: the topic that was exported.", show_default=False),
    ] = None,
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Create the topic if it does not exist, with the partitions and settings of the exported one.",
        ),
    ] = False,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.ZSTD,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was sent as JSON.")] = False,
) -> None:
    """Send what `semel export` has written to a topic, each record once.

    Each goes into the partition that it had, with its time, key and headers; offsets are new ones. Interrupted or
    repeated, it continues where it was.
    """
    source = ExportDirectory(directory)
    manifest = source.manifest()
    if manifest is None:
        raise UsageError(f"there is no {directory / MANIFEST}: name a directory that `semel export` has written")
    source.check_folders(manifest)
    name = manifest.topic if topic is None else topic
    with finishing_on_signals(), open_admin(bootstrap) as admin:
        target = _target(admin, name, manifest, bootstrap, create=create)
        if topic is None and target.topic_id == manifest.topic_id:
            raise UsageError(
                f"{name} is the topic that was exported: what it still has would be in it twice. Name another topic, "
                "or name this one to send everything to it again"
            )
        importer = _Importer(source, manifest, target, compression.value, bootstrap, admin)
        try:
            importer.run()
        except FencedError as error:
            raise FatalError(
                f"another import of {directory} into {name} was started after this one, and continues", error.code
            ) from error
        except (AbortTransactionError, RetriableError) as error:
            raise RetriableError(f"{error.message.rstrip('.')}. The same command continues", error.code) from error
        except KeyboardInterrupt:
            told = counted(importer.records, "record")
            print(f"interrupted; sent {told} to {name}. The same command continues", file=sys.stderr)
            raise
    if as_json:
        print_json({"topic": name, "records": importer.records, "records_before": importer.records_before})
    else:
        before = f"; {counted(importer.records_before, 'record')} had been sent before" * bool(importer.records_before)
        print(f"sent {counted(importer.records, 'record')} to {name}{before}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Target:
    """The topic to send to. retention_ms: after how long it deletes records; None: it does not."""

    name: str
    topic_id: str
    retention_ms: int | None


def _time_of(message: Message) -> int | None:
    """Return the time of a record. Old clients of Kafka send some without one, -1: these get the time of the import.

    So do those of before 1970, which no producer can send.
    """
    return None if message.timestamp_ms is None or message.timestamp_ms < 0 else message.timestamp_ms


def _target(admin: semel.Admin, name: str, manifest: Manifest, bootstrap: str, *, create: bool) -> _Target:
    """Return the topic to send to. Raises `FatalError` where there is none, or it has too few partitions."""
    try:
        found = admin.topic(name)
    except SemelError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        if not create:
            raise FatalError(
                f"there is no topic {name}. Give --create for one with {counted(manifest.partitions, 'partition')} "
                "and the settings of the exported one, or create it with `semel topic create`",
                error.code,
            ) from None
        found = admin.create_topic(name, partitions=manifest.partitions, configs=dict(manifest.settings))
        print(f"created topic {name} with {counted(len(found.partitions), 'partition')}", file=sys.stderr)
    if len(found.partitions) < manifest.partitions:
        add = command_here(f"semel topic add-partitions {name} --partitions {manifest.partitions}", bootstrap)
        raise FatalError(
            f"{name} has {counted(len(found.partitions), 'partition')}, and what was exported had "
            f"{manifest.partitions}. Add some with `{add}`, or name another topic",
            ErrorCode.INVALID_PARTITIONS,
        )
    names = ["retention.ms", "cleanup.policy", "message.timestamp.type"]
    settings = {one.name: one.value for one in admin.topic_configs(name, names)}
    if settings["message.timestamp.type"] == "LogAppendTime":
        print(
            f"warning: {name} gives records the time at which they arrive (message.timestamp.type), so the times of "
            "the export are not kept",
            file=sys.stderr,
        )
    is_bounded = "delete" in settings["cleanup.policy"] and int(settings["retention.ms"]) >= 0
    return _Target(name, str(found.topic_id), int(settings["retention.ms"]) if is_bounded else None)


@contextmanager
def _closing_soon(producer: semel.Producer) -> Iterator[None]:
    """Where Ctrl-C comes inside, do not wait for a node that is away."""
    try:
        yield
    except KeyboardInterrupt:
        abort_soon(producer)
        raise


class _Importer:
    """Sends the files of an export, one partition after the other.

    Each partition has a transactional id of its own, which says where it is: its last committed token is the offset, in
    the export, behind the last record that was sent. Records and token are committed together, so that an import that
    continues begins right behind them (E1).
    """

    def __init__(
        self,
        source: ExportDirectory,
        manifest: Manifest,
        target: _Target,
        compression: str,
        bootstrap: str,
        admin: semel.Admin,
    ) -> None:
        self._source = source
        self._manifest = manifest
        self._target = target
        self._compression = compression
        self._bootstrap = bootstrap
        self._admin = admin
        self._is_warned = False
        self._is_warned_of_times = False
        self.records = 0
        self.records_before = 0
        """What earlier imports of this directory have sent to this topic."""

    def run(self) -> None:
        files = [self._source.files(self._manifest, number) for number in range(self._manifest.partitions)]
        for number, of_partition in enumerate(files):
            if of_partition:
                self._send_partition(number, of_partition)

    def _send_partition(self, number: int, files: Sequence[ExportFile]) -> None:
        # Of a topic that was deleted and created again, nothing has been sent yet: so it is known by its id.
        transactional_id = f"semel-import-{self._manifest.export_id}-{self._target.topic_id}-{number}"
        with (
            semel.Producer(
                self._bootstrap,
                transactional_id=transactional_id,
                compression=self._compression,
                record_bytes_max=RECORD_BYTES_MAX,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
            ) as producer,
            _closing_soon(producer),
        ):
            last = producer.last_commit()
            position = 0 if last is None else int(last.token)
            self.records_before += 0 if last is None else int(last.payload)
            sent = 0 if last is None else int(last.payload)
            for messages, next_offset in self._transactions(number, files, position):
                self._warn_of_retention(_time_of(messages[0]))
                self._warn_of_times(messages)
                sent += len(messages)
                try:
                    with (
                        producer.transaction(
                            token=str(next_offset), payload=b"%d" % sent, sequence=next_offset
                        ) as transaction,
                        _closing_soon(producer),
                    ):
                        for message in messages:
                            transaction.send(
                                self._target.name,
                                message.value,
                                key=message.key,
                                headers=message.headers,
                                partition=number,
                                timestamp_ms=_time_of(message),
                            )
                        self._check_target(producer)
                except SemelError as error:
                    # Sent in the moment between the two, it was told that there is no such topic.
                    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        self._refuse_another()
                    if error.code is ErrorCode.INVALID_RECORD and any(one.key is None for one in messages):
                        raise FatalError(
                            f"{error.message}. Records without a key can't go to a topic that is compacted: import "
                            "into one with cleanup.policy=delete",
                            error.code,
                        ) from error
                    raise
                self.records += len(messages)
                self._tell(number)

    def _transactions(
        self, number: int, files: Sequence[ExportFile], position: int
    ) -> Iterator[tuple[list[Message], int]]:
        """Yield the records of one transaction after the other, and the offset behind them."""
        messages: list[Message] = []
        size_bytes = 0
        next_offset = position
        for file in files:
            if file.next_offset <= position:
                continue
            for offset, message in read_file(file, self._manifest, number, position):
                messages.append(message)
                size_bytes += len(message.key or b"") + len(message.value or b"")
                next_offset = offset + 1
                if len(messages) >= _TRANSACTION_RECORDS or size_bytes >= _TRANSACTION_BYTES:
                    yield messages, next_offset
                    messages, size_bytes = [], 0
            next_offset = file.next_offset  # what follows its last record are markers
        if messages:
            yield messages, next_offset

    def _warn_of_retention(self, timestamp_ms: int | None) -> None:
        """Say once that the topic is going to delete what is sent, being too old."""
        retention_ms = self._target.retention_ms
        if self._is_warned or retention_ms is None or timestamp_ms is None:
            return
        if timestamp_ms < time.time() * 1000 - retention_ms:
            self._is_warned = True
            name = self._target.name
            keep = command_here(f"semel topic config {name} --set retention.ms=-1", self._bootstrap)
            print(
                f"warning: there are records of {moment(timestamp_ms)}, and {name} deletes what is older than "
                f"{duration(retention_ms)} (retention.ms). To keep them: `{keep}`",
                file=sys.stderr,
            )

    def _warn_of_times(self, messages: Sequence[Message]) -> None:
        """Say once that a time is not kept: -1 is none, and what is below is one of before 1970."""
        if self._is_warned_of_times:
            return
        early_ms = next((one.timestamp_ms for one in messages if one.timestamp_ms and one.timestamp_ms < -1), None)
        if early_ms is not None:
            self._is_warned_of_times = True
            print(
                f"warning: there are records of {moment(early_ms)}. No producer can send a time before 1970: they get "
                "that of the import",
                file=sys.stderr,
            )

    def _check_target(self, producer: semel.Producer) -> None:
        """Raises `FatalError` where the topic was deleted and created again, in time to abort what went to the new one.

        All has arrived by then: with the topic still there, it has arrived in this one.
        """
        producer.flush()
        self._refuse_another()

    def _refuse_another(self) -> None:
        if str(self._admin.topic(self._target.name).topic_id) != self._target.topic_id:
            raise FatalError(
                f"topic {self._target.name} was deleted and created again meanwhile. The same command sends "
                "everything to the new one",
                ErrorCode.UNKNOWN_TOPIC_ID,
            )

    def _tell(self, number: int) -> None:
        if sys.stderr.isatty():
            print(f"\rpartition {number}: {counted(self.records, 'record')} in all", end="", file=sys.stderr)
