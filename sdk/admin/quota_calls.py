"""What `Admin` asks of nodes about client quotas. Any node takes changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.protocol.quota_messages import alteration_message, entity_of_message, filter_message, quota_of
from semel.protocol.v1 import quotas_pb2
from semel.sdk.admin.parts import in_parts
from semel.sdk.transport import rpcs as rpc
from semel.sdk.transport.item_errors import check_item

if TYPE_CHECKING:
    from semel.protocol.quotas import ClientQuota, QuotaAlteration, QuotaFilter
    from semel.sdk.transport.control import Control

_PER_REQUEST: Final = 1_000


async def alter_client_quotas(control: Control, wanted: Iterable[QuotaAlteration], validate_only: bool) -> None:
    for part in in_parts([each.check() for each in wanted], _PER_REQUEST):
        request = quotas_pb2.AlterClientQuotasRequest(
            alterations=map(alteration_message, part), validate_only=validate_only
        )
        response = await control.call(rpc.ALTER_CLIENT_QUOTAS, request)
        for result in response.results:
            check_item(result.error, f"the quota of {entity_of_message(result.entity)}")


async def describe_client_quotas(control: Control, wanted: QuotaFilter) -> list[ClientQuota]:
    response = await control.call(rpc.DESCRIBE_CLIENT_QUOTAS, filter_message(wanted.check()))
    return list(map(quota_of, response.quotas))
