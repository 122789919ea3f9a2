"""Who calls over gRPC, as ACLs name it: the user of the password that was checked, or the owner of the certificate."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final

from semel.broker.acls.principals import der_of_pem, principal_of_user
from semel.broker.acls.requirements import GRPC
from semel.broker.acls.rights import ALL_RIGHTS, ANYBODY, Rights
from semel.broker.config.principal_rules import NO_RULE
from semel.broker.listeners.acceptor import IN_PROCESS
from semel.broker.listeners.grpc.edge import Context, client_host
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, FatalError

_PEM: Final = "x509_pem_cert"

_USER: Final[ContextVar[str | None]] = ContextVar("user", default=None)
"""Of the call in the current task, once its password was right."""


def set_user(name: str) -> None:
    """Say whose call the current task serves."""
    _USER.set(name)


def rights_of(node: Services, method: str, context: Context) -> Rights:
    """Return what the caller of a method ("GroupService/JoinGroup") may do. A program in this process may do all.

    Raises `FatalError` where the certificate's owner has no name.
    """
    if context.peer() == IN_PROCESS:
        return ALL_RIGHTS
    if not node.authorizer.is_on:
        user = _USER.get()
        return ANYBODY if user is None else Rights(None, "", (), principal_of_user(user))
    principal = principal_of(node, context)
    access = node.authorizer.access(principal, client_host(context).removeprefix("/"))
    return Rights(access, method, GRPC[method], principal)


def principal_of(node: Services, context: Context) -> str:
    """Return who calls. Raises `FatalError`."""
    user = _USER.get()
    if user is not None:
        return principal_of_user(user)
    proven: dict[str, Sequence[bytes]] | Any = context.auth_context()
    pem = next(iter(proven.get(_PEM, ())), b"")
    owner = node.authorizer.owner_of(der_of_pem(pem))
    if owner is None:
        raise FatalError(NO_RULE, ErrorCode.SASL_AUTHENTICATION_FAILED)
    return owner
