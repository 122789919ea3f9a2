"""Who may do what on this node: the ACLs of the metadata, asked by principal and host, and remembered for a while."""

from __future__ import annotations

from typing import Final, Protocol

from semel.broker.acls.decision import AclSet, Decision
from semel.broker.acls.principals import USER, principal_of_certificate
from semel.broker.audit.log import Audit
from semel.broker.config.permissions import PermissionConfig, super_users_of
from semel.broker.config.principal_rules import DEFAULT, NO_RULE, PrincipalMapping
from semel.protocol.acls import Acl, AclOperation, ResourceType
from semel.protocol.addresses import host_of
from semel.protocol.randomness import source

REMEMBERED_MAX: Final = 50_000
"""Decisions that are remembered: some 15 MB (S2)."""
_REMEMBERED_NAME_MAX: Final = 249
"""Longer names are decided again each time: no topic has one."""


class AclsSource(Protocol):
    """What has the ACLs as they are now: an image of the metadata."""

    @property
    def acls(self) -> frozenset[Acl]: ...


class MetadataSource(Protocol):
    """What has the newest image."""

    @property
    def image(self) -> AclsSource: ...


class Authorizer:
    """Of one node."""

    def __init__(self, config: PermissionConfig, metadata: MetadataSource, audit: Audit) -> None:
        self.is_on = bool(config.authorizer_class_name)
        """Whether ACLs count at all."""
        self.audit = audit
        self.sample = config.audit_allowed_sample
        """Which share of what is allowed the audit log has."""
        self._super_users = super_users_of(config)
        self._allows_without_acl = config.allow_everyone_if_no_acl_found
        rules = config.ssl_principal_mapping_rules
        self._mapping = None if rules == DEFAULT else PrincipalMapping(rules)
        self._metadata = metadata
        self._current = _Decisions(metadata.image.acls)

    def owner_of(self, der: bytes | None) -> str | None:
        """Return the principal of a client's certificate; None where no rule gives it one: it is not served.

        Call on the event loop.
        """
        owner = principal_of_certificate(der, self._mapping)
        if owner is None:
            subject = principal_of_certificate(der)
            self.audit.certificate_refused(subject=(subject or "").removeprefix(USER), reason=NO_RULE)
        return owner

    def access(self, principal: str, host: str) -> Access | None:
        """Return what says what somebody may do; None for who may do everything."""
        if not self.is_on or principal in self._super_users:
            return None
        return Access(self, principal, host_of(host))

    def may(self, access: Access, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Decide; by what was decided before, where the ACLs are the same. From any thread."""
        current = self._decisions()
        key = access.principal, access.host, operation << 4 | resource_type, name
        decided = current.known.get(key)
        if decided is None:
            asked = access.principal, access.host, operation, resource_type, name
            if self._allows_without_acl:
                decided = current.acls.decide(*asked) is not Decision.DENIED
            else:
                decided = current.acls.allows(*asked)
            if len(name) <= _REMEMBERED_NAME_MAX:
                current.remember(key, decided)
        return decided

    def may_some(self, access: Access, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Decide whether an operation is allowed on any resource of a type (KIP-679)."""
        current = self._decisions()
        key = access.principal, access.host, operation << 4 | resource_type, None
        decided = current.known.get(key)
        if decided is None:
            decided = current.acls.allows_some(access.principal, access.host, operation, resource_type) or (
                self._allows_without_acl and not current.acls.is_about_every(resource_type)
            )
            current.remember(key, decided)
        return decided

    def _decisions(self) -> _Decisions:
        """Return what decides by the ACLs as they are now."""
        acls = self._metadata.image.acls
        current = self._current
        if acls is not current.given:
            current = self._current = _Decisions(acls)
        return current


class _Decisions:
    """ACLs, and what was decided by them. Others get one of their own: no thread writes into it what is over."""

    __slots__ = ("acls", "given", "known")

    def __init__(self, given: frozenset[Acl]) -> None:
        self.given = given
        self.acls = AclSet(given)
        self.known: dict[tuple[str, str, int, str | None], bool] = {}

    def remember(self, key: tuple[str, str, int, str | None], decided: bool) -> None:
        if len(self.known) >= REMEMBERED_MAX:
            self.known.clear()
        self.known[key] = decided


class Access:
    """What one principal at one host may do. It follows the ACLs: what was allowed a moment ago may not be any more."""

    __slots__ = ("_authorizer", "host", "is_sampled", "principal")

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.host = host
        self.is_sampled = authorizer.sample > 0
        """Whether the audit log has some of what is allowed: `note_allowed` draws which."""

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether an operation is allowed on a resource."""
        return self._authorizer.may(self, operation, resource_type, name)

    def may_some(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether an operation is allowed on any resource of a type."""
        return self._authorizer.may_some(self, operation, resource_type)

    def note_denied(self, operation: AclOperation, resource_type: ResourceType, name: str, request: str) -> None:
        """Tell the operator of what was asked for by name and refused. Call on the event loop."""
        self._authorizer.audit.denied(**self._asked(operation, resource_type, name, request))

    def note_allowed(self, operation: AclOperation, resource_type: ResourceType, name: str, request: str) -> None:
        """Tell the operator of some of what was asked for by name and allowed. Call on the event loop."""
        if source().random() < self._authorizer.sample:
            self._authorizer.audit.allowed(**self._asked(operation, resource_type, name, request))

    def _asked(self, operation: AclOperation, resource_type: ResourceType, name: str, request: str) -> dict[str, str]:
        return {
            "principal": self.principal,
            "host": self.host,
            "operation": operation.name,
            "resource": f"{resource_type.name}:{name}",
            "request": request,
        }
