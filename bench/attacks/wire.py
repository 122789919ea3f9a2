"""What attacks send and over what: requests, batches and records as bytes, and a raw connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, Final

import google_crc32c
from harness import NodeProcess

from semel.protocol.kafka import messages
from semel.protocol.kafka.api import ApiKey, build_request_header
from semel.protocol.kafka.entities import load_entity

ANSWER_S: Final = 60.0
"""How long an attack waits for an answer. A node that refuses closes the connection, which ends the wait."""


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(key: ApiKey, version: int, /, **values: Any) -> bytes:
    """Return a framed request of any API, with kio's names of the fields."""
    from kio.serial import entity_writer

    entity = load_entity(key, version, "request")
    sink = messages.Sink()
    names = frozenset(_names(values))
    entity_writer(entity)(sink, messages.build_entity(entity, values, lambda: names))  # type: ignore[arg-type]
    return framed(build_request_header(key, version, 7, "bench") + b"".join(sink.parts))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _names(item)
    elif isinstance(value, list) and value:
        yield from _names(value[0])


def batch(payload: bytes, *, attributes: int = 0, count: int = 1) -> bytes:
    """Return a batch with a right checksum around whatever `payload` is."""
    now = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", attributes, count - 1, now, now, -1, -1, -1, count) + payload
    head = struct.pack(">ibI", 0, 2, google_crc32c.value(rest)) + rest
    return struct.pack(">qi", 0, len(head)) + head


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(value: bytes, key: bytes = b"k") -> bytes:
    body = b"\0\0\0" + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


def produce(topic: str, records: bytes, acks: int = 1) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhi", -1, acks, 30_000) + struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iii", 1, 0, len(records)) + records
    return framed(build_request_header(ApiKey.PRODUCE, 7, 7, "bench") + body)


class Client:
    """A raw connection. `ask` returns the answer, or None where the node closed the connection or said nothing."""

    def __init__(self, node: NodeProcess) -> None:
        self.socket = socket.create_connection(node.address, ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def receive(self, timeout_s: float = ANSWER_S) -> bytes | None:
        self.socket.settimeout(timeout_s)
        try:
            size = int.from_bytes(self._exactly(4), "big")
            return self._exactly(size)
        except OSError:
            return None

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return bytes(data)

    def ask(self, data: bytes, timeout_s: float = ANSWER_S) -> bytes | None:
        self.send(data)
        return self.receive(timeout_s)

    def close(self) -> None:
        self.socket.close()


def ask_once(node: NodeProcess, data: bytes, timeout_s: float = ANSWER_S) -> bytes | None:
    client = Client(node)
    try:
        return client.ask(data, timeout_s)
    finally:
        client.close()


def answered(results: list[bytes | None]) -> str:
    got = sum(result is not None for result in results)
    return f"{got} of {len(results)} answered"


def create_topics(node: NodeProcess, *names: str, **configs: str) -> None:
    settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": settings}
        for name in names
    ]
    ask_once(node, request(ApiKey.CREATE_TOPICS, 4, topics=topics, timeout=20_000, validate_only=False))
