"""DescribeClientQuotas and AlterClientQuotas: quotas of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.clients.flows.coordinator import raise_for
from headrace.clients.flows.effects import ANY_NODE, Call, Flow, ask
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from headrace.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

DEFAULT: Final = None
"""The value in place of a name for the default quota, which applies to entities without a quota of their own."""
Entity = Mapping[str, str | None]
"""The entity to which quotas apply: a name, or DEFAULT, by type. The types are "user", "client-id" and "ip"."""
_EXACT: Final = 0
_DEFAULT_NAME: Final = 1


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    """The quotas of one entity."""

    entity: Entity
    quotas: Mapping[str, float]


def describe_quotas(entity: Entity, *, strict: bool = False) -> Flow[list[EntityQuotas]]:
    """Return the quotas of all entities that contain the names of `entity`. With `strict`, other names are excluded.

    Raises:
        ApiError: The broker refuses the request.
    """
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(
                entity_type=kind,
                match_type=_DEFAULT_NAME if name is DEFAULT else _EXACT,
                match=name,
            )
            for kind, name in entity.items()
        ],
        strict=strict,
    )
    call = Call(request=request, node=ANY_NODE)
    response = yield from ask(call, DescribeClientQuotasResponse)
    raise_for(response.error_code, response.error_message or "client quotas")
    return [
        EntityQuotas(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or ()
    ]


def alter_quotas(
    entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool = False
) -> Flow[ApiError | None]:
    """Change the quotas of an entity.

    Args:
        entity: The entity.
        changes: The new value of each quota by its name; None removes the quota.
        validate_only: The broker checks the request and changes nothing.

    Returns:
        None, or the reason why the quotas were not changed.
    """
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequestEntryData(
                entity=[
                    AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    OpData(key=key, value=0 if value is None else value, remove=value is None)
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    response = yield from ask(Call(request=request, node=ANY_NODE), AlterClientQuotasResponse)
    if len(response.entries) != 1:
        raise ProtocolError(
            f"the request changes one entity, the response has results for {len(response.entries)}"
        )
    [entry] = response.entries
    if not entry.error_code:
        return None
    message = entry.error_message or ErrorCode(entry.error_code).description
    return ApiError.for_code(entry.error_code, message)
