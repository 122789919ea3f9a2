"""AlterConfigs, versions 0 to 2 (KIP-133): replaces all settings that resources were given.

What a request does not name goes back to its default. Current clients use IncrementalAlterConfigs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from semel.broker.listeners.kafka.apis.config_values import is_known, resource_of
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted import configs
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

Changes = Callable[[ResourceType, str, Any, bool], AlterConfigsRequest]
"""Makes the change of one resource: its type, its name, its settings in the request, and whether only to validate."""


async def handle_alter_configs(context: RequestContext, body: memoryview) -> bytes:
    return await alter_each(context, ApiKey.ALTER_CONFIGS, body, _replacement)


async def alter_each(context: RequestContext, key: ApiKey, body: memoryview, changes: Changes) -> bytes:
    """Change the settings of each resource of a request, all or none of one resource."""
    request = await read_request(context, body)
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    responses: dict[tuple[int, str], dict[str, Any]] = {}
    async for each in in_turns(request.resources):
        resource = (each.resource_type, each.resource_name)
        error = await _alter(context, each, times[resource], request.validate_only, changes)
        responses[resource] = {
            "error_code": ErrorCode.NONE if error is None else error.code,
            "error_message": None if error is None else error.message,
            "resource_type": each.resource_type,
            "resource_name": each.resource_name,
        }
    return await write_response(context, responses=list(responses.values()))


async def _alter(
    context: RequestContext, resource: Any, times: int, validate_only: bool, changes: Changes
) -> SemelError | None:
    try:
        if times > 1:
            raise UsageError(f"{resource.resource_name[:300]!r} is in the request more than once")
        if is_known(resource.resource_type):
            configs.check(context.rights, resource.resource_type, resource.resource_name)
        kind, name = resource_of(resource.resource_type, resource.resource_name)
        _check_settings(resource.configs)
        await configs.alter_configs(context.node, context.rights, changes(kind, name, resource.configs, validate_only))
    except SemelError as error:
        return error
    return None


def _check_settings(configs: Any) -> None:
    repeated = [name for name, times in Counter(each.name for each in configs).items() if times > 1]
    if repeated:
        raise UsageError(f"{', '.join(repeated)[:300]}: a setting can be in the request once")


def refuse_null(config: Any) -> None:
    """Raise `UsageError` (INVALID_REQUEST) for a setting that needs a value and has none."""
    if config.value is None:
        raise UsageError(f"{config.name[:200]} has no value: to put it back to its default, delete it")


def _replacement(kind: ResourceType, name: str, configs: Any, validate_only: bool) -> AlterConfigsRequest:
    for each in configs:
        refuse_null(each)
    values = {each.name: each.value for each in configs}
    return AlterConfigsRequest(kind, name, values, validate_only=validate_only, replace=True)


ALTER_CONFIGS = Api(ApiKey.ALTER_CONFIGS, 0, 2, handle_alter_configs)
