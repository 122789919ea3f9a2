"""What a client proves its user's password with: SaslHandshake v1 and SaslAuthenticate v1 (KIP-43, KIP-152).

Written by hand, as Produce and Fetch are: a client needs no other Kafka messages, and so none of kio.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import error_code_of
from semel.protocol.kafka.wire import Buffer, Part, WireReader, WireWriter

SASL_HANDSHAKE_VERSION: Final = 1
SASL_AUTHENTICATE_VERSION: Final = 1
_MECHANISM_BYTES_MIN: Final = 2


class HandshakeAnswer(NamedTuple):
    """What a node says to a mechanism, and which ones it takes."""

    error: ErrorCode
    mechanisms: tuple[str, ...]


class AuthenticateAnswer(NamedTuple):
    """A node's answer to a token."""

    error: ErrorCode
    message: str
    token: bytes
    lifetime_ms: int = 0
    """For how long the node takes what has proven the user; 0: for as long as the connection is there."""


def sasl_handshake_request(mechanism: str) -> list[Part]:
    """Return the body of a request to begin with a mechanism."""
    writer = WireWriter()
    writer.write_string(mechanism, False)
    return writer.finish()


def read_sasl_handshake(body: Buffer) -> HandshakeAnswer:
    """Return what is answered to it. Raises `WireFormatError`."""
    reader = WireReader(body)
    error = error_code_of(reader.read_int16())
    count = reader.read_count(False, _MECHANISM_BYTES_MIN)
    mechanisms = tuple(reader.read_string(False) for _ in range(count))
    reader.expect_end()
    return HandshakeAnswer(error, mechanisms)


def sasl_authenticate_request(token: bytes) -> list[Part]:
    """Return the body of a request with a token."""
    writer = WireWriter()
    writer.write_records(token, False)
    return writer.finish()


def read_sasl_authenticate(body: Buffer) -> AuthenticateAnswer:
    """Return what is answered to it. Raises `WireFormatError`."""
    reader = WireReader(body)
    error = error_code_of(reader.read_int16())
    message = reader.read_nullable_string(False) or ""
    token = bytes(reader.read_records(False) or b"")
    lifetime_ms = reader.read_int64()
    reader.expect_end()
    return AuthenticateAnswer(error, message, token, lifetime_ms)
