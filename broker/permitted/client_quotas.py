"""Client quotas, for who may alter or describe the cluster's settings. Each change is told to the operator."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers import client_quotas
from semel.broker.handlers.client_quotas import Altered
from semel.broker.services import Services
from semel.protocol.quotas import ClientQuota, QuotaAlteration, QuotaFilter
from semel.runtime.completion import done_to_its_end


@done_to_its_end
async def alter_client_quotas(
    node: Services, rights: Rights, wanted: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> list[Altered]:
    """See `handlers.client_quotas.alter_client_quotas`."""
    rights.check_cluster()
    results = await client_quotas.alter_client_quotas(node, wanted, validate_only=validate_only)
    if not validate_only:
        for entity, values, error in results:
            for key, value in values.items():
                if error is not None:
                    continue
                if value is None:
                    node.audit.changed(rights.who, Event.QUOTA_REMOVED, of=str(entity), quota=key)
                else:
                    node.audit.changed(rights.who, Event.QUOTA_SET, of=str(entity), quota=key, value=value)
    return results


async def describe_client_quotas(node: Services, rights: Rights, wanted: QuotaFilter) -> list[ClientQuota]:
    """See `handlers.client_quotas.describe_client_quotas`."""
    rights.check_cluster()
    return await client_quotas.describe_client_quotas(node, wanted)
