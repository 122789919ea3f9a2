"""DescribeClientQuotas and AlterClientQuotas, versions 0 and 1 (KIP-546).

Each entity of a request to alter succeeds or fails for itself. A null name is the default of its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.client_quotas import alter_client_quotas, describe_client_quotas
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values
from semel.protocol.quotas import QuotaAlteration, QuotaEntity, QuotaFilter, QuotaMatch, entity_of
from semel.runtime.turns import in_turns


async def handle_describe_client_quotas(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted = QuotaFilter(
        tuple(
            [QuotaMatch(each.entity_type, each.match_type, each.match) async for each in in_turns(request.components)]
        ),
        strict=request.strict,
    )
    try:
        found = await describe_client_quotas(context.node, context.rights, wanted)
    except SemelError as error:
        return await write_response(context, error_code=error.code, error_message=error.message, entries=None)
    return await write_response(
        context,
        entries=[
            {
                "entity": _told(entity),
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
            async for entity, values in in_turns(found)
        ],
    )


class _Asked(NamedTuple):
    """One entry of a request to alter: what it asks for, or what is wrong with it."""

    parts: tuple[tuple[str, str | None], ...]
    alteration: QuotaAlteration | None
    error: SemelError | None


async def handle_alter_client_quotas(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    asked = [_asked(entry) async for entry in in_turns(request.entries)]
    wrong = {frozenset(each.parts): each for each in asked if each.error is not None}
    asked = [wrong.get(frozenset(each.parts), each) for each in asked]
    wanted = [each.alteration for each in asked if each.alteration is not None]
    try:
        results = await alter_client_quotas(context.node, context.rights, wanted, validate_only=request.validate_only)
    except SemelError as error:
        return await write_response(context, entries=[_entry(each.parts, error) for each in asked])
    outcomes = {each.entity: each.error for each in results}
    # What is asked for twice is answered once.
    told = {
        frozenset(parts): _entry(parts, error if alteration is None else outcomes[alteration.entity])
        for parts, alteration, error in asked
    }
    return await write_response(context, entries=list(told.values()))


def _asked(entry: Any) -> _Asked:
    parts = tuple((each.entity_type, each.entity_name) for each in entry.entity)
    try:
        return _Asked(parts, QuotaAlteration(entity_of(parts), _values(entry.ops)), None)
    except UsageError as error:
        return _Asked(parts, None, error)


def _values(ops: Sequence[Any]) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for each in ops:
        if each.key in values:
            raise UsageError(f"the entity has {each.key[:100]!r} more than once")
        values[each.key] = None if each.remove else each.value
    return values


def _told(entity: QuotaEntity) -> list[Values]:
    return [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts]


def _entry(parts: Sequence[tuple[str, str | None]], error: SemelError | None) -> Values:
    return {
        "error_code": ErrorCode.NONE if error is None else ErrorCode(error.code),
        "error_message": None if error is None else error.message,
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
    }


DESCRIBE_CLIENT_QUOTAS = Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, handle_describe_client_quotas)
ALTER_CLIENT_QUOTAS = Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, handle_alter_client_quotas)
