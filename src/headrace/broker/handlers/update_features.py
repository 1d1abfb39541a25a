"""UpdateFeatures (API key 57), versions 0-2.

Behaviour: The request changes the level of `transaction.version`, from 0 to 2. The broker stores the level as the
setting `headrace.transaction.version` of all brokers, and reports it in ApiVersions. `group.version` is 1 and cannot be
changed. A request for the present level succeeds. INVALID_UPDATE_VERSION is the error for an unsupported feature or
level, for a lower level without an upgrade type that allows it, and for an unknown upgrade type. All features of a
request are updated, or none. With `validate_only` the broker checks the request and changes nothing.
Versions: v1 upgrade type, validate_only; v2 no results by feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.handlers.api_versions import FEATURES, finalized_features
from headrace.broker.services import Services
from headrace.broker.waiting.steps import CREATION_COST, ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.UPDATE_FEATURES
VERSIONS: Final = VersionRange(0, 2)

TYPES_VERSION: Final = 1
LAST_VERSION_WITH_RESULTS: Final = 1
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_SETTING: Final = "headrace.transaction.version"
_Update = tuple[FeatureUpdateKey, int]
"""An update, and its upgrade type."""


def handle(
    services: Services, context: RequestContext, request: UpdateFeaturesRequest
) -> Work[UpdateFeaturesResponse]:
    """Update all features of the request, or none."""
    version = context.header.api_version
    updates: list[_Update] = []
    try:
        services.permissions.authorize(context, Operation.ALTER, ResourceType.CLUSTER)
        for update in request.feature_updates:
            kind = update.upgrade_type
            if version < TYPES_VERSION:
                kind = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
            _check(services, update, kind)
            updates.append((update, kind))
            yield ENTRY_COST // 4
        yield from _change(services, updates, validate_only=request.validate_only)
    except ApiError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    return UpdateFeaturesResponse(
        results=list(_results(updates)) if version <= LAST_VERSION_WITH_RESULTS else []
    )


def _results(updates: Sequence[_Update]) -> Iterator[UpdatableFeatureResult]:
    for name in dict.fromkeys(update.feature for update, _ in updates):
        yield UpdatableFeatureResult(feature=name)


def _check(services: Services, update: FeatureUpdateKey, kind: int) -> None:
    name, level = update.feature, update.max_version_level
    highest = FEATURES.get(name)
    lowest = 0 if name == TRANSACTION_VERSION else highest
    if highest is None or lowest is None:
        problem = f"this broker does not have the feature {name[:100]!r}"
    elif not lowest <= level <= highest:
        problem = f"{name}: this broker supports the levels {lowest} to {highest}, not {level}"
    elif kind not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
        problem = f"{name}: there is no upgrade type {kind}"
    elif level < finalized_features(services)[name] and kind == _UPGRADE:
        problem = f"{name}: {level} is a lower level; the upgrade type has to be a downgrade"
    else:
        return
    raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, problem)


def _change(services: Services, updates: Sequence[_Update], *, validate_only: bool) -> Work[None]:
    level = {update.feature: update.max_version_level for update, _ in updates}.get(
        TRANSACTION_VERSION
    )
    if level is None or level == finalized_features(services)[TRANSACTION_VERSION]:
        return
    if TRANSACTION_SETTING in services.settings.layers.broker:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the setting {TRANSACTION_SETTING} of this broker has precedence: delete it first",
        )

    def merge(present: Mapping[str, str]) -> Mapping[str, str]:
        for update, kind in updates:  # another request may have changed the level
            _check(services, update, kind)
        return {**present, TRANSACTION_SETTING: str(level)}

    settings = services.settings
    if validate_only:
        settings.check_change(merge(settings.stored(all_brokers=True)), all_brokers=True)
    else:
        yield from settings.change(merge, all_brokers=True)
        yield CREATION_COST
