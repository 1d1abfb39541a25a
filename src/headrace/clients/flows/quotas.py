"""DescribeClientQuotas and AlterClientQuotas: how much clients may do."""

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
"""In the place of a name: everybody who has no quota of their own."""
Entity = Mapping[str, str | None]
"""Whom quotas belong to: a name, or DEFAULT, by the type "user", "client-id" or "ip"."""
_EXACT: Final = 0
_DEFAULT_NAME: Final = 1


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    """The quotas of one entity."""

    entity: Entity
    quotas: Mapping[str, float]


def describe_quotas(entity: Entity, *, strict: bool = False) -> Flow[list[EntityQuotas]]:
    """Find the quotas of entities that have all the names of one; with `strict`, and no others.

    Raises:
        ApiError: The broker refuses.
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
        entity: Whose quotas.
        changes: The new value by the name of the quota; None removes it.
        validate_only: Have the broker check the request, change nothing.

    Returns:
        None, or why they were not changed.
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
        raise ProtocolError(f"one entity was to be changed, {len(response.entries)} are answered")
    [entry] = response.entries
    if not entry.error_code:
        return None
    message = entry.error_message or ErrorCode(entry.error_code).description
    return ApiError.for_code(entry.error_code, message)
