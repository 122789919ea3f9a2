"""What the caller of one request may do. A request asks for what the table in `requirements.py` says, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

from semel.broker.acls.principals import USER
from semel.broker.acls.requirements import Asks
from semel.protocol.acls import ANONYMOUS, CLUSTER_NAME, OPERATIONS, AclOperation, ResourceType
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.runtime.turns import in_turns

if TYPE_CHECKING:
    from semel.broker.acls.authorizer import Access

_Item = TypeVar("_Item")

CODES: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""What is answered where a right is missing."""
_EVERY_OPERATION: Final = {
    resource_type: sum(1 << operation for operation in operations) for resource_type, operations in OPERATIONS.items()
}
_FLAGS: Final = {
    ResourceType.TOPIC: "--topic {}",
    ResourceType.GROUP: "--group {}",
    ResourceType.CLUSTER: "--cluster",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id {}",
    ResourceType.DELEGATION_TOKEN: "--delegation-token {}",
    ResourceType.USER: "--user-principal {}",
}
_NAME_SHOWN: Final = 249
_NOBODY: Final[frozenset[str]] = frozenset()


class Rights:
    """Of one request."""

    __slots__ = ("_access", "_asks", "_request", "who")

    def __init__(self, access: Access | None, request: str, asks: Asks, who: str = "") -> None:
        """`access`: None for who may do everything. `request`: its name, and `who` calls: for the operator."""
        self.who = who if access is None else access.principal
        self._access = access
        self._request = request
        self._asks = asks

    @property
    def are_all(self) -> bool:
        """Whether the caller may do everything."""
        return self._access is None

    @property
    def principal(self) -> str | None:
        """Who the caller is, "User:NAME"; None for nobody in particular, and for the node's own process."""
        if self._access is not None:
            return None if self._access.principal == ANONYMOUS else self._access.principal
        return self.who if self.who.startswith(USER) and self.who != ANONYMOUS else None

    @property
    def viewer(self) -> tuple[str, str] | None:
        """The caller's principal and host, where its rights count."""
        return None if self._access is None else (self._access.principal, self._access.host)

    def may(
        self, resource_type: ResourceType, name: str, operation: AclOperation | None = None, *, told: bool = True
    ) -> bool:
        """Return whether the caller may do what the request asks for, with one resource (S7).

        operation: which of several, where the request asks for more than one with this type
        told:      whether the operator is to hear of it where he may not: not where a list is filtered
        """
        access = self._access
        if access is None:
            return True
        asked = self._asked(resource_type, operation)
        if access.may(asked, resource_type, name):
            if access.is_sampled and told:
                access.note_allowed(asked, resource_type, name, self._request)
            return True
        if told:
            access.note_denied(asked, resource_type, name, self._request)
        return False

    def may_with_cluster(self, operation: AclOperation | None = None, *, told: bool = True) -> bool:
        """Return what `may` does, for the cluster."""
        return self.may(ResourceType.CLUSTER, CLUSTER_NAME, operation, told=told)

    def may_some(self, resource_type: ResourceType, operation: AclOperation) -> bool:
        """Return whether the caller may do an operation with any resource of a type."""
        return self._access is None or self._access.may_some(self._asked(resource_type, operation), resource_type)

    def check(self, resource_type: ResourceType, name: str, operation: AclOperation | None = None) -> None:
        """Raise the error of the resource's type where the caller may not."""
        if not self.may(resource_type, name, operation):
            raise self.refusal(resource_type, name, operation)

    def check_cluster(self, operation: AclOperation | None = None) -> None:
        """Do what `check` does, for the cluster."""
        self.check(ResourceType.CLUSTER, CLUSTER_NAME, operation)

    def refusal(self, resource_type: ResourceType, name: str, operation: AclOperation | None = None) -> SemelError:
        """Return what a caller is told who may not: nothing but what he has said himself."""
        assert self._access is not None
        asked = self._asked(resource_type, operation).name
        flag = _FLAGS[resource_type].format(name[:_NAME_SHOWN])
        what = (
            "the cluster" if resource_type is ResourceType.CLUSTER else f"{_word(resource_type)} {name[:_NAME_SHOWN]!r}"
        )
        return FatalError(
            f"{self._access.principal} may not {asked} {what}: an operator allows it with `semel acl add --allow "
            f"{self._access.principal} --operation {asked.lower()} {flag}`",
            CODES[resource_type],
        )

    async def denied(
        self,
        resource_type: ResourceType,
        names: Iterable[str],
        operation: AclOperation | None = None,
        *,
        told: bool = True,
    ) -> frozenset[str]:
        """Return those of some names with which the caller may not do what the request asks for."""
        if self._access is None:
            return _NOBODY
        asked = dict.fromkeys(names)
        return frozenset(
            [name async for name in in_turns(asked) if not self.may(resource_type, name, operation, told=told)]
        )

    async def visible(
        self,
        resource_type: ResourceType,
        items: Sequence[_Item],
        name_of: Callable[[_Item], str],
        operation: AclOperation | None = None,
    ) -> Sequence[_Item]:
        """Return a list without the items that the caller may not see. Nobody is told of the others."""
        if self._access is None:
            return items
        return [item async for item in in_turns(items) if self.may(resource_type, name_of(item), operation, told=False)]

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return what the caller may do with a resource, as the bits of KIP-430."""
        access = self._access
        if access is None:
            return _EVERY_OPERATION[resource_type]
        return sum(
            1 << operation for operation in OPERATIONS[resource_type] if access.may(operation, resource_type, name)
        )

    def _asked(self, resource_type: ResourceType, operation: AclOperation | None) -> AclOperation:
        """Return the operation that the table has. What it does not have is an error of this program: nobody may it."""
        found = {asked.operation for asked in self._asks if asked.resource_type is resource_type}
        if operation is None and len(found) == 1:
            return found.pop()
        if operation is None or operation not in found:
            raise LookupError(f"{self._request} asks for {operation} of {resource_type.name}: add it to the table")
        return operation


def _word(resource_type: ResourceType) -> str:
    return resource_type.name.lower().replace("_", " ")


ALL_RIGHTS: Final = Rights(None, "", (), "the node's own process")
"""Of who is trusted: a program in the node's own process, and other nodes."""
ANYBODY: Final = Rights(None, "", (), "somebody (there is no authorizer)")
"""Of a client without a user, where everybody may do everything."""

_OF_CALL: Final[ContextVar[Rights]] = ContextVar("rights")


def set_rights(rights: Rights) -> None:
    """Say what the caller may do whom the current task works for."""
    _OF_CALL.set(rights)


def rights_of_call() -> Rights:
    """Return what the caller may do whom the current task works for. Raises `LookupError` where nobody has said."""
    return _OF_CALL.get()
