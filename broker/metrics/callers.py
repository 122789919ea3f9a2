"""Who may read the metrics, where their port asks: users by HTTP Basic or a token, and owners of certificates.

Everybody else is told of /healthz and /readyz only whether the node works: a container's probe has no password. A
password that was right once is known without another check; the others are checked as for all listeners, a hundred at
a time at most, in a thread.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from semel.broker.acls.authorizer import Authorizer
from semel.broker.acls.principals import principal_of_user
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.principal_rules import NO_RULE
from semel.broker.config.tls import CLIENT_AUTH_REQUIRED
from semel.broker.telemetry.endpoint import Refusal
from semel.broker.users.basic import parse_basic
from semel.broker.users.tokens import TokenError, Tokens
from semel.broker.users.users import Users
from semel.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from semel.protocol.errors import RetriableError
from semel.protocol.schemes import asks_for_password, speaks_tls
from semel.runtime.limited_log import LimitedLog

_REQUEST: Final = "/metrics"
_BEARER: Final = "bearer "
_NAME_SHOWN: Final = 60
_NEEDED: Final = (
    "the metrics are for users alone: give a user's name and password (HTTP Basic), or a token (docs/metrics.md)"
)
_WRONG: Final = "authentication failed"
_NO_CERTIFICATE: Final = "the metrics are for clients with a certificate of ssl.ca.location (docs/metrics.md)"
_STARTING: Final = "the node starts, and does not know yet who may read its metrics: try again"


class MetricsCallers:
    """Decides about one request at a time, on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        users: Users | None,
        tokens: Tokens | None,
        authorizer: Callable[[], Authorizer | None],
    ) -> None:
        """`authorizer`: returns what decides by ACLs; None while the node does not have them yet."""
        listen = config.metrics_listen
        self._asks_user = asks_for_password(listen)
        asks_certificate = speaks_tls(listen) and config.ssl_client_auth == CLIENT_AUTH_REQUIRED
        self._asks_certificate = asks_certificate
        self._users = users if self._asks_user else None
        self._tokens = tokens if self._asks_user else None
        self._authorizer = authorizer
        self._log = LimitedLog(logging.getLogger("semel.metrics"))

    @property
    def ask(self) -> bool:
        """Whether anybody is asked who he is."""
        return self._asks_user or self._asks_certificate

    def close(self) -> None:
        self._log.close()

    async def refusal(self, headers: Mapping[str, str], tls: ssl.SSLObject | None, peer: str) -> Refusal | None:
        """Return what a request is refused with; None for one that is served.

        headers: with names in lower case
        tls:     of the connection, where it is encrypted
        peer:    the address that it came from
        """
        der = None if tls is None else tls.getpeercert(binary_form=True)
        if self._asks_certificate and der is None:
            return self._refused(HTTPStatus.FORBIDDEN, _NO_CERTIFICATE, peer)
        principal: str | None = None
        if self._asks_user:
            try:
                found = await self._user(headers.get("authorization", ""), peer)
            except RetriableError as error:
                return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.message)
            if isinstance(found, Refusal):
                return found
            principal = principal_of_user(found)
        if not self.ask:
            return None
        authorizer = self._authorizer()
        if authorizer is None:
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, _STARTING)
        if not authorizer.is_on:
            return None
        principal = principal or authorizer.owner_of(der)
        if principal is None:
            return self._refused(HTTPStatus.FORBIDDEN, NO_RULE, peer)
        access = authorizer.access(principal, peer)
        asked = AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        if access is None or access.may(*asked):
            return None
        access.note_denied(*asked, _REQUEST)
        return Refusal(
            HTTPStatus.FORBIDDEN,
            f"{principal} may not describe the cluster: an operator allows it with `semel acl add --allow {principal} "
            "--operation describe --cluster`",
        )

    async def _user(self, given: str, peer: str) -> str | Refusal:
        """Return the user who asks, or why he is refused."""
        if not given:
            return self._refused(HTTPStatus.UNAUTHORIZED, _NEEDED, peer)
        if self._tokens is not None and given[: len(_BEARER)].lower() == _BEARER:
            text = given[len(_BEARER) :].strip()
            try:
                return (self._tokens.known(text) or await self._tokens.check(text)).subject
            except TokenError as error:
                return self._refused(HTTPStatus.UNAUTHORIZED, _WRONG, peer, why=ascii(str(error)))
        if self._users is None:
            return self._refused(HTTPStatus.UNAUTHORIZED, _NEEDED, peer)
        name, password = parse_basic(given)
        if await self._users.check_password(name, password) is None:
            return self._refused(HTTPStatus.UNAUTHORIZED, _WRONG, peer, name)
        return name

    def _refused(self, status: HTTPStatus, message: str, peer: str, name: str = "", why: str = "") -> Refusal:
        """`why`: for the node's log alone."""
        self._log.warning("metrics refused: peer=%s user=%r: %s", peer, name[:_NAME_SHOWN], why or message)
        return Refusal(status, message)
