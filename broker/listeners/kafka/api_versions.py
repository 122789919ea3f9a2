"""ApiVersions, versions 0 to 4 (KIP-35, KIP-511): what this node speaks, asked first on every connection.

The answer always has response header v0. A version that is too new is answered in version 0 with UNSUPPORTED_VERSION
and the versions of ApiVersions itself, so that a newer client can ask again. Finalized features tell clients whether
transactions have an epoch of their own each (`transaction.version` 2, KIP-890).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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

SUPPORTED_FEATURES: Sequence[SupportedFeature] = (SupportedFeature("transaction.version", 0, 2),)
FINALIZED_FEATURES: Sequence[FinalizedFeature] = (FinalizedFeature("transaction.version", 2, 2),)
FEATURES_EPOCH = 0

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
        response = ApiVersionsResponse(
            registry.version_ranges(),
            supported_features=SUPPORTED_FEATURES,
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=FINALIZED_FEATURES,
        )
        return response.frame(version, context.correlation_id)

    return Api(ApiKey.API_VERSIONS, API_VERSIONS_MIN, API_VERSIONS_MAX, begin=begin, pipelined=True)
