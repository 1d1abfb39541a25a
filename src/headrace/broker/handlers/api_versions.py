"""ApiVersions (API key 18), versions 0-4.

Behaviour: answers what the registry holds, so the answer cannot differ from what is served. It never fails: a version
that we do not know is answered in the format of version 0 with UNSUPPORTED_VERSION and the same list (KIP-511), which
every client takes as "try again with the highest you see"; `unsupported` builds that answer. The client's software
name and version change nothing. Produce is advertised from version 0 although 0-2 are refused: older librdkafka
switches compression off otherwise (KAFKA-18659).
The tagged field 26738 tells Headrace's own clients what else there is: `filter`, fetches that name tags;
`delayed`, offsets with how many delayed records wait.
Features: group.version 1 (KIP-848) and transaction.version 2 (KIP-890), or what headrace.transaction.version
says, are finalized; UpdateFeatures changes the level of transaction.version.
Versions: v1 throttle time; v3 client software, flexible body under a header that stays version 0.
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
    request: ApiVersionsRequest,  # noqa: ARG001 - what the client is called changes nothing
) -> ApiVersionsResponse:
    """List the APIs and versions that this broker serves."""
    return _response(services, ErrorCode.NONE, context.header.api_version)


def unsupported(services: Services) -> ApiVersionsResponse:
    """Return the answer to an ApiVersions of unknown version; it has to be encoded as version 0."""
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
    return (services.leader_epoch << 32) + services.settings.changes


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
        # Clients before v4 take a feature whose lowest level is 0 for malformed (KAFKA-17011).
        supported_features=supported if version >= _LEVEL_ZERO_VERSION else [],
        finalized_features_epoch=_epoch(services),
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in finalized_features(services).items()
            if level
        ],
        headrace_extensions=list(_EXTENSIONS),
    )
