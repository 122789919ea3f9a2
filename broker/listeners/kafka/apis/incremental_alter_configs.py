"""IncrementalAlterConfigs, versions 0 and 1 (KIP-339): sets, deletes, and changes lists; all else stays."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from semel.broker.listeners.kafka.apis.alter_configs import alter_each, refuse_null
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.errors import UsageError
from semel.protocol.kafka.api import ApiKey


class _Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle_incremental_alter_configs(context: RequestContext, body: memoryview) -> bytes:
    return await alter_each(context, ApiKey.INCREMENTAL_ALTER_CONFIGS, body, _changes)


def _changes(kind: ResourceType, name: str, configs: Any, validate_only: bool) -> AlterConfigsRequest:
    for each in configs:
        if each.config_operation not in set(_Operation):
            known = ", ".join(f"{operation.value} {operation.name}" for operation in _Operation)
            raise UsageError(f"operation {each.config_operation} on {each.name[:200]} is unknown: use {known}")
        if each.config_operation != _Operation.DELETE:
            refuse_null(each)
    return AlterConfigsRequest(
        kind,
        name,
        values=_values(configs, _Operation.SET),
        remove=tuple(_values(configs, _Operation.DELETE)),
        append=_values(configs, _Operation.APPEND),
        subtract=_values(configs, _Operation.SUBTRACT),
        validate_only=validate_only,
    )


def _values(configs: Any, operation: _Operation) -> Mapping[str, str]:
    return {each.name: each.value for each in configs if each.config_operation == operation}


INCREMENTAL_ALTER_CONFIGS = Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, handle_incremental_alter_configs)
