"""The permission checks of the handlers: the ACL decision for a request's client, and the audit event of a denial.

The check is one comparison while the authorizer is off. Clients in the broker's own process are always authorized.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.audit import Audit
from headrace.broker.access.authorizer import Authorizer
from headrace.broker.context import RequestContext
from headrace.config.resources import ConfigResourceType
from headrace.errors import ApiError, ErrorCode
from headrace.security.acls import CLUSTER_NAME, WILDCARD, Operation, ResourceType

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Permissions:
    """Checks what the client of a request is authorized to do."""

    __slots__ = ("_audit", "_authorizer", "_is_clustered")

    def __init__(self, authorizer: Authorizer, audit: Audit, *, is_clustered: bool = False) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self._is_clustered = is_clustered

    def is_broker(self, context: RequestContext) -> bool:
        """Return whether the sender of a request counts as a broker of the cluster.

        In a cluster this is everybody with the permission CLUSTER_ACTION. A denial is written to the audit log.
        """
        session = context.session
        if session.is_local:
            return session.is_broker
        return self._is_clustered and self.allows(
            context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER
        )

    def allows(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        quietly: bool = False,
    ) -> bool:
        """Check whether the client of a request is authorized for an operation on a resource.

        A denial is written to the audit log.

        Args:
            context: The context of the request.
            operation: The operation.
            resource_type: The type of the resource.
            name: The name of the resource. The default is the name of the cluster.
            quietly: Whether the audit log omits a denial: the client did not ask for the operation, or another
                permission may allow it.
        """
        authorizer = self._authorizer
        if not authorizer.active:
            return True
        session = context.session
        if session.is_local:
            return True
        if authorizer.allows(
            session.principal, session.client_host, operation, resource_type, name
        ):
            return True
        if not quietly:
            self._audit.denied(context, operation, resource_type, name)
        return False

    def allows_any(
        self, context: RequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Check whether the client is authorized for an operation on at least one existing or possible resource.

        A denial is written to the audit log with the wildcard as the name of the resource.
        """
        authorizer = self._authorizer
        if not authorizer.active or context.session.is_local:
            return True
        session = context.session
        if authorizer.allows_any(session.principal, session.client_host, operation, resource_type):
            return True
        self._audit.denied(context, operation, resource_type, WILDCARD)
        return False

    def authorize(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> None:
        """Raise an error if `allows` returns false.

        Raises:
            ApiError: The client is not authorized; the code depends on the type of the resource.
        """
        if not self.allows(context, operation, resource_type, name):
            raise ApiError.for_code(_REFUSALS[resource_type])

    def authorize_creation(self, context: RequestContext, topic: str) -> None:
        """Raise an error unless the client may create this topic, or any topic.

        Raises:
            ApiError: TOPIC_AUTHORIZATION_FAILED.
        """
        if not self.allows(context, Operation.CREATE, ResourceType.CLUSTER, quietly=True):
            self.authorize(context, Operation.CREATE, ResourceType.TOPIC, topic)

    def authorize_configs(
        self, context: RequestContext, operation: Operation, resource_type: int, name: str
    ) -> None:
        """Raise an error unless the client may show or change the configuration of a resource.

        Topics and groups have permissions of their own. The configurations of all other resources belong to the
        cluster.

        Raises:
            ApiError: The client is not authorized; the code depends on the type of the resource.
        """
        if resource_type == ConfigResourceType.TOPIC:
            self.authorize(context, operation, ResourceType.TOPIC, name)
        elif resource_type == ConfigResourceType.GROUP:
            self.authorize(context, operation, ResourceType.GROUP, name)
        else:
            self.authorize(context, operation, ResourceType.CLUSTER)
