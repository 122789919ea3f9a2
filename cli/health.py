"""`semel health`: whether a node can be used now. Made for health checks, so it loads little and answers in time."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from semel.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, ExitCode, fail, fails_well
from semel.protocol.errors import UsageError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

PARTITIONS: Final = "semel.partitions"
"""Serves while all partitions are online; nodes of earlier versions do not know it."""
SERVICE: Final = "semel.v1.MetadataService"
"""The node sets the health of its services when it can be used, and takes it back as it begins to stop."""


@app.command(
    "health",
    epilog="Exit codes: 0 the node serves; 1 it starts or stops, or partitions are offline; 3 no answer in time. "
    "Example: semel health --bootstrap localhost:9094 --timeout 2",
)
@fails_well
def health(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the answer.")
    ] = 3.0,
    only_node: Annotated[
        bool,
        typer.Option(
            "--only-node",
            help="Succeed although partitions are offline: for checks that restart nodes, which would bring none back.",
        ),
    ] = False,
) -> None:
    """Ask a node whether it serves, once, and say so by the exit code: for containers and service managers."""
    if not 0 < timeout_s <= 3600:
        raise UsageError(f"--timeout takes more than 0 and at most 3600 seconds, not {timeout_s:g}")
    # Heavy, and not needed to print help.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    try:
        with grpc.insecure_channel(bootstrap, options=(("grpc.enable_http_proxy", 0),)) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            answer = check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=timeout_s)
            all_online = only_node or _serves(check, PARTITIONS, timeout_s)
    except grpc.RpcError as error:
        # Until it can be used, a node knows the health of none of its services.
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise fail(f"the node at {bootstrap} is starting", ExitCode.REFUSED) from None
        raise fail(
            f"the node at {bootstrap} does not answer ({error.details()}); is it running, and is this its gRPC one?",
            ExitCode.UNREACHABLE,
        ) from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise fail(f"the node at {bootstrap} is stopping", ExitCode.REFUSED)
    if not all_online:
        raise fail(
            f"the node at {bootstrap} serves, but partitions are offline: see `semel doctor --section partitions`",
            ExitCode.REFUSED,
        )
    print("serving")


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
