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
from semel.protocol.acls import ANONYMOUS
from semel.protocol.errors import ErrorCode, FatalError

_PEM: Final = "x509_pem_cert"

_USER: Final[ContextVar[str | None]] = ContextVar("user", default=None)
"""Of the call in the current task, once its password was right."""

_DELEGATED: Final[ContextVar[bool]] = ContextVar("delegated", default=False)


def set_user(name: str, *, is_delegated: bool = False) -> None:
    """Say whose call the current task serves. is_delegated: whether a delegation token has proven it"""
    _USER.set(name)
    _DELEGATED.set(is_delegated)


def is_delegated() -> bool:
    """Return whether a delegation token has proven whose call the current task serves."""
    return _DELEGATED.get()


def rights_of(node: Services, method: str, context: Context) -> Rights:
    """Return what the caller of a method ("GroupService/JoinGroup") may do. A program in this process may do all.

    Raises `FatalError` where the certificate's owner has no name.
    """
    if context.peer() == IN_PROCESS:
        return ALL_RIGHTS
    if not node.authorizer.is_on:
        owner = _owner_of(node, context)
        return ANYBODY if owner in (None, ANONYMOUS) else Rights(None, "", (), owner)
    principal = principal_of(node, context)
    access = node.authorizer.access(principal, client_host(context).removeprefix("/"))
    return Rights(access, method, GRPC[method], principal)


def principal_of(node: Services, context: Context) -> str:
    """Return who calls. Raises `FatalError`."""
    owner = _owner_of(node, context)
    if owner is None:
        raise FatalError(NO_RULE, ErrorCode.SASL_AUTHENTICATION_FAILED)
    return owner


def _owner_of(node: Services, context: Context) -> str | None:
    """Return who calls; None where no rule gives the owner of the certificate a name."""
    user = _USER.get()
    if user is not None:
        return principal_of_user(user)
    proven: dict[str, Sequence[bytes]] | Any = context.auth_context()
    pem = next(iter(proven.get(_PEM, ())), b"")
    return node.authorizer.owner_of(der_of_pem(pem))
