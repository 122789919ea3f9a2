"""A node with delegation tokens, and clients that show one."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from asking_node import MECHANISMS, asking

from semel.protocol.delegation_tokens import NewDelegationToken
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey, join_parts
from semel.protocol.kafka.sasl import (
    AuthenticateAnswer,
    read_sasl_authenticate,
    read_sasl_handshake,
    sasl_authenticate_request,
    sasl_handshake_request,
)
from semel.runtime.kafka_client.connection import Connection, connect, dial_tcp

SECRET = b"0123456789abcdef" * 3
TOKEN_AUTH = ",tokenauth=true"
_TIMEOUT_MS = 60_000


def secret_file(folder: Path, secret: bytes = SECRET) -> str:
    """Write the secret of delegation tokens; return the file's path."""
    path = folder / "delegation-secret"
    path.write_bytes(secret)
    path.chmod(0o600)
    return str(path)


def delegating(users: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of a node that asks for passwords and has delegation tokens."""
    return asking(users, delegation_token_secret_file=secret_file(users.parent), **more)


def login_of(made: NewDelegationToken) -> tuple[str, str]:
    """Return the user and the password that clients show."""
    return made.token.token_id, made.password


async def open_connection(address: tuple[str, int]) -> Connection:
    """Return a connection to a Kafka listener whose client has not authenticated."""
    return await connect(f"{address[0]}:{address[1]}", dial_tcp(*address), client_id="test")


async def shake_hands(connection: Connection, mechanism: str = MECHANISMS[0]) -> ErrorCode:
    """Begin to authenticate."""
    parts = [join_parts(sasl_handshake_request(mechanism))]
    return read_sasl_handshake(await connection.request(ApiKey.SASL_HANDSHAKE, 1, parts, timeout_ms=_TIMEOUT_MS)).error


async def say(connection: Connection, token: bytes) -> tuple[AuthenticateAnswer, int]:
    """Send a message of a mechanism. Returns the answer, and how long the session lasts in milliseconds."""
    parts = [join_parts(sasl_authenticate_request(token))]
    body = await connection.request(ApiKey.SASL_AUTHENTICATE, 1, parts, timeout_ms=_TIMEOUT_MS)
    return read_sasl_authenticate(body), int.from_bytes(bytes(body)[-8:], "big")


async def prove(
    connection: Connection, user: str, password: str, mechanism: str = MECHANISMS[0], extensions: str = ""
) -> tuple[AuthenticateAnswer, int]:
    """Prove a password from beginning to end; returns the last answer, or the first that is an error."""
    assert await shake_hands(connection, mechanism) is ErrorCode.NONE
    if mechanism == "PLAIN":
        return await say(connection, f"\0{user}\0{password}".encode())
    scram = ScramByHand(user, password, mechanism, extensions)
    answer, lifetime_ms = await say(connection, scram.first)
    if answer.error is not ErrorCode.NONE:
        return answer, lifetime_ms
    return await say(connection, scram.final(answer.token))


class ScramByHand:
    """SCRAM as a client does it, with extensions: Java's clients send some."""

    def __init__(self, user: str, password: str, mechanism: str = MECHANISMS[0], extensions: str = "") -> None:
        self._password = password.encode()
        self._digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._bare = f"n={user},r=nonceofclient{extensions}"
        self.first = f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the answer to a node's first message."""
        parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, b64decode(parts["s"]), int(parts["i"]))
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        without_proof = f"c={b64encode(b'n,,').decode()},r={parts['r']}"
        signature = hmac.digest(
            stored_key, f"{self._bare},{server_first.decode()},{without_proof}".encode(), self._digest
        )
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()
