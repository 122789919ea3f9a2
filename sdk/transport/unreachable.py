"""Why a node can't be reached, in words for whoever gave the address: what gRPC says of it, and what listens there."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from semel.protocol.errors import ErrorCode, RetriableError
from semel.sdk.transport.connection import ConnectionLostError, connect

PROBE_TIMEOUT_MS: Final = 1_000
"""How long to wait for what listens at an address to say that it speaks the Kafka protocol."""


class Trouble(Enum):
    """What keeps a call from reaching a node; `OTHER` is whatever gRPC says."""

    REFUSED = "nothing listens on {target}: connection refused. Is the node running? `semel serve` starts one"
    UNKNOWN_HOST = "there is no host {host!r}: its name can't be resolved. Is the address {target} spelt right?"
    NO_ROUTE = "there is no way to {target}: {details}. Is the address right, and the network up?"
    SILENT = (
        "{target} does not answer: it is not there, something on the way drops what is sent to it, or what listens "
        "there does not speak gRPC. Is this the node's gRPC address?"
    )
    HTTP_1 = "{target} is an HTTP server, but no gRPC listener. Is this the node's gRPC address (port 9094 by default)?"
    NOT_GRPC = (
        "something listens on {target}, but it does not speak gRPC. Is this the node's gRPC address (port 9094 by "
        "default)?"
    )
    KAFKA = (
        "{target} is a node's Kafka listener, and clients of Semel begin at its gRPC listener: give that address (port "
        "9094 by default; `semel serve` prints both when it is ready)"
    )
    OTHER = "the node at {target} can't be reached ({details}); is it running, and is this its gRPC address?"

    @property
    def may_be_another_protocol(self) -> bool:
        return self in (Trouble.SILENT, Trouble.NOT_GRPC)


_SIGNS: Final = (
    (re.compile(r"connection refused", re.IGNORECASE), Trouble.REFUSED),
    (re.compile(r"lookup failed|resolving|resolution|name not found", re.IGNORECASE), Trouble.UNKNOWN_HOST),
    (re.compile(r"no route to host|unreachable", re.IGNORECASE), Trouble.NO_ROUTE),
    (re.compile(r"http1\.x", re.IGNORECASE), Trouble.HTTP_1),
    (
        re.compile(r"parsing HTTP/2|failed to connect.*(socket closed|connection reset)", re.IGNORECASE),
        Trouble.NOT_GRPC,
    ),
    (re.compile(r"timed out|timeout", re.IGNORECASE), Trouble.SILENT),
)
"""gRPC has one status for all of these, and says in words which. They differ from version to version: where none is
known, its own are shown."""


_CODE: Final = ErrorCode.NETWORK_EXCEPTION


class UnreachableError(RetriableError):
    """A call did not reach a node: it had no effect. `trouble` says why."""

    trouble: Trouble = Trouble.OTHER


def unreachable(target: str, details: str) -> UnreachableError:
    """Return the error for a call that gRPC calls UNAVAILABLE, by what its words say."""
    trouble = next((trouble for sign, trouble in _SIGNS if sign.search(details)), Trouble.OTHER)
    # gRPC tells the same at length, address by address; its last words are the system's.
    short = details.rpartition(": ")[2] if trouble is Trouble.NO_ROUTE else details
    return trouble_at(target, trouble, short)


def trouble_at(target: str, trouble: Trouble, details: str = "") -> UnreachableError:
    """Return the error for trouble with an address, "host:port"."""
    host = target.rpartition(":")[0].strip("[]")
    error = UnreachableError(trouble.value.format(target=target, host=host, details=details), _CODE)
    error.trouble = trouble
    return error


async def speaks_kafka(target: str) -> bool:
    """Say whether a Kafka listener answers at "host:port": the address most often given in place of the gRPC one."""
    host, _, port = target.rpartition(":")
    try:
        connection = await connect(host.strip("[]"), int(port), client_id="semel", timeout_ms=PROBE_TIMEOUT_MS)
    except ConnectionLostError:
        return False
    connection.close()
    return True
