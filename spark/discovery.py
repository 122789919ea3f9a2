"""Finds a node's gRPC listener from its Kafka listener, so that kafka.bootstrap.servers is all a query must say."""

from __future__ import annotations

from typing import Any, Final

from kio.serial import entity_reader, entity_writer

from semel.protocol.errors import FatalError, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import load_entity
from semel.protocol.kafka.messages import Sink, build_entity
from semel.sdk.connection import Connection, ConnectionLostError, connect

_TIMEOUT_MS: Final = 10_000
_BROKER: Final = 4
_ADVERTISED: Final = "grpc.advertised"
_LISTEN: Final = "grpc.listen"
_ANY_HOST: Final = frozenset({"0.0.0.0", "::", "[::]", ""})  # noqa: S104 (compared with, not listened on)
_REQUEST_NAMES: Final = frozenset(
    {"resources", "resource_type", "resource_name", "configuration_keys", "include_synonyms", "endpoint_type"}
)


async def grpc_addresses(kafka: tuple[str, ...], client_id: str) -> tuple[str, ...]:
    """Return the gRPC addresses of the nodes whose Kafka listeners are at `kafka`, each "host:port".

    What does not speak Kafka's protocol is returned as it is: it may well be a gRPC listener. Raises `SemelError`.
    """
    found = []
    errors: list[str] = []
    for address in kafka:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            connection = await connect(host, int(port), client_id=client_id, timeout_ms=_TIMEOUT_MS)
        except ConnectionLostError as error:
            if "HTTP/2" in error.message:
                found.append(address)
            errors.append(error.message)
            continue
        try:
            found.append(await _ask(connection, host))
        except SemelError as error:
            errors.append(error.message)
        finally:
            connection.close()
    if not found:
        raise FatalError(
            f"no node of kafka.bootstrap.servers says where its gRPC listener is: {'; '.join(errors)}. Give option "
            "bootstrap with the gRPC address (port 9094 by default; `semel serve` prints it)"
        )
    return tuple(dict.fromkeys(found))


async def _ask(connection: Connection, host: str) -> str:
    cluster = await _call(connection, ApiKey.DESCRIBE_CLUSTER, 0)
    for broker in cluster.brokers:
        resource = {
            "resource_type": _BROKER,
            "resource_name": str(broker.broker_id),
            "configuration_keys": [_ADVERTISED, _LISTEN],
        }
        answer = await _call(connection, ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])
        for result in answer.results:
            values = {config.name: config.value or "" for config in result.configs}
            target = values.get(_ADVERTISED) or values.get(_LISTEN) or ""
            named, _, port = target.rpartition(":")
            if port.isdecimal() and int(port) > 0:
                return f"{host if named in _ANY_HOST else named}:{port}"
    raise FatalError(f"the node at {connection.address} has no setting {_LISTEN} with a port: is it a node of Semel?")


async def _call(connection: Connection, key: ApiKey, version: int, **values: Any) -> Any:
    connection.highest_version(key, version, version)
    entity = load_entity(key, version, "request")
    sink = Sink()
    write: Any = entity_writer(entity)
    write(sink, build_entity(entity, values, lambda: _REQUEST_NAMES))
    body = await connection.request(key, version, sink.parts, timeout_ms=_TIMEOUT_MS)
    read: Any = entity_reader(load_entity(key, version, "response"))
    entity_read, _ = read(bytes(body), 0)
    return entity_read
