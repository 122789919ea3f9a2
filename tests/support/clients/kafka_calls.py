"""Calls any API of a Kafka listener, in any version, with plain values, through kio's classes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from kio.serial import entity_reader, entity_writer

from semel.protocol.kafka import messages
from semel.protocol.kafka.api import ApiKey, build_request_header, parse_response_header
from semel.protocol.kafka.entities import load_entity


def request_body(key: ApiKey, version: int, /, **values: Any) -> bytes:
    """Return a request's body; values that the version has not are left out."""
    entity = load_entity(key, version, "request")
    sink = messages.Sink()
    # Misspelt names are found by the tests themselves, whose requests would lack what they are about.
    entity_writer(entity)(sink, messages.build_entity(entity, values, lambda: frozenset(_names(values))))  # type: ignore[arg-type]
    return b"".join(sink.parts)


def _names(value: Any) -> Iterator[str]:
    """All names in nested values."""
    if isinstance(value, Mapping):
        yield from value
        for item in value.values():
            yield from _names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _names(item)


async def call(port: int, key: ApiKey, version: int, /, *, tls: ssl.SSLContext | None = None, **values: Any) -> Any:
    """Send one request on a connection of its own and return kio's response."""
    answer = await answer_to(port, key, version, tls=tls, **values)
    response, read = entity_reader(load_entity(key, version, "response"))(answer, 0)
    assert read == len(answer)
    return response


async def answer_to(
    port: int, key: ApiKey, version: int, /, *, tls: ssl.SSLContext | None = None, **values: Any
) -> bytes:
    """Send one request on a connection of its own and return the body of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        frame = build_request_header(key, version, 7, "test") + request_body(key, version, **values)
        writer.write(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = await reader.readexactly(size)
    finally:
        writer.close()
        await writer.wait_closed()
    correlation_id, body = parse_response_header(answer, key, version)
    assert correlation_id == 7
    return answer[body:]
