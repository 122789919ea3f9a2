"""The clients of a process, made when they are first used and kept for the tasks that it runs after.

Spark forks the processes of tasks, and gRPC does not live through a fork: so no constructor of a reader or writer makes
a client, only what runs in a task or on the driver does, and what another process made is never used.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from semel.sdk.shared.api import SharedTransaction
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import Bootstrap, ClientOptions

T = TypeVar("T")

_METADATA_MAX_AGE_MS: Final = 30_000
"""A process's client serves the tasks of hours, and topics grow, and go: no task trusts what is older than this."""


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the cluster. Times in milliseconds: of one attempt, and of a call with its retries.

    bootstrap: addresses of nodes, of the Kafka listener or of the gRPC one, and how they are reached
    """

    bootstrap: Bootstrap
    client_id: str
    request_timeout_ms: int
    api_timeout_ms: int


_clients: dict[tuple[int, Address], ClientCore] = {}


def client_for(address: Address) -> ClientCore:
    """Return this process's client of a cluster."""
    key = (os.getpid(), address)
    client = _clients.get(key)
    if client is None or client.io.closed:
        for other in [other for other in _clients if other[0] != os.getpid()]:
            del _clients[other]  # inherited by a fork: of no use here, and not ours to close
        client = _clients[key] = _open(address)
    return client


def run(client: ClientCore, call: Coroutine[Any, Any, T]) -> T:
    """Run a call on the client's thread. Each request in it has a deadline, and this is one for all of them."""
    return client.run(call, timeout_ms=2 * client.options.api_timeout_ms + client.options.request_timeout_ms)


def _open(address: Address) -> ClientCore:
    options = ClientOptions(
        addresses=address.bootstrap.addresses,
        security=address.bootstrap.security,
        client_id=address.client_id,
        request_timeout_ms=address.request_timeout_ms,
        api_timeout_ms=address.api_timeout_ms,
        metadata_max_age_ms=_METADATA_MAX_AGE_MS,
    )
    return ClientCore("Spark data source", options)


class ProcessTransaction(SharedTransaction):
    """A handle whose writers and calls go through the client of the process that uses it, wherever it was pickled."""

    __slots__ = ("_address",)

    def __init__(self, bootstrap: str, key: str, *, address: Address, **options: Any) -> None:
        super().__init__(bootstrap, key, **options)
        self._address = address

    def _lasting_client(self) -> ClientCore:
        return client_for(self._address)


def _close_at_exit() -> None:
    """Close this process's clients, so that none of gRPC's threads is at work while the interpreter is taken down."""
    for (pid, _), client in list(_clients.items()):
        if pid == os.getpid():
            client.close()


atexit.register(_close_at_exit)
