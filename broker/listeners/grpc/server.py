"""The gRPC server of a node, on the node's own event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import Address
from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.listeners.grpc.authentication import AuthenticatingInterceptor
from semel.broker.listeners.grpc.edge import CallTimes
from semel.broker.listeners.grpc.malformed import HardenedServer
from semel.broker.listeners.grpc.services import SemelServices
from semel.broker.open_files import open_files_limit, share_open_files
from semel.broker.services import Services
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.protocol.listener_names import DEFAULT_LISTENER

if TYPE_CHECKING:
    from semel.broker.listeners.interception import Interceptor
    from semel.broker.listeners.tls import Certificates
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users

_KEEPALIVE_TIMEOUT_MS: Final = 20_000
_CLIENT_PING_INTERVAL_MS_MIN: Final = 10_000
PARTITIONS_HEALTH: Final = "semel.partitions"
"""What health checks ask to know whether all partitions are online; the services serve meanwhile."""
_METADATA_BYTES_MAX: Final = 64 << 10


def not_bound(address: Address) -> NodeStartError:
    """What to raise where the address can't be had: gRPC does not say why."""
    return NodeStartError(
        f"gRPC can't listen on {address}: the port is in use, or the host is not this machine's. "
        "Choose another address (--grpc of `semel serve`, grpc= of semel.open()).",
        StartFailure.ADDRESS,
    )


class GrpcListener:
    """Serves semel.v1 with reflection and health."""

    def __init__(
        self,
        node: Services,
        address: Address,
        produce: ProduceHandler,
        fetch: FetchHandler,
        interceptor: Interceptor | None = None,
        times: CallTimes | None = None,
        certificates: Certificates | None = None,
        users: Users | None = None,
        tokens: Tokens | None = None,
        *,
        listener: str = DEFAULT_LISTENER,
        sharing: int = 1,
    ) -> None:
        """`produce` and `fetch` are those of the Kafka listener: all listeners of a node share them.

        listener: its name, which answers go by
        sharing: how many gRPC listeners share what the node serves at once: each has its part
        certificates: where connections are encrypted
        users, tokens: where clients alone are served that prove who they are
        """
        asks = users is not None or tokens is not None
        self._passwords = AuthenticatingInterceptor(users, tokens, node.audit) if asks else None
        self._certificates = certificates
        self.services = SemelServices(node, produce, fetch, times, listener)
        self.malformed = self.services.malformed
        self.address = address
        """Where it listens; with the real port once it was started."""
        self._node = node
        self._sharing = sharing
        others = () if interceptor is None else tuple(interceptor.grpc_interceptors())
        self._interceptors = others if self._passwords is None else (self._passwords, *others)
        self._health = HealthServicer()
        self._server: aio.Server | None = None
        self._names: list[str] = []
        self._all_online: bool | None = None

    @property
    def calls_max(self) -> int:
        """How many calls are served at once: its part of what all listeners of gRPC have."""
        return max(self._node.config.grpc_max_concurrent_rpcs // self._sharing, 1)

    def bind(self) -> None:
        """Take the address; nothing is answered yet. Raises `NodeStartError` where it can't be had."""
        config = self._node.config
        server = aio.server(
            interceptors=self._interceptors,
            options=_options(config, self._sharing),
            maximum_concurrent_rpcs=self.calls_max,
        )
        names = [reflection.SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        for name, handler in self.services.handlers().items():
            server.add_generic_rpc_handlers((handler,))
            names.append(name)
        hardened: Any = HardenedServer(server, self.malformed)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, hardened)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(ReflectionServicer(names), hardened)
        try:
            if self._certificates is None:
                port = server.add_insecure_port(str(self.address))
            else:
                port = server.add_secure_port(str(self.address), self._certificates.grpc_credentials())
        except RuntimeError as error:
            raise not_bound(self.address) from error
        if port == 0:
            raise not_bound(self.address)
        self.address = Address(self.address.host, port)
        self._names = names
        self._server = server

    async def tell_health_of_partitions(self, *, all_online: bool) -> None:
        """Say by the health protocol whether all partitions are online, once for each change."""
        if self._server is not None and all_online is not self._all_online:
            self._all_online = all_online
            health = health_pb2.HealthCheckResponse
            await self._health.set(PARTITIONS_HEALTH, health.SERVING if all_online else health.NOT_SERVING)

    async def start(self) -> None:
        """Answer calls."""
        assert self._server is not None, "bind first"
        await self.tell_health_of_partitions(all_online=not len(self._node.logs.offline))
        await self._server.start()
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give those in progress `grace_s` seconds, then cut them off."""
        server, self._server = self._server, None
        if server is not None:
            await self._health.enter_graceful_shutdown()
            self.services.finish()
            await server.stop(grace_s)
            self.malformed.log.close()


def _options(config: NodeConfig, sharing: int) -> list[tuple[str, Any]]:
    return [
        # One more is closed by the library as soon as it is accepted.
        ("grpc.max_allowed_incoming_connections", max(share_open_files(config, open_files_limit()).grpc // sharing, 1)),
        # Until the client's first settings: a connection that says nothing is closed.
        ("grpc.server_handshake_timeout_ms", config.grpc_handshake_timeout_ms),
        ("grpc.max_connection_idle_ms", config.connections_max_idle_ms),
        ("grpc.max_concurrent_streams", config.grpc_max_concurrent_streams),
        # Without this, two processes could listen on one port and share its calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.grpc_max_message_bytes),
        ("grpc.max_send_message_length", config.grpc_max_message_bytes),
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.keepalive_time_ms", config.grpc_keepalive_ms),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PING_INTERVAL_MS_MIN),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _CLIENT_PING_INTERVAL_MS_MIN),
    ]
