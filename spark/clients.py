"""The clients of a process, made when they are first used and kept for the tasks that it runs after.

Spark forks the processes of tasks, and gRPC does not live through a fork: so no constructor of a reader or writer makes
a client, only what runs in a task or on the driver does, and what another process made is never used.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from semel.protocol.errors import UsageError
from semel.sdk.client import ClientCore
from semel.sdk.io_thread import IoThread
from semel.sdk.options import ClientOptions, parse_bootstrap

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the cluster. Times in milliseconds: of one attempt, and of a call with its retries."""

    grpc: tuple[str, ...]
    kafka: tuple[str, ...]
    client_id: str
    request_timeout_ms: int
    api_timeout_ms: int

    @classmethod
    def checked(
        cls,
        grpc: tuple[str, ...],
        kafka: tuple[str, ...],
        *,
        client_id: str,
        request_timeout_ms: int,
        api_timeout_ms: int,
    ) -> Address:
        """Return the address. Raises `UsageError` for what is not HOST:PORT."""
        for name, addresses in (("bootstrap", grpc), ("kafka.bootstrap.servers", kafka)):
            if addresses:
                try:
                    parse_bootstrap(",".join(addresses))
                except UsageError as error:
                    raise UsageError(f"option {name}: {error.message}") from None
        return cls(grpc, kafka, client_id, request_timeout_ms, api_timeout_ms)


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
    """Run a call on the client's thread. Each of the calls in it has a deadline; twice that of an API bounds them all."""
    return client.run(call, timeout_ms=2 * client.options.api_timeout_ms + client.options.request_timeout_ms)


def _open(address: Address) -> ClientCore:
    grpc = address.grpc
    if not grpc:
        from semel.spark.discovery import grpc_addresses

        io = IoThread("Spark")
        try:
            grpc = io.run(grpc_addresses(address.kafka, address.client_id), timeout_ms=address.api_timeout_ms)
        finally:
            io.close()
    options = ClientOptions(
        addresses=grpc,
        client_id=address.client_id,
        request_timeout_ms=address.request_timeout_ms,
        api_timeout_ms=address.api_timeout_ms,
        connect_timeout_ms=min(20_000, address.api_timeout_ms),
    )
    return ClientCore("Spark data source", options)
