"""Finds a node's gRPC listener from its Kafka listener, so that kafka.bootstrap.servers is all a query must say."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from kio.serial import entity_reader, entity_writer

from semel.protocol.errors import FatalError, RetriableError, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import load_entity
from semel.protocol.kafka.messages import Sink, build_entity
from semel.sdk.transport.connection import Connection, ConnectionLostError, connect

_PAUSE_S: Final = 0.2
_BROKER: Final = 4
_ADVERTISED: Final = "grpc.advertised"
_LISTEN: Final = "grpc.listen"
_ANY_HOST: Final = frozenset({"0.0.0.0", "::", "[::]", ""})  # noqa: S104 (compared with, not listened on)
_REQUEST_NAMES: Final = frozenset(
    {"resources", "resource_type", "resource_name", "configuration_keys", "include_synonyms", "endpoint_type"}
)


async def grpc_addresses(kafka: tuple[str, ...], client_id: str, *, timeout_ms: float) -> tuple[str, ...]:
    """Return the gRPC addresses of the nodes whose Kafka listeners are at `kafka`, each "host:port".

    What does not speak Kafka's protocol is returned as it is: it may well be a gRPC listener. A node that is starting
    or busy is asked again for up to `timeout_ms`. Raises `FatalError`.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        found, errors = await _look(kafka, client_id, deadline)
        if found:
            return found
        is_final = all(not isinstance(error, RetriableError) for error in errors)
        if is_final or time.monotonic() + _PAUSE_S >= deadline:
            raise FatalError(
                "no node of kafka.bootstrap.servers says where its gRPC listener is: "
                f"{'; '.join(error.message for error in errors)}. Give option bootstrap with the gRPC address (port "
                "9094 by default; `semel serve` prints it)"
            )
        await asyncio.sleep(_PAUSE_S)


async def _look(kafka: tuple[str, ...], client_id: str, deadline: float) -> tuple[tuple[str, ...], list[SemelError]]:
    """Ask each node once. Returns the addresses, each once, and the errors."""
    found: dict[str, None] = {}
    errors: list[SemelError] = []
    for address in kafka:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            connection = await connect(host, int(port), client_id=client_id, timeout_ms=_left_ms(deadline))
        except ConnectionLostError as error:
            if "HTTP/2" in error.message:
                found[address] = None
            errors.append(error)
            continue
        try:
            found[await _ask(connection, host, deadline)] = None
        except SemelError as error:
            errors.append(error)
        finally:
            connection.close()
    return tuple(found), errors


def _left_ms(deadline: float) -> float:
    return max(1.0, (deadline - time.monotonic()) * 1000)


async def _ask(connection: Connection, host: str, deadline: float) -> str:
    cluster = await _call(connection, ApiKey.DESCRIBE_CLUSTER, 0, deadline)
    for broker in cluster.brokers:
        resource = {
            "resource_type": _BROKER,
            "resource_name": str(broker.broker_id),
            "configuration_keys": [_ADVERTISED, _LISTEN],
        }
        answer = await _call(connection, ApiKey.DESCRIBE_CONFIGS, 4, deadline, resources=[resource])
        for result in answer.results:
            values = {config.name: config.value or "" for config in result.configs}
            target = values.get(_ADVERTISED) or values.get(_LISTEN) or ""
            named, _, port = target.rpartition(":")
            if port.isdecimal() and int(port) > 0:
                return f"{host if named in _ANY_HOST else named}:{port}"
    raise FatalError(f"the node at {connection.address} has no setting {_LISTEN} with a port: is it a node of Semel?")


async def _call(connection: Connection, key: ApiKey, version: int, deadline: float, **values: Any) -> Any:
    connection.highest_version(key, version, version)
    entity = load_entity(key, version, "request")
    sink = Sink()
    write: Any = entity_writer(entity)
    write(sink, build_entity(entity, values, lambda: _REQUEST_NAMES))
    body = await connection.request(key, version, sink.parts, timeout_ms=_left_ms(deadline))
    read: Any = entity_reader(load_entity(key, version, "response"))
    entity_read, _ = read(bytes(body), 0)
    return entity_read
