"""Who may read the metrics, where their port asks: users by HTTP Basic or a token, and owners of certificates.

Everybody else learns from /healthz and /readyz whether the node works, and no more: probes have no password.
Passwords are checked as for all listeners, a hundred at a time at most, in a thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from semel.broker.acls.authorizer import Authorizer
from semel.broker.acls.principals import principal_of_user
from semel.broker.audit.log import Audit
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.principal_rules import NO_RULE
from semel.broker.config.tls import CLIENT_AUTH_REQUIRED
from semel.broker.telemetry.endpoint import Refusal
from semel.broker.users.headers import Lack, NotProvenError, proven_by
from semel.broker.users.tokens import Tokens
from semel.broker.users.users import Users
from semel.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from semel.protocol.errors import RetriableError
from semel.protocol.schemes import asks_for_password, speaks_tls

_REQUEST: Final = "/metrics"
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
        audit: Audit,
    ) -> None:
        """`authorizer`: returns what decides by ACLs; None while the node does not have them yet."""
        listen = config.metrics_listen
        self._asks_user = asks_for_password(listen)
        asks_certificate = speaks_tls(listen) and config.ssl_client_auth == CLIENT_AUTH_REQUIRED
        self._asks_certificate = asks_certificate
        self._users = users if self._asks_user else None
        self._tokens = tokens if self._asks_user else None
        self._authorizer = authorizer
        self._audit = audit

    @property
    def ask(self) -> bool:
        """Whether anybody is asked who he is."""
        return self._asks_user or self._asks_certificate

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
                proven = await proven_by(headers.get("authorization", ""), self._users, self._tokens)
            except NotProvenError as error:
                message = _WRONG if error.lack in (Lack.WRONG, Lack.INVALID_TOKEN) else _NEEDED
                return self._refused(HTTPStatus.UNAUTHORIZED, message, peer, error.name, str(error))
            except RetriableError as error:
                return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.message)
            principal = principal_of_user(proven.user)
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

    def _refused(self, status: HTTPStatus, message: str, peer: str, user: str = "", reason: str = "") -> Refusal:
        """`reason`: for the operator alone."""
        self._audit.authentication_failed(
            listener="metrics", peer=peer, user=user[:_NAME_SHOWN], reason=reason or message
        )
        return Refusal(status, message)
