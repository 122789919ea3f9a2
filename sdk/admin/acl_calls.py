"""What `Admin` asks of nodes about ACLs. Any node takes changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.protocol.acl_messages import acl_message, acl_of
from semel.protocol.v1 import acls_pb2
from semel.sdk.admin.parts import in_parts
from semel.sdk.transport import rpcs as rpc
from semel.sdk.transport.item_errors import check_item

if TYPE_CHECKING:
    from semel.protocol.acls import Acl, AclFilter
    from semel.sdk.transport.control import Control

_PER_REQUEST: Final = 1_000


async def create_acls(control: Control, acls: Iterable[Acl]) -> None:
    for part in in_parts(dict.fromkeys(acl.check() for acl in acls), _PER_REQUEST):
        response = await control.call(rpc.CREATE_ACLS, acls_pb2.CreateAclsRequest(acls=map(acl_message, part)))
        for acl, error in zip(part, response.errors, strict=True):
            check_item(error, str(acl))


async def delete_acls(control: Control, filters: Iterable[AclFilter]) -> list[Acl]:
    deleted: dict[Acl, None] = {}
    for part in in_parts(dict.fromkeys(each.check() for each in filters), _PER_REQUEST):
        response = await control.call(rpc.DELETE_ACLS, acls_pb2.DeleteAclsRequest(filters=map(acl_message, part)))
        for result in response.results:
            check_item(result.error, "a filter of ACLs")
            deleted.update(dict.fromkeys(map(acl_of, result.deleted)))
    return list(deleted)


async def describe_acls(control: Control, wanted: AclFilter) -> list[Acl]:
    request = acls_pb2.DescribeAclsRequest(filter=acl_message(wanted.check()))
    return list(map(acl_of, (await control.call(rpc.DESCRIBE_ACLS, request)).acls))
