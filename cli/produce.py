"""`semel produce`: send lines or JSON objects from files or standard input."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    HEADER_BASE64,
    AsJson,
    Bootstrap,
    counted,
    fails_well,
    parse_pairs,
    print_json,
)
from semel.protocol.errors import SemelError, UsageError

if TYPE_CHECKING:
    from semel.sdk.producer.delivery import DeliveryCallback

app = typer.Typer(add_completion=False)

STANDARD_INPUT = Path("-")
PROGRESS_EVERY = 10_000
LINE_BYTES_MAX = 64 << 20
RECORD_BYTES_MAX = 1_048_000
FLUSH_AFTER_FAILURE_S = 5.0


class InputFormat(StrEnum):
    LINES = "lines"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent for one line of input."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None


@app.command(
    epilog="Examples:\n\n"
    "echo hello | semel produce greetings\n\n"
    "semel produce orders orders.txt --key-separator :\n\n"
    "semel produce orders orders.jsonl --format json --transaction load-1"
)
@fails_well
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to send.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="What to read; standard input where none or - is named."),
    ] = None,
    format_: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            help="lines: each is a value. json: each line is an object with value, and perhaps key, headers, "
            "partition, timestamp_ms. Text, null, or base64 in value_base64 and key_base64, of a header's value in "
            '{"base64": ...}; other JSON goes as text.',
        ),
    ] = InputFormat.LINES,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands between key and value in a line.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of every record that has none of its own.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every record.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition; by default the key decides.")] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    transaction: Annotated[
        str | None,
        typer.Option(metavar="TRANSACTIONAL_ID", help="Send all of the input in one transaction, or none of it."),
    ] = None,
    record_bytes_max: Annotated[
        int,
        typer.Option(
            min=64, max=LINE_BYTES_MAX, help="The largest record; more needs a topic's max.message.bytes too."
        ),
    ] = RECORD_BYTES_MAX,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Send records. Ends when all of them are durable; prints how many there were on standard error."""
    defaults = Message(
        None,
        None if key is None else key.encode(),
        tuple((name, value.encode()) for name, value in parse_pairs(header or [], "--header")),
        partition,
        None,
    )
    messages = _messages(_lines(files or [STANDARD_INPUT]), format_, key_separator, defaults)
    with semel.Producer(
        bootstrap,
        transactional_id=transaction,
        compression=compression,
        linger_ms=5,
        record_bytes_max=record_bytes_max,
    ) as producer:
        if transaction is None:
            count = _send(producer, topic, messages)
        else:
            with producer.transaction():
                count = _send(producer, topic, messages)
    if as_json:
        print_json({"topic": topic, "records": count})
    else:
        print(f"sent {counted(count, 'record')} to {topic}", file=sys.stderr)


def _send(producer: semel.Producer, topic: str, messages: Iterable[Message]) -> int:
    failed: list[BaseException] = []
    acknowledged = 0

    def delivered(_: object, error: BaseException | None) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failed.append(error)

    try:
        return _send_all(producer, topic, messages, failed, delivered)
    except (SemelError, KeyboardInterrupt):
        # Whoever fixes the input and starts again wants to know from where.
        if producer.transactional_id is not None:
            print("nothing was sent: the transaction is aborted", file=sys.stderr)
        else:
            with suppress(SemelError):
                producer.flush(FLUSH_AFTER_FAILURE_S)
            print(f"{counted(acknowledged, 'record')} had been sent to {topic} before this:", file=sys.stderr)
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
    """Yield each line without its end, with the place it is from."""
    for path in files:
        with ExitStack() as stack:
            if path == STANDARD_INPUT:
                file: IO[bytes] = sys.stdin.buffer
            else:
                try:
                    file = stack.enter_context(path.open("rb"))
                except OSError as error:
                    raise UsageError(f"can't read {path}: {error.strerror}") from error
            number = 0
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise UsageError(f"{path}:{number}: a line of more than {LINE_BYTES_MAX} bytes is no record")
                yield f"{path}:{number}", line.removesuffix(b"\n").removesuffix(b"\r")


def _messages(
    lines: Iterable[tuple[str, bytes]], format_: InputFormat, key_separator: str | None, defaults: Message
) -> Iterator[Message]:
    separator = None if key_separator is None else key_separator.encode()
    if separator == b"":
        raise UsageError("--key-separator can't be empty")
    for place, line in lines:
        if format_ is InputFormat.JSON:
            yield _from_json(place, line, defaults)
        elif separator is None:
            yield Message(line, defaults.key, defaults.headers, defaults.partition, None)
        else:
            key, found, value = line.partition(separator)
            if not found:
                raise UsageError(f"{place}: no {key_separator!r} between key and value")
            yield Message(value, key, defaults.headers, defaults.partition, None)


_JSON_FIELDS = ("value", "value_base64", "key", "key_base64", "headers", "partition", "timestamp_ms")


def _from_json(place: str, line: bytes, defaults: Message) -> Message:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{place}: a JSON object is needed, not {type(found).__name__}")
    unknown = sorted(set(found) - {*_JSON_FIELDS, "topic", "offset"})
    if unknown:
        raise UsageError(f"{place}: unknown field {unknown[0]!r}; there are {', '.join(_JSON_FIELDS)}")
    pairs = _header_pairs(place, found.get("headers"))
    headers = tuple((name, _header_bytes(place, name, value)) for name, value in pairs)
    return Message(
        _field(place, found, "value"),
        _field(place, found, "key") if "key" in found or "key_base64" in found else defaults.key,
        headers or defaults.headers,
        _number(place, found, "partition", defaults.partition),
        _number(place, found, "timestamp_ms", None),
    )


def _header_pairs(place: str, headers: object) -> list[tuple[str, object]]:
    if headers is None:
        return []
    if isinstance(headers, dict):
        return list(headers.items())
    if isinstance(headers, list) and all(_is_header(one) for one in headers):
        return [(name, value) for name, value in headers]
    raise UsageError(f"{place}: headers is an object, or a list of [name, value] with text for a name")


def _is_header(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)


def _header_bytes(place: str, name: str, value: object) -> bytes | None:
    """Return a header's value; `semel consume` writes one that is no text as an object with its base64."""
    if isinstance(value, dict) and set(value) == {HEADER_BASE64}:
        return _from_base64(f"{place}: header {name!r}", value[HEADER_BASE64])
    return _bytes(place, name, value)


def _field(place: str, found: dict[str, Any], name: str) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is None:
        return _bytes(place, name, found.get(name))
    return _from_base64(f"{place}: {name}_base64", encoded)


def _from_base64(what: str, encoded: Any) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what} is not base64: {error}") from None


def _bytes(place: str, name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, separators=(",", ":")).encode()


def _number(place: str, found: dict[str, Any], name: str, default: int | None) -> int | None:
    value = found.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{place}: {name} is a number, not {value!r}")
    return value
