"""ACLs, for who may alter or describe the cluster. Each change, and each refused one, is told to the operator."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers import acls
from semel.broker.handlers.acls import Deleted
from semel.broker.services import Services
from semel.protocol.acls import Acl, AclFilter
from semel.protocol.errors import SemelError
from semel.runtime.completion import done_to_its_end


@done_to_its_end
async def create_acls(node: Services, rights: Rights, wanted: Sequence[Acl]) -> list[SemelError | None]:
    """See `handlers.acls.create_acls`."""
    acls.check_is_on(node)
    rights.check_cluster()
    outcomes = await acls.create_acls(node, wanted)
    for acl, error in zip(wanted, outcomes, strict=True):
        if error is None:
            node.audit.changed(rights.who, Event.ACL_ADDED, acl=str(acl))
    return outcomes


@done_to_its_end
async def delete_acls(node: Services, rights: Rights, filters: Sequence[AclFilter]) -> list[Deleted]:
    """See `handlers.acls.delete_acls`."""
    acls.check_is_on(node)
    rights.check_cluster()
    deleted = await acls.delete_acls(node, filters)
    for acl in dict.fromkeys(acl for each in deleted for acl in each.acls):
        node.audit.changed(rights.who, Event.ACL_REMOVED, acl=str(acl))
    return deleted


async def describe_acls(node: Services, rights: Rights, wanted: AclFilter) -> list[Acl]:
    """See `handlers.acls.describe_acls`."""
    acls.check_is_on(node)
    rights.check_cluster()
    return await acls.describe_acls(node, wanted)
