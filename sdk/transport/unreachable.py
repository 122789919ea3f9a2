"""Why a node can't be reached, for the person who gave the address: what gRPC says, and what listens there."""

from __future__ import annotations

import re
import ssl
from enum import Enum
from typing import Final

from semel.protocol.errors import ErrorCode, RetriableError


class Trouble(Enum):
    """What keeps a call from reaching a node; `OTHER` is whatever gRPC says."""

    REFUSED = "nothing listens on {target}: connection refused. Is the node running? `semel serve` starts one"
    UNKNOWN_HOST = "there is no host {host!r}: its name can't be resolved. Is the address {target} spelt right?"
    NO_ROUTE = "there is no way to {target}: {details}. Is the address right, and the network up?"
    SILENT = (
        "{target} does not answer: it is not there, something on the way drops what is sent to it, or what listens "
        "there is no node of Semel. Is this a node's address?"
    )
    HTTP_1 = (
        "{target} is an HTTP server, but no gRPC listener. Is this a node's address (port 9094 or 9092 by default)?"
    )
    NOT_GRPC = (
        "something listens on {target}, but it speaks neither gRPC nor Kafka's protocol. Is this a node's address "
        "(port 9094 or 9092 by default)?"
    )
    HANGS_UP = (
        "{target} accepts connections and closes them: it is encrypted, and the client is not (tls://{target} does); "
        "or it speaks neither gRPC nor Kafka's protocol; or it is a proxy whose node is not running. Is this a node's "
        "address (port 9094 or 9092 by default), and is the node running?"
    )
    KAFKA = (
        "{target} speaks Kafka's protocol, and did not say where its node serves gRPC ({details}): a node that is "
        "starting answers soon; if this is a Kafka broker and not a Semel node, give the address of a Semel node"
    )
    FOREIGN = (
        "{target} is a Kafka broker, not a Semel node: Semel's own clients need a node of Semel (`semel serve` starts "
        "one, and prints its addresses). Is the address right? Kafka's clients work with both"
    )
    NOT_TLS = "{target} is not encrypted, and the client encrypts: leave out tls://, or security.protocol=SSL"
    UNTRUSTED = (
        "the certificate of {target} is of no authority that this client knows ({details}): give the file of the one "
        "that signed it, tls://{target}?ssl.ca.location=FILE"
    )
    OTHER_NAME = (
        "the certificate of {target} is not for {host!r} ({details}): connect to a name that it has, or have one made "
        "with this name"
    )
    WANTS_CERTIFICATE = (
        "{target} refused this client's certificate ({details}): give ssl.certificate.location and ssl.key.location, "
        "of an authority that the node knows"
    )
    HANGS_UP_ON_TLS = (
        "{target} closes encrypted connections: it refused this client's certificate, or asked for one and got none "
        "(give ssl.certificate.location and ssl.key.location; the node's log says why); or it is not encrypted (leave "
        "out tls://); or it is a proxy whose node is not running"
    )
    OTHER = "the node at {target} can't be reached ({details}); is it running, and is the address right?"

    @property
    def may_be_another_protocol(self) -> bool:
        return self in (Trouble.SILENT, Trouble.NOT_GRPC, Trouble.HANGS_UP, Trouble.HANGS_UP_ON_TLS)

    @property
    def says_wrong_address(self) -> bool:
        """Whether waiting does not help: there is no such host, or what answers is no node of Semel."""
        return self in _WRONG

    @property
    def in_short(self) -> str:
        """What to say of the address, in a line of a log."""
        return _IN_SHORT[self]


_WRONG: Final = frozenset(
    {
        Trouble.UNKNOWN_HOST,
        Trouble.HTTP_1,
        Trouble.NOT_GRPC,
        Trouble.FOREIGN,
        Trouble.NOT_TLS,
        Trouble.UNTRUSTED,
        Trouble.OTHER_NAME,
        Trouble.WANTS_CERTIFICATE,
    }
)
_IN_SHORT: Final = {
    Trouble.REFUSED: "refuses connections",
    Trouble.UNKNOWN_HOST: "can't be resolved",
    Trouble.NO_ROUTE: "can't be reached: there is no way to it",
    Trouble.SILENT: "does not answer",
    Trouble.HTTP_1: "is an HTTP server",
    Trouble.NOT_GRPC: "speaks neither gRPC nor Kafka's protocol",
    Trouble.HANGS_UP: "closes each connection",
    Trouble.KAFKA: "is starting: it does not say yet where it serves gRPC",
    Trouble.FOREIGN: "is a Kafka broker, not a Semel node",
    Trouble.NOT_TLS: "is not encrypted",
    Trouble.UNTRUSTED: "shows a certificate of an unknown authority",
    Trouble.OTHER_NAME: "shows a certificate for another name",
    Trouble.WANTS_CERTIFICATE: "does not accept this client's certificate",
    Trouble.HANGS_UP_ON_TLS: "closes each encrypted connection",
    Trouble.OTHER: "can't be reached",
}

_SIGNS: Final = (
    (re.compile(r"certificate[_ ]verify[_ ]failed.*(mismatch|not valid for)", re.IGNORECASE), Trouble.OTHER_NAME),
    (re.compile(r"hostname verification|peer name .* is not in peer cert", re.IGNORECASE), Trouble.OTHER_NAME),
    (re.compile(r"ALPN", re.IGNORECASE), Trouble.NOT_GRPC),  # what encrypts here speaks another protocol
    (re.compile(r"certificate[_ ]verify[_ ]failed", re.IGNORECASE), Trouble.UNTRUSTED),
    (re.compile(r"wrong[_ ]version[_ ]number|record layer failure", re.IGNORECASE), Trouble.NOT_TLS),
    (
        re.compile(
            r"certificate[_ ](required|unknown|expired|revoked)|unknown[_ ]ca|bad[_ ]certificate", re.IGNORECASE
        ),
        Trouble.WANTS_CERTIFICATE,
    ),
    (re.compile(r"connection refused", re.IGNORECASE), Trouble.REFUSED),
    (re.compile(r"lookup failed|resolving|resolution|name not found", re.IGNORECASE), Trouble.UNKNOWN_HOST),
    (re.compile(r"no route to host|unreachable", re.IGNORECASE), Trouble.NO_ROUTE),
    (re.compile(r"http1\.x", re.IGNORECASE), Trouble.HTTP_1),
    (re.compile(r"parsing HTTP/2", re.IGNORECASE), Trouble.NOT_GRPC),
    (re.compile(r"failed to connect.*(socket closed|connection reset)", re.IGNORECASE), Trouble.HANGS_UP),
    (re.compile(r"timed out|timeout", re.IGNORECASE), Trouble.SILENT),
)
"""gRPC has one status for all of these, and says in words which. They differ from version to version: where none is
known, its own are shown."""


_CODE: Final = ErrorCode.NETWORK_EXCEPTION


class UnreachableError(RetriableError):
    """No node could be reached: the call had no effect. The message says which address was tried, and what it did."""

    trouble: Trouble = Trouble.OTHER
    address: str = ""


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
    error.address = target
    return error


_NAME_MISMATCHES: Final = frozenset({62, 64})
"""What OpenSSL says of a certificate that is for another host name, or another IP address."""


def trouble_of_tls(error: ssl.SSLError) -> Trouble | None:
    """Return what a handshake has failed for; None where it is nothing of the certificates."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Trouble.OTHER_NAME if error.verify_code in _NAME_MISMATCHES else Trouble.UNTRUSTED
    return next((trouble for sign, trouble in _SIGNS if sign.search(str(error))), None)


def from_kafka_listener(error: UnreachableError, kafka: str) -> UnreachableError:
    """Return the error of a gRPC address that the Kafka listener at `kafka` named, with where it comes from."""
    origin = f"what the node at {kafka} gives as its own for gRPC: grpc.advertised"
    if error.trouble is Trouble.SILENT:
        message = (
            f"{error.address} does not answer, and is {origin}. The node hangs or is very busy, something on the way "
            "drops what is sent to it, or the address is wrong"
        )
    else:
        message = f"{error.message} (the address is {origin})"
    explained = UnreachableError(message, _CODE)
    explained.trouble = error.trouble
    explained.address = error.address
    return explained
