"""`SemelContainer`: a node in a container, for tests with testcontainers (the extra `testcontainers`)."""

from __future__ import annotations

import time
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import WaitStrategy, WaitStrategyTarget

KAFKA_PORT: Final = 9092
GRPC_PORT: Final = 9094

_HEALTH_SERVICE: Final = "semel.v1.MetadataService"
_LOG_BYTES_SHOWN_MAX: Final = 4_000

# Which ports of the host the container gets is known only once it runs, and a node must tell clients its address when
# it starts. So the container's shell waits to be told, and becomes the node then.
_WAIT_FOR_ADDRESSES: Final = """
until [ -e /tmp/semel-advertised ]; do sleep 0.05; done
. /tmp/semel-advertised
rm /tmp/semel-advertised
exec semel "$@"
"""
_TELL_ADDRESSES: Final = 'printf "%s" "$1" > /tmp/semel-advertised.new && mv /tmp/semel-advertised.new "$2"'


class NodeServes(WaitStrategy):
    """Waits until the node in a container says by gRPC that it serves, as its clients will reach it."""

    def __init__(self, grpc_port: int = GRPC_PORT) -> None:
        super().__init__()
        self._grpc_port = grpc_port
        self.with_startup_timeout(60).with_poll_interval(0.1)

    def wait_until_ready(self, container: WaitStrategyTarget) -> None:
        """Raises `TimeoutError` after the start-up time-out, `RuntimeError` as soon as the node ended."""
        address = f"{container.get_container_host_ip()}:{container.get_exposed_port(self._grpc_port)}"
        deadline = time.monotonic() + self._startup_timeout
        while not _serves(address):
            container.reload()
            if container.status in ("exited", "dead"):
                raise RuntimeError(f"the node ended before it served; its log ends so:\n{_end_of_log(container)}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the node did not serve on {address} within {self._startup_timeout:g} seconds")
            time.sleep(self._poll_interval)


class SemelContainer(DockerContainer):
    """A Semel node in a container.

    Example:

        >>> from semel.testing import SemelContainer          # doctest: +SKIP
        >>> with SemelContainer() as semel:                   # doctest: +SKIP
        ...     kafka = semel.get_bootstrap_server()          # for any Kafka client
        ...     own = semel.get_grpc_address()                # for semel.Producer, semel.Consumer, semel.Admin

    Clients are told `localhost` (or the engine's host) and the mapped ports. Where the clients are containers, too,
    give `clients_in_network=True`, a network and an alias: they are told the alias and the node's own ports. For both
    kinds at once give an `advertised_host` that both can reach, on Linux for example the gateway of the network.

    Args:
        image: what `make image` or `docker build -f docker/Dockerfile .` made
        kafka_port, grpc_port: ports within the container
        advertised_host: what clients are told in place of the engine's host; the ports stay the mapped ones
        clients_in_network: whether clients are in the container's network, and not outside
        kwargs: those of `DockerContainer`, and of docker-py's `containers.create`
    """

    def __init__(
        self,
        image: str = "semel:latest",
        *,
        kafka_port: int = KAFKA_PORT,
        grpc_port: int = GRPC_PORT,
        advertised_host: str | None = None,
        clients_in_network: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(image, **kwargs)
        if clients_in_network and advertised_host is not None:
            raise ValueError(
                "give advertised_host or clients_in_network: in the network, its alias is what clients get"
            )
        self.kafka_port = kafka_port
        self.grpc_port = grpc_port
        self._advertised_host = advertised_host
        self._clients_in_network = clients_in_network
        self._ready: WaitStrategy = self._wait_strategy or NodeServes(grpc_port)
        self._wait_strategy = None
        self.with_exposed_ports(kafka_port, grpc_port)
        self.with_env("SEMEL_KAFKA_LISTEN", f"0.0.0.0:{kafka_port}")
        self.with_env("SEMEL_GRPC_LISTEN", f"0.0.0.0:{grpc_port}")
        # Docker publishes the ports on the machine's addresses, for as long as a test runs.
        self.with_env("SEMEL_LISTENERS_ALLOW_ANONYMOUS", "true")

    # --- Before it starts ---------------------------------------------------------------------------------------------

    def with_setting(self, name: str, value: object) -> Self:
        """Give the node a setting by its name in docs/configuration.md, for example `log.retention.ms`."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return self.with_env(f"SEMEL_{name.replace('.', '_').upper()}", text)

    def waiting_for(self, strategy: WaitStrategy) -> Self:
        """Wait for something else than `NodeServes` before `start` returns."""
        self._ready = strategy
        return self

    # --- Where it is --------------------------------------------------------------------------------------------------

    def get_bootstrap_server(self) -> str:
        """Return `host:port` for any Kafka client."""
        return self._address(self.kafka_port)

    def get_grpc_address(self) -> str:
        """Return `host:port` for clients of Semel."""
        return self._address(self.grpc_port)

    def _address(self, port: int) -> str:
        if self._clients_in_network:
            return f"{self._alias()}:{port}"
        return f"{self._advertised_host or self.get_container_host_ip()}:{self.get_exposed_port(port)}"

    def _alias(self) -> str:
        if self._network is None or not self._network_aliases:
            raise ValueError("clients_in_network needs a network and a name in it: with_network, with_network_aliases")
        return self._network_aliases[0]

    # --- Its life -----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the node, and return once it serves."""
        super().start()
        self._tell_addresses()
        return self

    def kill(self) -> None:
        """End the node with SIGKILL, as a crash does. What it acknowledged is there after `restart`."""
        container = self.get_wrapped_container()
        container.kill()
        container.wait()

    def terminate(self, timeout_s: int = 10) -> int:
        """End the node with SIGTERM and return its exit code: 0 after a clean end, 137 if the time was not enough."""
        self.get_wrapped_container().stop(timeout=timeout_s)
        return self.wait()

    def restart(self) -> Self:
        """Start the node again on its data after `kill` or `terminate`, and return once it serves.

        Ports that the engine chose change by that, so ask for the addresses again. Those of `with_bind_ports` stay.
        """
        container = self.get_wrapped_container()
        container.start()
        self._tell_addresses()
        return self

    def _configure(self) -> None:
        if self._clients_in_network:
            self._alias()
        self._command = self._command or "serve"
        self._kwargs = {**self._kwargs, "entrypoint": ["tini", "--", "sh", "-c", _WAIT_FOR_ADDRESSES, "semel"]}

    def _tell_addresses(self) -> None:
        told = (
            f"export SEMEL_KAFKA_ADVERTISED='{self.get_bootstrap_server()}'\n"
            f"export SEMEL_GRPC_ADVERTISED='{self.get_grpc_address()}'\n"
        )
        place = "/tmp/semel-advertised"  # noqa: S108 (in the container)
        done = self.exec(["sh", "-c", _TELL_ADDRESSES, "sh", told, place])
        if done.exit_code:
            raise RuntimeError(f"the container could not be told its addresses: {done.output.decode(errors='replace')}")
        self._ready.wait_until_ready(self)


def _serves(address: str) -> bool:
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check
            answer = check(health_pb2.HealthCheckRequest(service=_HEALTH_SERVICE), timeout=1)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _end_of_log(container: WaitStrategyTarget) -> str:
    return b"".join(container.get_logs())[-_LOG_BYTES_SHOWN_MAX:].decode(errors="replace")
