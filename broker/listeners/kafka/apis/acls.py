"""DescribeAcls, CreateAcls and DeleteAcls, versions 1 to 3 (KIP-140, KIP-290).

Without an authorizer they are SECURITY_DISABLED, as in Kafka: ACLs would change nothing. From version 2 on a filter may
name its pattern's type ANY or MATCH; version 3 has users with rights over other users' tokens, which there are none of.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeVar

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.acls import create_acls, delete_acls, describe_acls
from semel.protocol.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values
from semel.runtime.turns import in_turns

_Enum = TypeVar("_Enum", bound=IntEnum)


async def handle_describe_acls(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted = AclFilter(
        _known(ResourceType, request.resource_type_filter),
        request.resource_name_filter,
        _known(PatternType, request.pattern_type_filter),
        request.principal_filter,
        request.host_filter,
        _known(AclOperation, request.operation),
        _known(AclPermission, request.permission_type),
    )
    try:
        found = await describe_acls(context.node, context.rights, wanted)
    except SemelError as error:
        return await write_response(context, **_error(error), resources=())
    return await write_response(context, resources=await _resources(found))


async def _resources(acls: Iterable[Acl]) -> list[Values]:
    """Return ACLs by what they are about."""
    resources: dict[tuple[ResourceType, str, PatternType], list[Values]] = {}
    async for acl in in_turns(acls):
        resources.setdefault((acl.resource_type, acl.name, acl.pattern), []).append(_entry(acl))
    return [
        {"resource_type": resource_type, "resource_name": name, "pattern_type": pattern, "acls": entries}
        for (resource_type, name, pattern), entries in resources.items()
    ]


def _entry(acl: Acl) -> Values:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


async def handle_create_acls(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted = [
        Acl(
            _known(ResourceType, each.resource_type),
            each.resource_name,
            _known(PatternType, each.resource_pattern_type),
            each.principal,
            each.host,
            _known(AclOperation, each.operation),
            _known(AclPermission, each.permission_type),
        )
        async for each in in_turns(request.creations)
    ]
    try:
        outcomes = await create_acls(context.node, context.rights, wanted)
    except SemelError as error:
        return await write_response(context, results=[_error(error)] * len(wanted))
    return await write_response(context, results=[{} if error is None else _error(error) for error in outcomes])


async def handle_delete_acls(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted = [
        AclFilter(
            _known(ResourceType, each.resource_type_filter),
            each.resource_name_filter,
            _known(PatternType, each.pattern_type_filter),
            each.principal_filter,
            each.host_filter,
            _known(AclOperation, each.operation),
            _known(AclPermission, each.permission_type),
        )
        async for each in in_turns(request.filters)
    ]
    try:
        results = await delete_acls(context.node, context.rights, wanted)
    except SemelError as error:
        return await write_response(context, filter_results=[{**_error(error), "matching_acls": ()}] * len(wanted))
    return await write_response(
        context,
        filter_results=[
            {
                **({} if error is None else _error(error)),
                "matching_acls": [
                    {
                        "resource_type": acl.resource_type,
                        "resource_name": acl.name,
                        "pattern_type": acl.pattern,
                        **_entry(acl),
                    }
                    for acl in acls
                ],
            }
            async for acls, error in in_turns(results)
        ],
    )


def _known(kind: type[_Enum], number: Any) -> _Enum:
    """Return what a number means. One that this node does not know is UNKNOWN, 0, and refused as such."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _error(error: SemelError) -> Values:
    return {"error_code": ErrorCode(error.code), "error_message": error.message}


DESCRIBE_ACLS = Api(ApiKey.DESCRIBE_ACLS, 1, 3, handle_describe_acls)
CREATE_ACLS = Api(ApiKey.CREATE_ACLS, 1, 3, handle_create_acls)
DELETE_ACLS = Api(ApiKey.DELETE_ACLS, 1, 3, handle_delete_acls)
