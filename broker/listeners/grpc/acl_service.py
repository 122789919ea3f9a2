"""semel.v1.AclService."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.convert import filled
from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.permitted import acls
from semel.broker.services import Services
from semel.protocol.acl_messages import acl_filter_of, acl_message, acl_of
from semel.protocol.v1 import acls_pb2, common_pb2


class AclService:
    """Permissions."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def create_acls(self, request: acls_pb2.CreateAclsRequest, _context: Context) -> acls_pb2.CreateAclsResponse:
        outcomes = await acls.create_acls(self._node, rights_of_call(), list(map(acl_of, request.acls)))
        return acls_pb2.CreateAclsResponse(
            # A list of messages has no holes: success is an Error of code 0.
            errors=[
                (None if error is None else item_error(error.code, error.message)) or common_pb2.Error()
                for error in outcomes
            ]
        )

    async def delete_acls(self, request: acls_pb2.DeleteAclsRequest, _context: Context) -> acls_pb2.DeleteAclsResponse:
        results = await acls.delete_acls(self._node, rights_of_call(), list(map(acl_filter_of, request.filters)))
        message = acls_pb2.DeleteAclsResponse()
        return await filled(
            message,
            message.results,
            (
                acls_pb2.DeleteAclsResponse.Result(
                    error=None if error is None else item_error(error.code, error.message),
                    deleted=map(acl_message, deleted),
                )
                for deleted, error in results
            ),
        )

    async def describe_acls(
        self, request: acls_pb2.DescribeAclsRequest, _context: Context
    ) -> acls_pb2.DescribeAclsResponse:
        found = await acls.describe_acls(self._node, rights_of_call(), acl_filter_of(request.filter))
        message = acls_pb2.DescribeAclsResponse()
        return await filled(message, message.acls, map(acl_message, found))
