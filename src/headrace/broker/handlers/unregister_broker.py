"""UnregisterBroker (API key 64), versions 0-0.

Behaviour: A registered broker stays registered, whether it is live or not, because the leader epochs of its partitions
follow from its registration. Its id is INVALID_REQUEST. Any other id is BROKER_ID_NOT_REGISTERED.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.UNREGISTER_BROKER
VERSIONS: Final = VersionRange(0, 0)


def handle(
    services: Services, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Refuse to unregister any broker."""
    code, message = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ""
    if services.permissions.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        if request.broker_id in services.topics.states.broker_epochs:
            code = ErrorCode.INVALID_REQUEST
            message = f"broker {request.broker_id} stays registered: stop it instead"
        else:
            code = ErrorCode.BROKER_ID_NOT_REGISTERED
            message = f"there is no broker {request.broker_id}"
    return UnregisterBrokerResponse(error_code=code, error_message=message or code.description)
