"""DescribeCluster (API key 60), versions 0-2.

Behaviour: The response has one broker, which is the controller. Its address is the address that Metadata returns.
Authorized operations, if requested, are the operations of the client. They are empty if the client may not describe the
cluster.
Not implemented: Controller endpoints.
Versions: v1 endpoint type (KIP-919); v2 fenced brokers, which do not exist here.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.authorized_operations import NOT_ASKED, cluster_operations
from headrace.broker.context import RequestContext
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
            cluster_operations(services.permissions, context)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )
