"""`semel produce`: send lines or JSON objects from files or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    parse_pairs,
    print_json,
)
from semel.cli.json_records import LINE_BYTES_MAX, Message, from_json, lines_in, lines_of
from semel.cli.signals import finishing_on_signals
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError

if TYPE_CHECKING:
    from semel.sdk.producer.delivery import DeliveryCallback

app = command_app()

STANDARD_INPUT = Path("-")
PROGRESS_EVERY = 10_000
RECORD_BYTES_MAX = 1_048_000
FLUSH_AFTER_FAILURE_S = 5.0
ABORT_S = 2.0


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class InputFormat(StrEnum):
    LINES = "lines"
    JSON = "json"


@app.command(
    epilog=examples(
        "echo hello | semel produce greetings --create",
        "semel produce orders orders.txt --key-separator :",
        "semel produce orders orders.jsonl --format json --transaction load-1",
    )
)
@fails_well
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to send to.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="What to read; standard input if none, or -."),
    ] = None,
    format_: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            help="lines: each line is a value. json: each line is an object with value, and optionally key, headers, "
            "partition and timestamp_ms, as `semel consume --json` prints them. Binary data is base64: in value_base64 "
            'and key_base64, and {"base64": ...} as a header\'s value. Other JSON is sent as text.',
        ),
    ] = InputFormat.LINES,
    key_separator: Annotated[str | None, typer.Option(metavar="TEXT", help="Lines are KEY, this text, VALUE.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key of every record that has none of its own.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header of every record. Can be given several times."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="NUMBER",
            help="The partition. Default: the key "
            "decides. Records without a key go to one partition at a time, until its batch is sent: a short input is "
            "in one partition.",
        ),
    ] = None,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.NONE,
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Create the topic if it does not exist, with the node's num.partitions. Kafka's clients do this on "
            "their own; here a mistyped name is an error.",
        ),
    ] = False,
    transaction: Annotated[
        str | None,
        typer.Option(
            metavar="TRANSACTIONAL_ID",
            help="Send all of the input in one transaction: readers see all of it or nothing.",
        ),
    ] = None,
    record_bytes_max: Annotated[
        int,
        typer.Option(
            min=64,
            max=LINE_BYTES_MAX,
            metavar="BYTES",
            help="The largest record. A larger one also needs the topic's max.message.bytes.",
        ),
    ] = RECORD_BYTES_MAX,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print how many records were sent as JSON. JSON input is --format json.")
    ] = False,
) -> None:
    """Send records from files or standard input. Ends when all of them are durable.

    The number of records sent is printed on standard error. Ctrl-C and SIGTERM print it too, and abort the transaction.
    """
    defaults = Message(
        None,
        None if key is None else key.encode(),
        tuple((name, value.encode()) for name, value in parse_pairs(header or [], "--header")),
        partition,
        None,
    )
    if sys.stdin is None and STANDARD_INPUT in (files or [STANDARD_INPUT]):
        raise UsageError("standard input is closed: name files, or redirect it")
    messages = _messages(_lines(files or [STANDARD_INPUT]), format_, key_separator, defaults)
    client = semel.Producer(
        bootstrap,
        transactional_id=transaction,
        compression=compression.value,
        linger_ms=5,
        record_bytes_max=record_bytes_max,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
    )
    with finishing_on_signals():
        if create:
            _create(topic, bootstrap)
        if STANDARD_INPUT in (files or [STANDARD_INPUT]) and sys.stdin.isatty() and sys.stderr.isatty():
            print("reading records from the terminal, one on each line; Ctrl-D ends", file=sys.stderr)
        with client as producer:
            if transaction is None:
                count = _send(producer, topic, messages, bootstrap)
            else:
                with producer.transaction():
                    count = _send(producer, topic, messages, bootstrap)
    if as_json:
        print_json({"topic": topic, "records": count})
    else:
        print(f"sent {counted(count, 'record')} to {topic}", file=sys.stderr)


def _create(topic: str, bootstrap: str) -> None:
    with open_admin(bootstrap) as admin:
        try:
            created = admin.create_topic(topic)
        except SemelError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        else:
            print(f"created topic {topic} with {counted(len(created.partitions), 'partition')}", file=sys.stderr)


def abort_soon(producer: semel.Producer) -> None:
    """After Ctrl-C, give the node a moment to abort the transaction: it may be away, and it aborts on its own then."""
    with suppress(SemelError):
        producer.close(ABORT_S)


def _send(producer: semel.Producer, topic: str, messages: Iterable[Message], bootstrap: str) -> int:
    failed: list[BaseException] = []
    acknowledged = begun = 0

    def delivered(_: object, error: BaseException | None) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failed.append(error)

    def counting() -> Iterator[Message]:
        nonlocal begun
        for message in messages:
            begun += 1
            yield message

    try:
        count = _send_all(producer, topic, counting(), failed, delivered)
        if not count:  # nothing has asked the node for the topic
            with open_admin(bootstrap) as admin:
                admin.topic(topic)
        return count
    except (SemelError, KeyboardInterrupt) as error:
        if isinstance(error, SemelError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            what = error.message.split("; ")[0]
            if " has partitions " in what:
                add = command_here(f"semel topic add-partitions {topic}", bootstrap)
                raise FatalError(
                    f"{what}. Choose one of them, or add some with `{add} --partitions N`", error.code
                ) from error
            create = command_here(f"semel topic create {topic}", bootstrap)
            raise FatalError(
                f"{what}. Give --create, or create it with `{create} --partitions N`", error.code
            ) from error
        # A user who fixes the input and starts again wants to know from where.
        if not begun:
            pass
        elif producer.transactional_id is not None:
            print("nothing was sent: the transaction is aborted", file=sys.stderr)
            if isinstance(error, KeyboardInterrupt):
                abort_soon(producer)
        else:
            with suppress(SemelError):
                producer.flush(FLUSH_AFTER_FAILURE_S)
            sent = counted(acknowledged, "record")
            if isinstance(error, SemelError):
                print(f"{sent} had been sent to {topic} before this:", file=sys.stderr)
            else:
                print(f"interrupted; sent to {topic}: {sent}", file=sys.stderr)
            with suppress(SemelError):
                producer.close(0)  # or the end of the block waits for what the node does not take
        raise


def _send_all(
    producer: semel.Producer,
    topic: str,
    messages: Iterable[Message],
    failed: list[BaseException],
    delivered: DeliveryCallback,
) -> int:
    count = 0
    for message in messages:
        producer.send(
            topic,
            message.value,
            key=message.key,
            headers=message.headers,
            partition=message.partition,
            timestamp_ms=message.timestamp_ms,
            on_delivery=delivered,
        )
        count += 1
        if failed:
            raise failed[0]
        if count % PROGRESS_EVERY == 0 and sys.stderr.isatty():
            print(f"\r{count} records", end="", file=sys.stderr)
    producer.flush()
    if failed:
        raise failed[0]
    if count >= PROGRESS_EVERY and sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return count


def _lines(files: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield each line without its end, and where it is from: "FILE:7" or "standard input, line 7"."""
    for path in files:
        if path == STANDARD_INPUT:
            yield from lines_in(sys.stdin.buffer, "standard input, line ")
        else:
            yield from lines_of(path)


def _messages(
    lines: Iterable[tuple[str, bytes]], format_: InputFormat, key_separator: str | None, defaults: Message
) -> Iterator[Message]:
    separator = None if key_separator is None else key_separator.encode()
    if separator == b"":
        raise UsageError("--key-separator can't be empty")
    for place, line in lines:
        if format_ is InputFormat.JSON:
            yield from_json(place, line, defaults)[1]
        elif separator is None:
            yield Message(line, defaults.key, defaults.headers, defaults.partition, None)
        else:
            key, found, value = line.partition(separator)
            if not found:
                raise UsageError(f"{place}: no {key_separator!r} between key and value")
            yield Message(value, key, defaults.headers, defaults.partition, None)
