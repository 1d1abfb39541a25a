"""What the handlers of group APIs share."""

from __future__ import annotations

from headrace.broker.context import RequestContext
from headrace.core.coordinator.state.classic_group import Origin


def origin_of(context: RequestContext) -> Origin:
    """Return who sent a request, in the form that a group keeps: "/host", as Kafka writes client hosts."""
    host, colon, port = context.client_address.rpartition(":")
    if not colon or not port.isdigit():
        host = context.client_address
    header = context.header
    return Origin(header.api_version, header.client_id or "", f"/{host}")
