"""DescribeCluster (API key 60), versions 0-2.

Behaviour: one broker, which is the controller, at the address that Metadata tells too.
Authorized operations, where asked for, are those of the client, none if it may not describe the cluster.
Not implemented: controller endpoints.
Versions: v1 endpoint type (KIP-919); v2 fenced brokers, of which there are none.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.requests.authorized_operations import NOT_ASKED, cluster_operations
from headrace.broker.services import Services
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


def handle(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Describe the cluster, which has one broker."""
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
    endpoint = services.endpoints.endpoint_for(context)
    broker_id = services.settings.config.broker_id
    return DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=broker_id,
        brokers=[
            DescribeClusterBroker(broker_id=broker_id, host=endpoint.host, port=endpoint.port)
        ],
        cluster_authorized_operations=(
            cluster_operations(services, context)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )
