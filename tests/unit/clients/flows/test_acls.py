"""Creating, finding and deleting access control entries, against scripted answers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.flows.acls import create_acls, delete_acls, describe_acls
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from headrace.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.unit.clients.scripted import ScriptedDriver

READ = AclBinding(
    ResourceType.TOPIC,
    "orders",
    PatternType.PREFIXED,
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
WRITE = READ._replace(operation=Operation.WRITE)
NOBODY = READ._replace(principal="nobody")


def matching(binding: AclBinding, **error: Any) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
        **error,
    )


def test_every_part_of_a_filter_is_asked_for_and_the_answer_is_sorted() -> None:
    acls = [
        AclDescription(principal="User:alice", host="*", operation=operation, permission_type=3)
        for operation in (4, 3)
    ]
    resource = DescribeAclsResource(
        resource_type=2, resource_name="orders", pattern_type=4, acls=acls
    )
    driver = ScriptedDriver(lambda _: DescribeAclsResponse(resources=[resource]))
    which = AclFilter(
        ResourceType.TOPIC,
        "orders",
        PatternType.MATCH,
        "User:alice",
        "127.0.0.1",
        Operation.READ,
        Permission.DENY,
    )
    assert driver.run(describe_acls(which)) == [READ, WRITE]
    (request,) = driver.requests(DescribeAclsRequest)
    assert (
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    ) == (2, "orders", 2, "User:alice", "127.0.0.1", 3, 2)


def test_an_empty_filter_asks_for_everything() -> None:
    driver = ScriptedDriver(lambda _: DescribeAclsResponse())
    assert driver.run(describe_acls(AclFilter())) == []
    (request,) = driver.requests(DescribeAclsRequest)
    assert (request.resource_type_filter, request.resource_name_filter) == (1, None)
    assert (request.pattern_type_filter, request.principal_filter) == (1, None)
    assert (request.host_filter, request.operation, request.permission_type) == (None, 1, 1)


def test_an_operation_of_a_later_kafka_is_unknown_and_not_an_error() -> None:
    acl = AclDescription(principal="User:a", host="*", operation=99, permission_type=3)
    resource = DescribeAclsResource(resource_type=2, resource_name="t", pattern_type=3, acls=[acl])
    driver = ScriptedDriver(lambda _: DescribeAclsResponse(resources=[resource]))
    [found] = driver.run(describe_acls(AclFilter()))
    assert found.operation is Operation.UNKNOWN


def test_the_error_of_a_broker_without_an_authorizer_is_raised() -> None:
    answer = DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
    )
    with pytest.raises(ApiError, match="No Authorizer") as raised:
        ScriptedDriver(lambda _: answer).run(describe_acls(AclFilter()))
    assert raised.value.code is ErrorCode.SECURITY_DISABLED


def test_create_acls_returns_an_outcome_for_each_binding() -> None:
    results = [
        AclCreationResult(error_message=None),
        AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message="no type"),
    ]
    driver = ScriptedDriver(lambda _: CreateAclsResponse(results=results))
    first, second = driver.run(create_acls([READ, NOBODY]))
    assert first is None
    assert second is not None
    assert (second.code, second.message) == (ErrorCode.INVALID_REQUEST, "no type")
    (request,) = driver.requests(CreateAclsRequest)
    creation = request.creations[0]
    assert (creation.resource_type, creation.resource_name) == (2, "orders")
    assert (creation.resource_pattern_type, creation.principal, creation.host) == (
        *(4, "User:alice"),
        "*",
    )
    assert (creation.operation, creation.permission_type) == (3, 3)


def test_delete_acls_returns_the_deleted_bindings_and_the_first_error_of_each_filter() -> None:
    results = [
        DeleteAclsFilterResult(matching_acls=[matching(WRITE), matching(READ)]),
        DeleteAclsFilterResult(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None
        ),
        DeleteAclsFilterResult(
            matching_acls=[
                matching(WRITE, error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message="full"),
                matching(READ),
            ]
        ),
    ]
    driver = ScriptedDriver(lambda _: DeleteAclsResponse(filter_results=results))
    whole, refused, half = driver.run(delete_acls([AclFilter()] * 3))
    assert whole == ([READ, WRITE], None)
    assert refused.bindings == []
    assert refused.error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert half.bindings == [READ]
    assert half.error.message == "full"
    (request,) = driver.requests(DeleteAclsRequest)
    assert [each.pattern_type_filter for each in request.filters] == [PatternType.ANY] * 3


@pytest.mark.parametrize(
    ("flow", "answer"),
    [
        (create_acls([READ]), CreateAclsResponse()),
        (delete_acls([AclFilter()]), DeleteAclsResponse()),
    ],
)
def test_an_answer_that_leaves_something_out_is_refused(flow, answer) -> None:
    with pytest.raises(
        ProtocolError, match=r"the request has 1 .*, the response has results for 0"
    ):
        ScriptedDriver(lambda _: answer).run(flow)
