"""`semel health`: whether a node is ready now. Made for health checks, so it loads little and answers in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    Bootstrap,
    ExitCode,
    command_app,
    examples,
    fail,
    fails_well,
    parse_duration,
)
from semel.protocol.errors import UsageError
from semel.protocol.schemes import hidden_password

if TYPE_CHECKING:
    from semel.sdk.transport.security import Access, Encryption

app = command_app()

PARTITIONS: Final = "semel.partitions"
"""Serves while all partitions are online; nodes of earlier versions do not know it."""
SERVICE: Final = "semel.v1.MetadataService"
"""The node sets the health of its services when it can be used, and takes it back as it begins to stop."""


@app.command(
    "health",
    epilog=examples(
        "semel health --bootstrap localhost:9094 --timeout 2s",
        exit_codes="0 the node is ready; 1 it is starting or stopping, or partitions are offline; 3 no answer in time",
    ),
)
@fails_well
def health(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Annotated[
        str, typer.Option(metavar=DURATION, help=f"How long to wait for the answer. {DURATION_HELP}")
    ] = "3s",
    only_node: Annotated[
        bool,
        typer.Option(
            "--only-node",
            help="Succeed even if partitions are offline: for checks that restart the node, since a restart would "
            "not fix them.",
        ),
    ] = False,
) -> None:
    """Ask a node once whether it is ready, and answer by the exit code: for containers and service managers."""
    timeout_s = parse_duration(timeout, "--timeout")
    if not 0 < timeout_s <= 3600:
        raise UsageError(f"--timeout takes more than 0 and at most an hour, such as 3s, not {timeout}")
    # Heavy, and not needed to print help.
    import grpc

    from semel.sdk.transport.options import parse_bootstrap
    from semel.sdk.transport.security import Access
    from semel.sdk.transport.unreachable import Trouble, unreachable

    where = parse_bootstrap(bootstrap)
    if len(where.addresses) > 1:
        raise UsageError(
            f"this asks one node: give one address, not {hidden_password(bootstrap)}; `semel cluster` asks all nodes"
        )
    given = where.addresses[0]
    try:
        access = Access(where.security)
        encryption = access.encryption
        _check(given, given, encryption, timeout_s, only_node=only_node)
    except grpc.RpcError as error:
        try:
            address = _named_by_kafka_listener(given, access, error, timeout_s)
            if address is None:
                raise error
            _check(address, given, encryption, timeout_s, only_node=only_node)
        except grpc.RpcError as failure:
            trouble = unreachable(given, failure.details() or "")
            if trouble.trouble is Trouble.HANGS_UP or (encryption is not None and trouble.trouble is not Trouble.OTHER):
                raise fail(trouble.message, ExitCode.UNREACHABLE) from None
            raise fail(
                f"the node at {given} does not answer ({failure.details()}); is it running, and the address right?",
                ExitCode.UNREACHABLE,
            ) from None
    print("serving")


def _named_by_kafka_listener(address: str, access: Access, error: Any, timeout_s: float) -> str | None:
    """Return the gRPC address that the node names whose Kafka listener is at `address`; None where it is none.

    error: what gRPC says of the address. Raises `UnreachableError`.
    """
    import asyncio

    from semel.sdk.transport.unreachable import unreachable

    if not unreachable(address, error.details() or "").trouble.may_be_another_protocol:
        return None
    from semel.runtime.clock import SystemClock
    from semel.sdk.transport.discovery import find_grpc_address

    look = find_grpc_address(
        address, access, client_id="semel-health", timeout_ms=timeout_s * 1000, clock=SystemClock()
    )
    return asyncio.run(look)


def _check(address: str, given: str, encryption: Encryption | None, timeout_s: float, *, only_node: bool) -> None:
    """Raises the exit where the node can't be used, and `grpc.RpcError` where it does not answer."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from semel.sdk.transport.grpc_channel import open_channel

    with open_channel(address, encryption) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            answer = check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=timeout_s)
        except grpc.RpcError as error:
            # Until it can be used, a node knows the health of none of its services.
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise fail(f"the node at {given} is starting", ExitCode.REFUSED) from None
            raise
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise fail(f"the node at {given} is stopping", ExitCode.REFUSED)
        if not only_node and not _serves(check, PARTITIONS, timeout_s):
            raise fail(
                f"the node at {given} serves, but partitions are offline: see `semel doctor --section partitions`",
                ExitCode.REFUSED,
            )


def _serves(check: Any, service: str, timeout_s: float) -> bool:
    """Say whether something serves; what the node does not know is not missed."""
    import grpc
    from grpc_health.v1 import health_pb2

    try:
        answer = check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return True
        raise
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
