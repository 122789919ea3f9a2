"""`semel consume`: print records."""

from __future__ import annotations

import base64
import json
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

import semel
from semel.cli.common import DEFAULT_BOOTSTRAP, HEADER_BASE64, AsJson, Bootstrap, fails_well
from semel.protocol.errors import FatalError, UsageError
from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from semel.protocol.api.topics import TopicDescription

app = typer.Typer(add_completion=False)


class OutputFormat(StrEnum):
    VALUE = "value"
    KEYED = "keyed"
    JSON = "json"


class Isolation(StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@app.command(
    epilog="Examples:\n\n"
    "semel consume orders --from-beginning\n\n"
    "semel consume orders --group audit --format json\n\n"
    "semel consume orders --partition 0 --offset 1200 --max 10\n\n"
    "semel consume orders --from-beginning --timeout 2 > orders.txt"
)
@fails_well
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="What to read.")],
    group: Annotated[
        str | None, typer.Option(help="Share the partitions with this group, begin where it stands, and commit for it.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin at the start where nothing is committed; else at the end.")
    ] = False,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Begin here; needs --partition.")] = None,
    isolation: Annotated[
        Isolation, typer.Option(help="Whether to see records of transactions that are open or aborted.")
    ] = Isolation.READ_COMMITTED,
    format_: Annotated[
        OutputFormat, typer.Option("--format", help="value: a line each. keyed: key, tab, value. json: all there is.")
    ] = OutputFormat.VALUE,
    skip_unreadable: Annotated[
        bool,
        typer.Option("--skip-unreadable", help="Pass over batches that can't be read, with a warning for each."),
    ] = False,
    max_records: Annotated[int | None, typer.Option("--max", min=1, help="End after so many records.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="End when nothing has come for so long.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print records as they come, until interrupted. With a group, what was printed is committed."""
    if offset is not None and partition is None:
        raise UsageError("--offset needs --partition: offsets are numbered in each partition on its own")
    if partition is not None and group is not None:
        raise UsageError("--partition reads one partition on its own; a group shares them out: give one of the two")
    if as_json:
        format_ = OutputFormat.JSON
    with semel.Consumer(
        bootstrap,
        group=group,
        isolation=isolation.value,
        offset_reset="error" if offset is not None else "earliest" if from_beginning else "latest",
        on_unreadable_batch="skip" if skip_unreadable else "raise",
        session_timeout_ms=10_000,
    ) as consumer:
        with semel.Admin(bootstrap) as admin:  # says at once that there is no node, or no such topic
            found = [admin.topic(name) for name in topics]
        if group is not None:
            consumer.subscribe(topics)
        else:
            _assign(consumer, found, partition, offset)
        try:
            _print_records(consumer, format_, max_records, timeout, commits=group is not None)
        except semel.UnreadableBatchError as error:
            raise FatalError(f"{error.message}; so does this command with --skip-unreadable", error.code) from error


def _assign(
    consumer: semel.Consumer, topics: list[TopicDescription], partition: int | None, offset: int | None
) -> None:
    tps = [
        TopicPartition(topic.name, place.partition)
        for topic in topics
        for place in topic.partitions
        if partition is None or place.partition == partition
    ]
    if not tps:
        raise UsageError(f"there is no partition {partition} in {', '.join(topic.name for topic in topics)}")
    consumer.assign(tps)
    if offset is not None:
        for tp in tps:
            consumer.seek(tp, offset)


def _print_records(
    consumer: semel.Consumer, format_: OutputFormat, max_records: int | None, timeout: float | None, *, commits: bool
) -> None:
    printed = 0
    heard_at = time.monotonic()
    out = sys.stdout.buffer
    while max_records is None or printed < max_records:
        batch = consumer.poll(0.5, 500 if max_records is None else min(500, max_records - printed))
        if batch is None:
            if timeout is not None and time.monotonic() - heard_at >= timeout:
                return
            continue
        heard_at = time.monotonic()
        for record in batch:
            out.write(_line(record, format_))
        out.flush()
        printed += len(batch)
        if commits:
            consumer.commit()


def _line(record: semel.Record, format_: OutputFormat) -> bytes:
    if format_ is OutputFormat.VALUE:
        return (record.value or b"") + b"\n"
    if format_ is OutputFormat.KEYED:
        return (record.key or b"") + b"\t" + (record.value or b"") + b"\n"
    found: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_json_field("key", record.key),
        **_json_field("value", record.value),
    }
    if record.headers:
        found["headers"] = [[name, _header_value(value)] for name, value in record.headers]
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def _json_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text where they are UTF-8, else as base64 under another name; `semel produce` reads both."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _header_value(value: bytes | None) -> str | dict[str, str] | None:
    """Return a header's value as text where it is UTF-8, else as an object with its base64; `produce` reads both."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {HEADER_BASE64: base64.b64encode(value).decode()}
