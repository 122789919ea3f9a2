"""The Kafka protocol for clients: every API there is, and the counters of this listener."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from semel.broker.acls.principals import USER, principal_of_user
from semel.broker.acls.rights import ANYBODY, Rights
from semel.broker.config.kafka_limits import KafkaLimits, parse_connection_overrides
from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.listeners.acceptor import IN_PROCESS, ConnectionLimits
from semel.broker.listeners.kafka.all_apis import ALL_APIS
from semel.broker.listeners.kafka.authentication import AUTHENTICATION_APIS, REQUEST_BYTES_MAX
from semel.broker.listeners.kafka.data_plane import fetch_api, produce_api
from semel.broker.listeners.kafka.frame_listener import FrameListener
from semel.broker.users.authentication import Authentication
from semel.protocol.acls import ANONYMOUS
from semel.protocol.kafka.api import ApiKey, WireFormatError
from semel.protocol.listener_names import DEFAULT_LISTENER

if TYPE_CHECKING:
    from semel.broker.listeners.interception import Interceptor
    from semel.broker.listeners.kafka.connection import KafkaConnection
    from semel.broker.listeners.kafka.registry import Api
    from semel.broker.listeners.tls import Certificates
    from semel.broker.services import Services
    from semel.broker.telemetry.recorders import RequestTimes
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users


_HANDSHAKES_MAX: Final = 1_000
"""Connections that are not encrypted yet, each of which has its buffers. Clients that come all at once are fewer."""
_LOOK_S: Final = 5.0
"""How often it is looked whether the users of connections are still there."""
_AUTHENTICATING: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_BEFORE_AUTHENTICATION: Final = (ApiKey.API_VERSIONS, *_AUTHENTICATING)


_COUNTED_BY_EACH: Final = (
    "received_bytes",
    "sent_bytes",
    "sendfile_bytes",
    "connections",
    "accepted_connections",
    "refused_connections",
    "refused_of_address",
    "throttled_connections",
    "failed_handshakes",
    "failed_authentications",
    "accepts_exhausted",
    "aborted_connections",
    "idle_connections_closed",
    "slow_connections",
    "crowding_connections",
    "out_of_memory_connections",
)
"""What each of several listeners counts for itself; the rest is of what they share."""


@dataclass(frozen=True, slots=True)
class KafkaListenerStatistics:
    """Counts since the listener was made, and sizes now.

    `refused_connections` were too many, `refused_of_address` of them from their address; those
    `throttled_connections` came faster than their address's quota allows; `failed_handshakes` were
    closed before they were encrypted, and clients of `failed_authentications` could not prove who they are;
    `accepts_exhausted` counts the times when the system had no descriptor for another. `aborted_connections` were
    closed because of what their peers sent, also those whose requests came too slowly (`slow`), kept room that others
    waited for (`crowding`), or were too large for the system's memory (`out_of_memory`). `waiting_connections` wait
    for room now, and did so `waits_for_room` times. `duplicate_batches` were repeated by idempotent producers and not
    appended again (P1).
    """

    requests: dict[str, int]
    received_bytes: int
    sent_bytes: int
    sendfile_bytes: int
    connections: int
    accepted_connections: int
    refused_connections: int
    refused_of_address: int
    throttled_connections: int
    failed_handshakes: int
    failed_authentications: int
    accepts_exhausted: int
    aborted_connections: int
    idle_connections_closed: int
    slow_connections: int
    crowding_connections: int
    out_of_memory_connections: int
    reserved_bytes: int
    waiting_connections: int
    waits_for_room: int
    appended_batches: int
    appended_bytes: int
    duplicate_batches: int
    refused_batches: int
    verifications: int
    fetched_bytes: int
    waiting_fetches: int
    fetch_sessions: int
    fetch_sessions_evicted: int


class KafkaListener(FrameListener):
    """Serves the Kafka protocol on one address. Other APIs join through `registry` before `start`."""

    def __init__(
        self,
        node: Services,
        host: str,
        port: int,
        limits: KafkaLimits | None = None,
        *,
        produce: ProduceHandler | None = None,
        fetch: FetchHandler | None = None,
        interceptor: Interceptor | None = None,
        request_times: Sequence[RequestTimes] | None = None,
        certificates: Certificates | None = None,
        users: Users | None = None,
        tokens: Tokens | None = None,
        listener_name: str = DEFAULT_LISTENER,
        beside: KafkaListener | None = None,
    ) -> None:
        """`produce` and `fetch`: the node's handlers, where other listeners share them; own ones otherwise.

        `request_times`: by API key, where requests are measured. `certificates`: where connections are encrypted.
        `users`, `tokens`: where clients alone are served that prove who they are.
        `listener_name`: what answers go by. `beside`: another listener that this one shares its limits with.
        """
        self.listener_name = listener_name
        if listener_name != DEFAULT_LISTENER:
            self.name = f"Kafka {listener_name}"
        limits = limits or KafkaLimits()
        encryption = None if certificates is None else certificates.for_clients
        self.produce = produce or ProduceHandler(node)
        self.fetch = fetch or FetchHandler(node, limits)
        self._users = users
        self._tokens = tokens
        self._asks = users is not None or tokens is not None
        apis = (produce_api(self.produce), fetch_api(self.fetch), *ALL_APIS)
        if self._asks:
            apis = (*apis, *AUTHENTICATION_APIS)
            self.look_s_max = _LOOK_S
        super().__init__(
            node, host, port, limits, apis, request_times=request_times, encryption=encryption, beside=beside
        )
        node.client_quotas.on_change(self._quotas_changed)
        if interceptor is not None:
            self.registry.replace(interceptor.kafka_api)

    def _connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            self.limits.max_connections,
            self.limits.kafka_max_connections_per_ip,
            parse_connection_overrides(self.limits.kafka_max_connections_overrides),
            handshakes_max=_HANDSHAKES_MAX,
        )

    def _finish(self) -> None:
        self.fetch.finish()

    def connected(self, connection: KafkaConnection) -> bool:
        """See `FrameListener.connected`. A program that the node runs in is nobody else."""
        if self._asks and connection.address != IN_PROCESS:
            mechanisms = self.node.config.sasl_enabled_mechanisms
            max_ms = self.node.config.connections_max_reauth_ms
            here = Authentication(self._users, self._tokens, mechanisms, self.loop.time, max_ms)
            connection.ask_who(here, self._before_authentication, REQUEST_BYTES_MAX)
        if not (super().connected(connection) and self._give_access(connection)):
            return False
        if connection.authentication is None:
            self._give_quotas(connection)
        return True

    def admitted(self, connection: KafkaConnection) -> Callable[[int], Api | None]:
        """See `FrameListener.admitted`. From here on it may do what its user may, as far as his quotas go."""
        self._give_access(connection)
        self._give_quotas(connection)
        return self._apis_of(connection)

    def _give_access(self, connection: KafkaConnection) -> bool:
        """Let a connection do what its client may. Returns whether it may stay."""
        if connection.address == IN_PROCESS:
            return True
        principal = self._principal(connection)
        if not self.node.authorizer.is_on:
            connection.all_rights = ANYBODY if principal in (None, ANONYMOUS) else Rights(None, "", (), principal)
            return True
        if principal is None:
            return False
        connection.access = self.node.authorizer.access(principal, connection.address)
        if connection.access is None:
            connection.all_rights = Rights(None, "", (), principal)
        return True

    def _principal(self, connection: KafkaConnection) -> str | None:
        """Return whose a connection is; None where no rule gives the owner of its certificate a name."""
        here = connection.authentication
        if here is None:
            return self.node.authorizer.owner_of(connection.certificate())
        if here.is_proven:
            return principal_of_user(here.user)
        return ANONYMOUS  # it is served nothing that asks for a right, until it has proven its user

    def _give_quotas(self, connection: KafkaConnection) -> None:
        """Have a connection's requests count, where any client has a quota. A program in this process is no client."""
        quotas = self.node.client_quotas
        if connection.address == IN_PROCESS or not quotas.is_on:
            connection.quotas = None
            return
        if not connection.quota_user:
            connection.quota_user = (self._principal(connection) or ANONYMOUS).removeprefix(USER)
        connection.quotas = quotas

    def _quotas_changed(self) -> None:
        for connection in tuple(self._connections):  # some of their clients may be gone
            here = connection.authentication
            if here is None or here.is_proven:
                self._give_quotas(connection)
            connection.unmute()

    def _connection_wait_s(self, address: str) -> float:
        return self.node.client_quotas.connection_wait_s(address)

    def _before_authentication(self, key: int) -> Api | None:
        api = self.registry.get(key)
        if api is not None and api.key not in _BEFORE_AUTHENTICATION:
            raise WireFormatError(f"{api.key.name} before the client has authenticated (security.protocol=SASL_...)")
        return api

    def _apis_of(self, connection: KafkaConnection) -> Callable[[int], Api | None]:
        """Return what finds a connection's APIs. Nothing is served after the end of its client's time (KIP-368)."""
        here = connection.authentication
        if here is None or here.ends == math.inf:
            return self.registry.get

        def find(key: int) -> Api | None:
            if here.is_over and key not in _AUTHENTICATING:
                max_ms = self.node.config.connections_max_reauth_ms
                raise WireFormatError(
                    f"the user {here.user} has not authenticated again within connections.max.reauth.ms={max_ms}"
                )
            return self.registry.get(key)

        return find

    def _has_to_leave(self, connection: KafkaConnection, now: float) -> bool:
        """Close a connection whose client does not authenticate, or whose user is not there any more."""
        here = connection.authentication
        if here is None or here.is_current:
            return False
        if here.token is not None:
            connection.abort(f"the token of the user {here.user} has ended, and no other one came")
            return True
        if here.is_proven:
            connection.abort(f"the user {here.user} was removed, or has another password now")
            return True
        timeout_ms = self.limits.kafka_request_receive_timeout_ms
        if now - here.since < timeout_ms / 1000:
            return False
        connection.abort(f"the client has not authenticated within kafka.request.receive.timeout.ms={timeout_ms}")
        return True

    def statistics(self, others: Sequence[KafkaListener] = ()) -> KafkaListenerStatistics:
        """Return the counters; with those of `others` that stand beside this listener added."""
        own = self._own_statistics()
        found = [other._own_statistics() for other in others]
        sums = {name: sum(getattr(each, name) for each in (own, *found)) for name in _COUNTED_BY_EACH}
        requests = {api: sum(each.requests.get(api, 0) for each in (own, *found)) for api in own.requests}
        return replace(own, requests=requests, **sums) if found else own

    def _own_statistics(self) -> KafkaListenerStatistics:
        counters = self.counters
        open_outputs = [each.output for each in self._connections if each.output is not None]
        for output in open_outputs:
            output.settle()
        return KafkaListenerStatistics(
            requests={api.key.name: counters.requests[api.key] for api in self.registry},
            received_bytes=counters.received_bytes,
            sent_bytes=counters.sent_bytes + sum(output.sent_bytes for output in open_outputs),
            sendfile_bytes=counters.sendfile_bytes + sum(output.sendfile_bytes for output in open_outputs),
            connections=len(self._connections),
            accepted_connections=counters.accepted_connections,
            refused_connections=self._acceptor.refused,
            refused_of_address=self._acceptor.refused_of_address,
            throttled_connections=self._acceptor.throttled,
            failed_handshakes=self._acceptor.failed_handshakes,
            failed_authentications=counters.failed_authentications,
            accepts_exhausted=self._acceptor.exhausted,
            aborted_connections=counters.aborted_connections,
            idle_connections_closed=counters.idle_connections_closed,
            slow_connections=counters.slow_connections,
            crowding_connections=counters.crowding_connections,
            out_of_memory_connections=counters.out_of_memory_connections,
            reserved_bytes=self.room.held,
            waiting_connections=self.room.waiting,
            waits_for_room=self.room.refused_steps,
            appended_batches=self.produce.appended_batches,
            appended_bytes=self.produce.appended_bytes,
            duplicate_batches=self.produce.duplicate_batches,
            refused_batches=self.produce.refused_batches,
            verifications=self.produce.verifications,
            fetched_bytes=self.fetch.fetched_bytes,
            waiting_fetches=self.fetch.waiting,
            fetch_sessions=len(self.fetch.sessions),
            fetch_sessions_evicted=self.fetch.sessions.evicted,
        )
