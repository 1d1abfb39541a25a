"""AlterClientQuotas (API key 49), versions 0-1.

Behaviour:
* The request sets and removes quotas of a user, of a client id, of both together, or of an IP address. A null name
  stands for <default>.
* The quotas of clients are producer_byte_rate and consumer_byte_rate in bytes per second, and request_percentage, a
  share of the broker's thread. The user is the authenticated principal, ANONYMOUS without authentication. Rates are
  measured over quota.window.num windows of quota.window.size.seconds.
* The quota of an address is connection_creation_rate in connections per second: the broker closes further connections
  at once. This quota replaces the limit of connections that an address without a quota has. It also applies to
  addresses of the broker's own machine.
* The broker checks each entry as a whole, and changes each entry by itself. A change is durable and in force before the
  response is sent. `headrace.broker.quotas.throttling` describes how clients are slowed down.
Not implemented: Host names in place of addresses, and controller_mutation_rate: INVALID_REQUEST.
Versions: v1 flexible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.quotas.client_quotas import check_quota, entity_of
from headrace.broker.services import Services
from headrace.broker.waiting.steps import CHECK_COST, CREATION_COST, Work
from headrace.errors import ApiError, ErrorCode, InvalidRequestError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    OpData,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.ALTER_CLIENT_QUOTAS
VERSIONS: Final = VersionRange(0, 1)


def handle(
    services: Services,
    context: RequestContext,
    request: AlterClientQuotasRequest,
) -> Work[AlterClientQuotasResponse]:
    """Change the quotas of every entity."""
    entries = []
    for number, wanted in enumerate(request.entries):
        code, message = ErrorCode.NONE, None
        try:
            services.permissions.authorize(context, Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
            _check_request(services, number)
            yield from _alter(services, wanted, validate_only=request.validate_only)
        except ApiError as error:
            code, message = error.code, error.message
        entries.append(
            AlterClientQuotasResponseEntryData(
                error_code=code,
                error_message=message,
                entity=[
                    AlterClientQuotasResponseEntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in wanted.entity
                ],
            )
        )
        changed = code is ErrorCode.NONE and not request.validate_only
        yield CREATION_COST if changed else CHECK_COST
    return AlterClientQuotasResponse(entries=entries)


def _check_request(services: Services, number: int) -> None:
    if number >= services.settings.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many entities in one request")


def _alter(
    services: Services, wanted: AlterClientQuotasRequestEntryData, *, validate_only: bool
) -> Work[None]:
    entity = entity_of(tuple((part.entity_type, part.entity_name) for part in wanted.entity))
    changes = _unique(wanted.ops)
    for change in changes:
        if not change.remove:
            check_quota(entity, change.key, change.value)

    def merge(present: Mapping[str, float]) -> Mapping[str, float]:
        quotas = dict(present)
        for change in changes:
            if change.remove:
                quotas.pop(change.key, None)
            else:
                quotas[change.key] = change.value
        return quotas

    if not validate_only:
        yield from services.quotas.change(entity, merge)


def _unique(changes: Iterable[OpData]) -> Collection[OpData]:
    seen: dict[str, OpData] = {}
    for change in changes:
        if change.key in seen:
            raise InvalidRequestError(f"{change.key[:40]} occurs more than once")
        seen[change.key] = change
    return seen.values()
