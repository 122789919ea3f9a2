"""ApiVersions, versions 0 to 4 (KIP-35, KIP-511): what this node speaks, asked first on every connection.

The answer always has response header v0. A version that is too new is answered in version 0 with UNSUPPORTED_VERSION
and the versions of ApiVersions itself, so that a newer client can ask again. Finalized features tell clients whether
transactions have an epoch of their own each (`transaction.version` 2, KIP-890), and tools whether groups can be of the
new kind (`group.version` 1, KIP-848). Their epoch is the metadata's, so that it grows whenever they could have changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from semel.broker.listeners.kafka.features import FEATURES, TRANSACTIONS
from semel.broker.listeners.kafka.registry import Answer, Api, ApiRegistry, RequestContext
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import (
    API_VERSIONS_MAX,
    API_VERSIONS_MIN,
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What a client may call itself (KIP-511), so that it can be counted and logged as it is."""


def api_versions_api(registry: ApiRegistry) -> Api:
    """Return the API that advertises `registry`, as it is when asked."""

    def begin(context: RequestContext, frame: memoryview, body: int) -> Answer:
        version = context.api_version
        if not API_VERSIONS_MIN <= version <= API_VERSIONS_MAX:
            own = [each for each in registry.version_ranges() if each.api_key == ApiKey.API_VERSIONS]
            return ApiVersionsResponse(own, ErrorCode.UNSUPPORTED_VERSION).frame(0, context.correlation_id)
        request = ApiVersionsRequest.parse(frame, version, body)
        if version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse([], ErrorCode.INVALID_REQUEST).frame(version, context.correlation_id)
        features = _features(registry)
        response = ApiVersionsResponse(
            registry.version_ranges(),
            throttle_time_ms=context.throttle_ms(),
            supported_features=features,
            finalized_features_epoch=context.node.metadata.image.sequence,
            # All at their highest level: a cluster has nodes of one version.
            finalized_features=[FinalizedFeature(each.name, each.max_version, each.max_version) for each in features],
        )
        return response.frame(version, context.correlation_id)

    return Api(ApiKey.API_VERSIONS, API_VERSIONS_MIN, API_VERSIONS_MAX, begin=begin, pipelined=True)


def _features(registry: ApiRegistry) -> Sequence[SupportedFeature]:
    has_new_groups = registry.get(ApiKey.CONSUMER_GROUP_HEARTBEAT) is not None
    return FEATURES if has_new_groups else (TRANSACTIONS,)
