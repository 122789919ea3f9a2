"""Who a client is, as far as the node can tell: kept with transactions, for those who look into them later."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from semel.protocol.corruption import CorruptDataError
from semel.protocol.schema import Reader, Writer

CLIENT_METADATA: Final = "semel-client-bin"
"""gRPC metadata with the client's id, in UTF-8; the Kafka protocol has it in each request's header."""

_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class ClientOrigin:
    """A client: the id that it gives itself, and the address that it comes from. Both are bounded."""

    client_id: str
    host: str

    @classmethod
    def of(cls, client_id: str | None, host: str) -> ClientOrigin:
        """Return what is known of a caller, cut to what is kept."""
        return _made(client_id or "", host)

    def encode(self) -> bytes:
        return _encoded(self)

    @classmethod
    def decode(cls, data: bytes) -> ClientOrigin | None:
        """Return what `encode` made; None for something else: what is only told to people must not keep a log from
        being read. What a later version adds is passed over.
        """
        return _decoded(data)

    def __str__(self) -> str:
        return f"{self.client_id or 'a client'} at {self.host or 'an unknown address'}"


@lru_cache(maxsize=1024)
def _made(client_id: str, host: str) -> ClientOrigin:
    return ClientOrigin(_cut(client_id), _cut(host.removeprefix("/")))


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:_BYTES_MAX].decode("utf-8", "ignore")


@lru_cache(maxsize=1024)
def _encoded(origin: ClientOrigin) -> bytes:
    writer = Writer()
    writer.compact_string(origin.client_id)
    writer.compact_string(origin.host)
    return writer.to_bytes()


@lru_cache(maxsize=1024)
def _decoded(data: bytes) -> ClientOrigin | None:
    reader = Reader(data)
    try:
        return ClientOrigin(reader.compact_string(), reader.compact_string())
    except CorruptDataError:
        return None
