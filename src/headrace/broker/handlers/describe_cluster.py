"""DescribeCluster (API key 60), versions 0-2.

Behaviour: The response has the brokers, addresses and controller that Metadata returns. A broker that has registered
and is not live is fenced. Fenced brokers are in the response if the request wants them, with the address and the rack
of their last registration. The address is the host "" and the port -1 if the broker had not the listener of the client.
Authorized operations, if requested, are the operations of the client. They are empty if the client may not describe the
cluster.
Not implemented: Controller endpoints.
Versions: v1 endpoint type (KIP-919); v2 fenced brokers (KIP-1073).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.broker.access.authorized_operations import NOT_ASKED, cluster_operations
from headrace.broker.cluster_views import brokers_for, controller_for
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.core.cluster.records import REGISTRATIONS, RegistrationRecord, decode
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.protocol.versions import VersionRange

API_KEY: Final = ApiKey.DESCRIBE_CLUSTER
VERSIONS: Final = VersionRange(0, 2)

BROKERS: Final = 1
CONTROLLERS: Final = 2
NO_PORT: Final = -1
"""The port of a broker whose address is not known."""


def handle(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Describe the live brokers of the cluster."""
    if request.endpoint_type != BROKERS:
        error = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(
            error_code=error,
            error_message="this is a broker's endpoint",
            endpoint_type=BROKERS,
        )
    brokers = brokers_for(services, context)
    fenced = _fenced_brokers(services, context) if request.include_fenced_brokers else ()
    return DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=controller_for(services, brokers),
        brokers=[
            *(
                DescribeClusterBroker(
                    broker_id=each.broker_id, host=each.host, port=each.port, rack=each.rack
                )
                for each in brokers.values()
            ),
            *(each for each in fenced if each.broker_id not in brokers),
        ],
        cluster_authorized_operations=(
            cluster_operations(services.permissions, context)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def _fenced_brokers(services: Services, context: RequestContext) -> Iterator[DescribeClusterBroker]:
    """Yield the brokers that have registered and are not live."""
    image = services.metadata.image
    for broker_id in sorted(services.topics.states.broker_epochs.keys() - services.membership.live):
        entry = image.get(f"{REGISTRATIONS}{broker_id}")
        if entry is None:
            continue
        last = decode(entry, RegistrationRecord)
        host, port = last.endpoints.get(context.session.listener, ("", NO_PORT))
        yield DescribeClusterBroker(
            broker_id=broker_id, host=host, port=port, rack=last.rack, is_fenced=True
        )
