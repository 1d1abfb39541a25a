"""ApiVersions (API key 18), versions 0-4.

Behaviour:
* The response lists the registry of handlers, so that it cannot differ from what the broker serves. The request never
  fails.
* A version that the broker does not know is answered in the format of version 0 with UNSUPPORTED_VERSION and the same
  list (KIP-511); clients then retry with the highest version of the list. `unsupported` makes this response. The broker
  ignores the name and version of the client's software.
* Produce is advertised from version 0, although versions 0-2 are refused: older releases of librdkafka switch
  compression off otherwise (KAFKA-18659).
* The tagged field 26738 names extensions for Headrace's own clients: `filter`, fetches that name tags; `delayed`,
  offsets with the number of scheduled records.
* The finalized features are group.version 1 (KIP-848) and transaction.version 2 (KIP-890), or the level in
  headrace.transaction.version. UpdateFeatures changes the level of transaction.version.
Versions: v1 throttle time; v3 client software, and a flexible body under a header that stays version 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from headrace.protocol.versions import VersionRange

API_KEY: Final = ApiKey.API_VERSIONS
VERSIONS: Final = VersionRange(0, 4)

FEATURES: Final = {"group.version": 1, "transaction.version": 2}
_LEVEL_ZERO_VERSION: Final = 4
_EXTENSIONS: Final = ("filter", "delayed")


def handle(
    services: Services,
    context: RequestContext,
    request: ApiVersionsRequest,  # noqa: ARG001 - the name of the client's software changes nothing
) -> ApiVersionsResponse:
    """List the APIs and versions that this broker serves."""
    return _response(services, ErrorCode.NONE, context.header.api_version)


def unsupported(services: Services) -> ApiVersionsResponse:
    """Return the response to an ApiVersions request of unknown version. It has to be encoded as version 0."""
    return _response(services, ErrorCode.UNSUPPORTED_VERSION, 0)


def finalized_features(services: Services) -> Mapping[str, int]:
    """Return the level of each feature."""
    return {
        **FEATURES,
        "transaction.version": services.settings.config.headrace_transaction_version,
    }


def _epoch(services: Services) -> int:
    """Return a number that grows with every start and every change of settings.

    Clients accept other levels only with a higher epoch.
    """
    return (max(0, services.replicas.registration) << 32) + services.settings.changes


def _response(services: Services, error: ErrorCode, version: int) -> ApiVersionsResponse:
    supported = [
        SupportedFeatureKey(name=name, min_version=0, max_version=level)
        for name, level in FEATURES.items()
    ]
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[
            ApiVersion(
                api_key=api.key, min_version=api.advertised.min, max_version=api.advertised.max
            )
            for api in services.apis.rows
        ],
        # For clients before v4 a feature whose lowest level is 0 is malformed (KAFKA-17011).
        supported_features=supported if version >= _LEVEL_ZERO_VERSION else [],
        finalized_features_epoch=_epoch(services),
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in finalized_features(services).items()
            if level
        ],
        headrace_extensions=list(_EXTENSIONS),
    )
