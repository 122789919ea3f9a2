"""A node's listeners for clients: one or several of each protocol, begun and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.config.listeners import ClientListener, grpc_listeners, kafka_listeners
from semel.broker.config.sources import Address, listen_address
from semel.broker.listeners.addresses import check_address
from semel.broker.listeners.grpc.edge import CallTimes
from semel.broker.listeners.grpc.server import GrpcListener, not_bound
from semel.broker.listeners.grpc.services import SemelServices
from semel.broker.listeners.in_process import InProcessListener
from semel.broker.listeners.kafka.listener import KafkaListener, KafkaListenerStatistics
from semel.broker.open_files import open_files_limit, share_open_files
from semel.broker.start_errors import kafka_not_bound
from semel.protocol.schemes import asks_for_password, speaks_tls, with_scheme_of

if TYPE_CHECKING:
    from semel.broker.config.node_config import NodeConfig
    from semel.broker.handlers.fetch.handler import FetchHandler
    from semel.broker.handlers.produce.handler import ProduceHandler
    from semel.broker.listeners.interception import Interceptor
    from semel.broker.listeners.tls import Certificates
    from semel.broker.services import Services
    from semel.broker.telemetry.recorders import Recorders
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """What the listeners of a node share.

    recorders: where requests and calls are measured
    own_certificates: of listeners that have settings of TLS of their own
    certificates, users, tokens: for the listeners that encrypt, and those that ask who somebody is
    interceptor: between the listeners and what answers, for tests of clients
    """

    produce: ProduceHandler
    fetch: FetchHandler
    recorders: Recorders | None = None
    certificates: Certificates | None = None
    own_certificates: Mapping[ClientListener, Certificates] = field(default_factory=dict)
    users: Users | None = None
    tokens: Tokens | None = None
    interceptor: Interceptor | None = None

    def certificates_for(self, listener: ClientListener) -> Certificates | None:
        """Return what a listener encrypts with; None where it does not."""
        general = self.certificates if speaks_tls(listener.listen) else None
        return self.own_certificates.get(listener, general)


class ClientListeners:
    """All of them. `grpc` and `kafka` have the main one first; a protocol that is not served has none."""

    def __init__(self, node: Services, parts: ListenerParts) -> None:
        self._node = node
        self._parts = parts
        self.kafka: list[KafkaListener] = []
        self.grpc: list[GrpcListener] = []
        self.in_process: InProcessListener | None = None

    async def start_kafka(self, *, listens: bool) -> None:
        """Serve the Kafka protocol; with `listens` at addresses. Raises `NodeStartError` where one can't be had."""
        parts, limits = self._parts, self.kafka_limits()
        for each in kafka_listeners(self._node.config) if listens else kafka_listeners(self._node.config)[:1]:
            asks = asks_for_password(each.listen)
            made = KafkaListener(
                self._node,
                *listen_address(each),
                limits,
                produce=parts.produce,
                fetch=parts.fetch,
                interceptor=parts.interceptor,
                request_times=None if parts.recorders is None else parts.recorders.requests,
                certificates=parts.certificates_for(each),
                users=parts.users if asks else None,
                tokens=parts.tokens if asks else None,
                listener_name=each.name,
                beside=self.kafka[0] if self.kafka else None,
            )
            try:
                await made.start(listens=listens)
            except OSError as error:
                raise kafka_not_bound(each, error) from error
            self.kafka.append(made)

    def bind_grpc(self) -> None:
        """Take the addresses of gRPC; nothing is answered yet. Raises `NodeStartError` where one can't be had."""
        parts, listeners = self._parts, grpc_listeners(self._node.config)
        bound = self.grpc
        self.grpc = []
        for number, each in enumerate(listeners):
            asks = asks_for_password(each.listen)
            made = GrpcListener(
                self._node,
                bound[number].address if bound else listen_address(each),
                parts.produce,
                parts.fetch,
                parts.interceptor,
                self._call_times(),
                parts.certificates_for(each),
                parts.users if asks else None,
                parts.tokens if asks else None,
                listener=each.name,
                sharing=len(listeners),
            )
            made.bind()
            self.grpc.append(made)

    async def start_grpc(self) -> None:
        """Answer calls by gRPC."""
        for each in self.grpc:
            await each.start()

    def start_in_process(self) -> None:
        """Serve clients in this process, as those that come by the main listeners."""
        name = grpc_listeners(self._node.config)[0].name
        services = SemelServices(self._node, self._parts.produce, self._parts.fetch, self._call_times(), name)
        self.in_process = InProcessListener(services, self.kafka[0])
        self.in_process.start()

    def stops(self, grace_s: float) -> list[asyncio.Future[None]]:
        """Begin to stop all: take no more, and give what is in progress `grace_s` seconds."""
        others = () if self.in_process is None else (self.in_process,)
        return [asyncio.ensure_future(each.stop(grace_s)) for each in (*others, *self.kafka, *self.grpc)]

    def kafka_limits(self) -> KafkaLimits:
        """Return what was configured, as far as the limit of open files goes."""
        config = self._node.config
        return replace(config, max_connections=share_open_files(config, open_files_limit()).kafka)

    def reconfigure(self) -> None:
        """Take over what may change while the node runs."""
        for each in self.kafka:
            each.reconfigure(self.kafka_limits())

    async def tell_health_of_partitions(self, *, all_online: bool) -> None:
        """Say by gRPC's health protocol whether all partitions are online."""
        for each in self.grpc:
            await each.tell_health_of_partitions(all_online=all_online)

    # --- Looking at them ----------------------------------------------------------------------------------------------

    def kafka_addresses(self) -> list[Address]:
        """Return where each Kafka listener listens, with the real port; as configured where they do not listen."""
        configured = [listen_address(each) for each in kafka_listeners(self._node.config)]
        ports = [each.port for each in self.kafka]
        return [
            Address(each.host, ports[number]) if number < len(ports) else each for number, each in enumerate(configured)
        ]

    def grpc_addresses(self) -> list[Address]:
        """Return the same of each gRPC listener."""
        configured = [listen_address(each) for each in grpc_listeners(self._node.config)]
        return [each.address for each in self.grpc] if self.grpc else configured

    def kafka_statistics(self) -> KafkaListenerStatistics | None:
        """Return the counters of all Kafka listeners together; None where there are none."""
        return self.kafka[0].statistics(self.kafka[1:]) if self.kafka else None

    def kafka_in_flight(self) -> int:
        """Return how many requests of the Kafka protocol are received and not answered."""
        return sum(each.in_flight() for each in self.kafka)

    # --- What happens to them in tests --------------------------------------------------------------------------------

    async def cut_off(self) -> None:
        """Refuse connections and end those there are."""
        for kafka in self.kafka:
            await kafka.cut_off()
        for grpc in self.grpc:
            await grpc.stop(0)

    async def let_in(self) -> None:
        """Accept connections again, at the same addresses."""
        for kafka in self.kafka:
            await kafka.listen()
        if self.grpc:
            self.bind_grpc()
            await self.start_grpc()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _call_times(self) -> CallTimes | None:
        recorders = self._parts.recorders
        return None if recorders is None else CallTimes(self._node.clock, recorders.call)


async def check_addresses(config: NodeConfig, *, kafka: bool, grpc: bool) -> None:
    """Raise `NodeStartError` where an address of these protocols can't be had now. No client notices."""
    for each in kafka_listeners(config) if kafka else ():
        try:
            await check_address(*listen_address(each))
        except OSError as error:
            raise kafka_not_bound(each, error) from error
    for each in grpc_listeners(config) if grpc else ():
        address = listen_address(each)
        try:
            await check_address(*address, needs_all=False)
        except OSError as error:
            raise not_bound(address) from error


def shown_addresses(listeners: Sequence[ClientListener], addresses: Sequence[Address]) -> str:
    """Return where listeners listen, as a node that is ready says it: with names where they have some.

    `ADDRESS`, or `NAME=ADDRESS,NAME=ADDRESS`
    """
    shown = [with_scheme_of(each.listen, address) for each, address in zip(listeners, addresses, strict=True)]
    if not listeners[0].is_named:
        return shown[0]
    return ",".join(f"{each.name}={address}" for each, address in zip(listeners, shown, strict=True))
