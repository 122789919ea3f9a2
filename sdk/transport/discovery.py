"""Finds a node's gRPC listener from its Kafka listener, so that `bootstrap` may be the address of either."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.kafka.api import ApiKey, Part, join_parts
from semel.protocol.kafka.broker_configs import (
    DESCRIBE_CLUSTER_VERSION,
    DESCRIBE_CONFIGS_VERSION,
    describe_cluster_request,
    describe_configs_request,
    read_broker_ids,
    read_configs,
)
from semel.protocol.schemes import without_scheme
from semel.runtime.clock import Clock
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, Dial, connect, dial_tcp
from semel.sdk.transport.login import AuthenticationFailedError
from semel.sdk.transport.security import Access, Encryption
from semel.sdk.transport.unreachable import Trouble, trouble_at, trouble_of_tls

CONNECT_TIMEOUT_MS: Final = 1_000
"""How long to wait for what listens at an address to say that it speaks Kafka's protocol."""

_ADVERTISED: Final = "grpc.advertised"
_LISTEN: Final = "grpc.listen"
_ANY_HOST: Final = frozenset({"0.0.0.0", "::", "[::]", ""})  # noqa: S104 (compared with, not listened on)


async def find_grpc_address(
    target: str, access: Access, *, client_id: str, timeout_ms: float, clock: Clock
) -> str | None:
    """Return the gRPC address, "host:port", of the node whose Kafka listener is at `target`. One attempt.

    None where nothing at `target` speaks Kafka's protocol. Raises `UnreachableError` with `Trouble.FOREIGN` for a Kafka
    broker that is no node of Semel, with `Trouble.KAFKA` where the answer did not come, and with what is wrong with its
    encryption; and `FatalError` where it does not take the user.
    """
    now = clock.monotonic
    deadline = now() + timeout_ms / 1000
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    encryption = access.encryption
    await access.ready(timeout_ms / 1000)
    try:
        connection = await connect(
            target,
            dial_tcp(host, int(port)) if encryption is None else _dial_tls(target, host, int(port), encryption),
            client_id=client_id,
            timeout_ms=min(CONNECT_TIMEOUT_MS, timeout_ms),
            prove=access.prove,
        )
    except AuthenticationFailedError as error:
        raise FatalError(access.explained(error.message), ErrorCode.SASL_AUTHENTICATION_FAILED) from None
    except ConnectionLostError:
        if encryption is None:
            return None
        raise trouble_at(target, Trouble.HANGS_UP_ON_TLS) from None
    try:
        found = await _ask(connection, host, lambda: max(1.0, (deadline - now()) * 1000))
    except FatalError as error:
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise FatalError(
                f"the user may not be told where the node at {target} serves gRPC, if it is one of Semel: give the "
                "address of its gRPC listener (port 9094 by default), or allow the user to describe the cluster and "
                "its settings (`semel acl add --cluster --operation describe,describe-configs`)",
                error.code,
            ) from None
        raise trouble_at(target, Trouble.FOREIGN) from None  # it has no such request
    except SemelError as error:
        raise trouble_at(target, Trouble.KAFKA, error.message) from None
    finally:
        connection.close()
    if found is None:
        raise trouble_at(target, Trouble.FOREIGN)
    return found


def _dial_tls(target: str, host: str, port: int, encryption: Encryption) -> Dial:
    """Return what opens an encrypted connection, and says what is wrong with the encryption."""

    async def dial(made: Callable[[], Connection]) -> Connection:
        try:
            return await dial_tcp(host, port, encryption.context())(made)
        except ssl.SSLError as error:
            trouble = trouble_of_tls(error)
            if trouble is None:
                raise
            raise trouble_at(target, trouble, str(error.reason or error).replace("_", " ").lower()) from None

    return dial


async def _ask(connection: Connection, host: str, left_ms: Callable[[], float]) -> str | None:
    """Return what the node says of its gRPC listener; None where it has no such setting."""
    version = DESCRIBE_CLUSTER_VERSION
    for broker_id in read_broker_ids(
        await _call(connection, ApiKey.DESCRIBE_CLUSTER, version, left_ms(), describe_cluster_request())
    ):
        request = describe_configs_request(broker_id, (_ADVERTISED, _LISTEN))
        values = read_configs(
            await _call(connection, ApiKey.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSION, left_ms(), request)
        )
        address = without_scheme(values.get(_ADVERTISED) or values.get(_LISTEN) or "")
        named, _, port = address.rpartition(":")
        if port.isdecimal() and int(port) > 0:
            return f"{host if named in _ANY_HOST else named}:{port}"
    return None


async def _call(connection: Connection, key: ApiKey, version: int, timeout_ms: float, body: list[Part]) -> memoryview:
    connection.highest_version(key, version, version)
    return await connection.request(key, version, [join_parts(body)], timeout_ms=timeout_ms)
