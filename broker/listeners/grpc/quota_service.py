"""semel.v1.QuotaService."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.convert import filled
from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.permitted import client_quotas
from semel.broker.services import Services
from semel.protocol.quota_messages import alteration_of, entity_message, filter_of, quota_message
from semel.protocol.v1 import quotas_pb2


class QuotaService:
    """Client quotas."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def alter_client_quotas(
        self, request: quotas_pb2.AlterClientQuotasRequest, _context: Context
    ) -> quotas_pb2.AlterClientQuotasResponse:
        results = await client_quotas.alter_client_quotas(
            self._node,
            rights_of_call(),
            list(map(alteration_of, request.alterations)),
            validate_only=request.validate_only,
        )
        message = quotas_pb2.AlterClientQuotasResponse()
        return await filled(
            message,
            message.results,
            (
                quotas_pb2.AlterClientQuotasResponse.Result(
                    entity=entity_message(each.entity),
                    error=None if each.error is None else item_error(each.error.code, each.error.message),
                )
                for each in results
            ),
        )

    async def describe_client_quotas(
        self, request: quotas_pb2.DescribeClientQuotasRequest, _context: Context
    ) -> quotas_pb2.DescribeClientQuotasResponse:
        found = await client_quotas.describe_client_quotas(self._node, rights_of_call(), filter_of(request))
        message = quotas_pb2.DescribeClientQuotasResponse()
        return await filled(message, message.quotas, map(quota_message, found))
