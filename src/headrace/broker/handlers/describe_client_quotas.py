"""DescribeClientQuotas (API key 48), versions 0-1.

Behaviour: The response lists the entities that match every component of the filter, with their quotas. A filter without
components matches all entities. A component matches a name, <default>, or any name. With `strict` an entity must have
no type that the filter does not name.
Versions: v1 flexible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.quotas.client_quotas import CLIENT_ID, IP, USER, Entity
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode, InvalidRequestError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_CLIENT_QUOTAS
VERSIONS: Final = VersionRange(0, 1)


class MatchType(IntEnum):
    """Kafka's numbers of the kinds of matches of a filter component."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


def handle(
    services: Services,
    context: RequestContext,
    request: DescribeClientQuotasRequest,
) -> Work[DescribeClientQuotasResponse]:
    """Return the entities that match the filter."""
    try:
        services.permissions.authorize(context, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        matches = _filter(request.components, strict=request.strict)
    except ApiError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    entries: list[EntryData] = []
    for entity, quotas in list(services.quotas):
        if matches(entity):
            parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts]
            values = [ValueData(key=key, value=value) for key, value in quotas.items()]
            entries.append(EntryData(entity=parts, values=values))
        yield ENTRY_COST
    return DescribeClientQuotasResponse(entries=entries)


def _filter(components: Iterable[ComponentData], *, strict: bool) -> Callable[[Entity], bool]:
    names: dict[str, str | None] = {}
    types: set[str] = set()
    for component in components:
        kind = component.entity_type
        _check(component)
        if kind in types:
            raise InvalidRequestError(f"the filter names {kind} more than once")
        types.add(kind)
        if component.match_type != MatchType.ANY:
            names[kind] = component.match
    if IP in types and len(types) > 1:
        raise InvalidRequestError("ip cannot be combined with another type")

    def matches(entity: Entity) -> bool:
        parts = dict(entity.parts)
        return (
            types <= parts.keys()
            and (not strict or len(types) == len(parts))
            and all(parts[kind] == name for kind, name in names.items())
        )

    return matches


def _check(component: ComponentData) -> None:
    kind, match_type = component.entity_type, component.match_type
    if not kind:
        raise InvalidRequestError("an entity type is empty")
    if kind not in {USER, CLIENT_ID, IP}:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"no entity has the type {kind[:40]!r}")
    if match_type not in set(MatchType):
        raise InvalidRequestError(f"match type {match_type} is not known")
    if (component.match is None) == (match_type == MatchType.EXACT):
        raise InvalidRequestError("a name needs an exact match")
