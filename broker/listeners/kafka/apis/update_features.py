"""UpdateFeatures, versions 0 to 2 (KIP-584, KIP-778): every feature is at its highest level, and stays there.

A cluster has nodes of one version, which speak each client's own protocol whatever the level is; so there is nothing to
raise, and lowering a level would take nothing away. What asks for the level that a feature has is done; all else is
refused, as Kafka refuses what it can't do: nothing changes, whether or not the request only validates.
"""

from __future__ import annotations

from typing import Any, Final

from semel.broker.listeners.kafka.features import FEATURES
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.errors import ErrorCode, SemelError, UsageError, error_for
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values
from semel.runtime.turns import in_turns

_RESULTS_MAX_VERSION: Final = 1
_TYPES_MIN_VERSION: Final = 1
_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3
_BY_NAME: Final = {feature.name: feature for feature in FEATURES}


async def handle_update_features(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    try:
        context.rights.check_cluster()
    except SemelError as error:
        return await write_response(
            context, **_error_values(error), **({"results": ()} if version <= _RESULTS_MAX_VERSION else {})
        )
    outcomes = [(each.feature, _refusal(each, version)) async for each in in_turns(request.feature_updates)]
    if version <= _RESULTS_MAX_VERSION:
        results = [{"feature": feature, **_error_values(error)} async for feature, error in in_turns(outcomes)]
        return await write_response(context, results=results)
    # The version without results tells of the first that fails, which keeps all from being updated (KIP-1022).
    first = next((error for _, error in outcomes if error is not None), None)
    return await write_response(context, **_error_values(first))


def _error_values(error: SemelError | None) -> Values:
    return {} if error is None else {"error_code": error.code, "error_message": error.message}


def _refusal(update: Any, version: int) -> SemelError | None:
    """Return why a feature can't have the level that is asked for; None where it has it."""
    name, level = update.feature[:200], update.max_version_level
    if version >= _TYPES_MIN_VERSION:
        kind = update.upgrade_type
    else:
        kind = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    feature = _BY_NAME.get(update.feature)
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return _invalid(f"the update of {name!r} is of type {kind}: use 1 upgrade, 2 or 3 downgrade")
    if feature is None:
        return _invalid(f"there is no feature {name!r} here: there are {', '.join(_BY_NAME)}")
    if not feature.min_version <= level <= feature.max_version:
        return _invalid(f"{name} can't have level {level}: it has {feature.min_version} to {feature.max_version}")
    if level == feature.max_version:
        return None
    if kind == _UPGRADE:
        return _invalid(f"{name} is at level {feature.max_version}: to {level} would be a downgrade")
    return error_for(
        ErrorCode.FEATURE_UPDATE_FAILED,
        f"{name} stays at level {feature.max_version}: a node has all of its version's features. Clients choose for "
        "themselves: one that speaks the older protocol is served by it",
    )


def _invalid(message: str) -> UsageError:
    return UsageError(message, ErrorCode.INVALID_UPDATE_VERSION)


UPDATE_FEATURES = Api(ApiKey.UPDATE_FEATURES, 0, 2, handle_update_features)
