"""AlterClientQuotas (API key 49), versions 0-1.

Behaviour: sets and removes quotas of a user, of a client id, or of both together, or of an address (ip); a name that
is null stands for <default>. Quotas are producer_byte_rate and consumer_byte_rate in bytes per second, and
request_percentage, the share of the broker's thread. The quota of an address is connection_creation_rate: further
connections in a second are closed at once. It takes the place of the bound that addresses have without a quota, and
counts for addresses of this machine, too. Every entry is checked as a whole and changed for itself; the change is
durable and in force when the answer leaves. Windows are quota.window.num times quota.window.size.seconds. The user is
the principal of a connection, ANONYMOUS where nobody has authenticated. What slows clients down:
`headrace.broker.quotas.throttling`.
Not implemented: names of hosts in the place of addresses, controller_mutation_rate (INVALID_REQUEST).
Versions: v1 flexible.
"""

from __future__ import annotations

from collections.abc import Iterable
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
            _alter(services, wanted, validate_only=request.validate_only)
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
) -> None:
    entity = entity_of(tuple((part.entity_type, part.entity_name) for part in wanted.entity))
    quotas = dict(services.quotas.get(entity))
    for change in _unique(wanted.ops):
        if change.remove:
            quotas.pop(change.key, None)
        else:
            check_quota(entity, change.key, change.value)
            quotas[change.key] = change.value
    if not validate_only:
        services.quotas.change(entity, quotas)


def _unique(changes: Iterable[OpData]) -> Iterable[OpData]:
    seen: dict[str, OpData] = {}
    for change in changes:
        if change.key in seen:
            raise InvalidRequestError(f"{change.key[:40]} is given more than once")
        seen[change.key] = change
    return seen.values()
