"""The origin of a group request, for the handlers of group APIs."""

from __future__ import annotations

from headrace.broker.context import RequestContext
from headrace.core.coordinator.state.classic_group import Origin


def origin_of(context: RequestContext) -> Origin:
    """Return the origin of a request as a group stores it. The host has the form "/host", as in Kafka."""
    host, colon, port = context.client_address.rpartition(":")
    if not colon or not port.isdigit():
        host = context.client_address
    header = context.header
    return Origin(header.api_version, header.client_id or "", f"/{host}")
