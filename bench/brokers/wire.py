"""Connections that say no more than a protocol asks for: what a client's own work would hide is measured with these.

A link sends requests of one kind, and counts the answers that have come, in whatever pieces they come.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
from contextlib import closing
from typing import Any, Protocol

import dataplane

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProduceResponse

ANSWER_S = 30.0
"""How long anything is waited for."""
READ_BYTES = 1 << 20
_inboxes = itertools.count(1)


class WireError(Exception):
    """A broker refused a request, or answered what was not expected."""


def connected(address: tuple[str, int]) -> socket.socket:
    """Return a socket that waits for at most ANSWER_S."""
    sock = dataplane.connect(address)
    sock.settimeout(ANSWER_S)
    return sock


def received(sock: socket.socket) -> bytes:
    """Return what has come, at least one byte. Raises `ConnectionError` where the broker hung up."""
    data = sock.recv(READ_BYTES)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return data


class Link(Protocol):
    """A connection on which one request is sent again and again."""

    sock: socket.socket
    request: bytes
    records: int
    """How many one request appends."""

    def counted(self, data: bytes) -> int:
        """Return how many answers end within what has come. Raises `WireError` for one that is an error."""
        ...


# --- Kafka's protocol -------------------------------------------------------------------------------------------------


class KafkaLink:
    """Answers to a Produce of one partition all have one size, which the first one tells."""

    def __init__(self, address: tuple[str, int], request: bytes, records: int) -> None:
        self.sock = connected(address)
        self.request, self.records = request, records
        self._first = b""
        self._answer_bytes = self._part = 0

    def counted(self, data: bytes) -> int:
        if not self._answer_bytes:
            self._first += data
            end = 4 + int.from_bytes(self._first[:4], "big")
            if len(self._first) < max(end, 5):
                return 0
            answer = ProduceResponse.parse(memoryview(self._first)[4:end], 9, 5).partitions[0]
            if answer.error is not ErrorCode.NONE:
                raise WireError(f"a Produce was answered with {answer.error}")
            self._answer_bytes, data = end, self._first
        answers, self._part = divmod(self._part + len(data), self._answer_bytes)
        return answers


# --- Lines: NATS and Redis --------------------------------------------------------------------------------------------


def new_inbox() -> bytes:
    """Return a subject that no other connection of this process has; in small letters, as PING is not."""
    return b"_inbox.%08d" % next(_inboxes)


def nats_publish(subject: str, inbox: bytes, value: bytes) -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox, len(value), value)


def nats_greeted(address: tuple[str, int], *subscriptions: bytes) -> socket.socket:
    """Return a connection that has said who it is, has subscriptions 1, 2 and so on, and has seen that both worked."""
    sock = connected(address)
    options = json.dumps({"verbose": False, "pedantic": False, "lang": "bench", "version": "1", "protocol": 1})
    lines = [f"CONNECT {options}".encode()]
    lines += [b"SUB %s %d" % (subject, number) for number, subject in enumerate(subscriptions, 1)]
    sock.sendall(b"\r\n".join([*lines, b"PING", b""]))
    data = b""
    while b"PONG\r\n" not in data:
        data += received(sock)
        if b"-ERR" in data:
            raise WireError(data.decode(errors="replace")[:200])
    return sock


class NatsLines:
    """The lines that a server sends, without its PINGs, which are answered. No payload has a line's end in it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    def counted(self, data: bytes) -> int:
        """Return how many lines end within what has come. Raises `WireError` for an error."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if b'"error"' in whole or b"-ERR" in whole:
            raise WireError(whole.decode(errors="replace")[:300])
        if pings := whole.count(b"PING\r"):
            self._sock.sendall(b"PONG\r\n" * pings)
        return whole.count(b"\n") + len(newline) - pings


class NatsLink:
    """An acknowledgement is a message to the inbox: a line of its own and one of JSON."""

    def __init__(self, address: tuple[str, int], subject: str, value: bytes) -> None:
        inbox = new_inbox()
        self.sock = nats_greeted(address, inbox)
        self.request, self.records = nats_publish(subject, inbox, value), 1
        self._received = NatsLines(self.sock)
        self._lines = 0

    def counted(self, data: bytes) -> int:
        answers, self._lines = divmod(self._lines + self._received.counted(data), 2)
        return answers


def nats_api(address: tuple[str, int], subject: str, content: object) -> dict[str, Any]:
    """Call JetStream's API once. Raises `WireError` for an error that it answers."""
    inbox = new_inbox()
    with closing(nats_greeted(address, inbox)) as sock:
        sock.sendall(nats_publish(f"$JS.API.{subject}", inbox, json.dumps(content).encode()))
        data = b""
        while not (found := re.search(rb"MSG %s 1 \d+\r\n(.*)\r\n" % re.escape(inbox), data)):
            data += received(sock)
            if data.endswith(b"PING\r\n"):
                sock.sendall(b"PONG\r\n")
    answer: dict[str, Any] = json.loads(found[1])
    if "error" in answer:
        raise WireError(f"{subject}: {answer['error']}")
    return answer


def redis_command(*words: str | bytes) -> bytes:
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


class RedisLink:
    """The answer to XADD is the record's id: a line with its length, and one with the id."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.sock = connected(address)
        self.request, self.records = request, 1
        self._lines = 0
        self._last = b"\n"

    def counted(self, data: bytes) -> int:
        refuse_errors(self._last, data)
        self._last = data[-1:]
        answers, self._lines = divmod(self._lines + data.count(b"\n"), 2)
        return answers


def redis_call(address: tuple[str, int], *words: str | bytes) -> bytes:
    """Send one command whose answer is one line, and return that. Raises `WireError` for an error."""
    with closing(connected(address)) as sock:
        sock.sendall(redis_command(*words))
        data = b""
        while not data.endswith(b"\r\n"):
            data += received(sock)
    if data.startswith(b"-"):
        raise WireError(data.decode(errors="replace").strip())
    return data[:-2]


def refuse_errors(before: bytes, data: bytes) -> None:
    """Raise `WireError` where a line begins with a dash; ids have one too, after a number.

    before: the byte before what has come
    """
    at = (before + data).find(b"\n-")
    if at >= 0:
        raise WireError(data[at:].decode(errors="replace").splitlines()[0][:300])


def read_lines(sock: socket.socket, lines: int, *, keep: int = 0) -> bytes:
    """Read what has so many lines, and nothing behind it. Raises `WireError` for an error in it.

    keep: how many bytes of its end are returned, at least where it has as many
    """
    last, tail = b"\n", b""
    while lines > 0:
        data = received(sock)
        refuse_errors(last, data)
        last = data[-1:]
        lines -= data.count(b"\n")
        if keep:
            tail = data if len(data) >= keep else (tail + data)[-keep:]
    if lines < 0:
        raise WireError(f"{-lines} more lines than expected")
    return tail
