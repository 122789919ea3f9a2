"""A client that says what it likes to a Kafka listener that asks who it is."""

from __future__ import annotations

import socket

from live_node import LiveNode

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey, build_request_header, join_parts
from semel.protocol.kafka.sasl import (
    AuthenticateAnswer,
    read_sasl_authenticate,
    read_sasl_handshake,
    sasl_authenticate_request,
    sasl_handshake_request,
)

PATIENCE_S = 30


class Stranger:
    """Sends requests as it likes on one connection."""

    def __init__(self, node: LiveNode) -> None:
        self._socket = socket.create_connection(tuple(node.node.kafka_address), PATIENCE_S)
        self._socket.settimeout(PATIENCE_S)
        self.lifetime_ms = 0
        """How long the session lasts by the last answer to a token."""

    def ask(self, key: int, version: int, body: bytes) -> bytes | None:
        """Return the body of the answer; None where the node hangs up."""
        frame = build_request_header(key, version, 7, "stranger") + body
        try:
            self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
            return self._answer()
        except ConnectionError:
            return None

    def _answer(self) -> bytes | None:
        size = self._read(4)
        frame = None if size is None else self._read(int.from_bytes(size, "big"))
        return None if frame is None else frame[4:]

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return data

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    @property
    def is_hung_up_on(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def handshake(self, mechanism: str = "PLAIN") -> ErrorCode | None:
        answer = self.ask(ApiKey.SASL_HANDSHAKE, 1, join_parts(sasl_handshake_request(mechanism)))
        return None if answer is None else read_sasl_handshake(answer).error

    def authenticate(self, token: bytes) -> ErrorCode | None:
        answer = self.answer_to(token)
        return None if answer is None else answer.error

    def answer_to(self, token: bytes) -> AuthenticateAnswer | None:
        answer = self.ask(ApiKey.SASL_AUTHENTICATE, 1, join_parts(sasl_authenticate_request(token)))
        self.lifetime_ms = 0 if answer is None else int.from_bytes(answer[-8:], "big")
        return None if answer is None else read_sasl_authenticate(answer)

    def close(self) -> None:
        self._socket.close()
