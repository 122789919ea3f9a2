"""Users' passwords, for who may alter or describe the cluster. Each change is told to the operator, without secrets."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers import users
from semel.broker.handlers.users import Described, Outcomes
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.scram import Alteration
from semel.runtime.completion import done_to_its_end


@done_to_its_end
async def alter_users(
    node: Services, rights: Rights, wanted: Sequence[tuple[str, Alteration | SemelError]]
) -> Outcomes:
    """See `handlers.users.alter_users`."""
    rights.check_cluster()
    outcomes = await users.alter_users(node, wanted)
    for user, alteration in wanted:
        if outcomes[user] is not None or isinstance(alteration, SemelError):
            continue
        passwords = [f"{each.mechanism}, {each.iterations} iterations" for each in alteration.verifiers]
        if passwords:
            node.audit.changed(rights.who, Event.PASSWORD_SET, user=user, mechanisms="; ".join(passwords))
        else:
            removed = ", ".join(alteration.removed) or "the whole user"
            node.audit.changed(rights.who, Event.PASSWORD_REMOVED, user=user, mechanisms=removed)
    return outcomes


async def describe_users(node: Services, rights: Rights, names: Sequence[str]) -> list[Described]:
    """See `handlers.users.describe_users`."""
    rights.check_cluster()
    return await users.describe_users(node, names)
