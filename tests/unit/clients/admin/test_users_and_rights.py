"""Users and ACLs by the admin client, with a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import headrace
from headrace import aio
from headrace.errors import ApiError, ErrorCode
from headrace.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.security.mechanisms import SaslError

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
READ = AclBinding(
    *(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*"),
    *(Operation.READ, Permission.ALLOW),
)
WRITE = READ._replace(operation=Operation.WRITE)


@pytest.fixture
def admin() -> Iterator[headrace.Admin]:
    with headrace.Broker(configs=AUTHORIZER) as broker, headrace.Admin(broker) as admin:
        yield admin


def test_users_come_change_and_go(admin: headrace.Admin) -> None:
    assert admin.list_users() == []
    admin.set_user("bob", "p", mechanisms=["SCRAM-SHA-512"], iterations=8192)
    admin.set_user("alice", "p")
    assert admin.list_users() == ["alice", "bob"]
    both = {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    assert admin.describe_users(["alice"])["alice"].iterations == both
    assert admin.describe_users()["bob"].iterations == {"SCRAM-SHA-512": 8192}
    admin.set_user("alice", "q", mechanisms=["SCRAM-SHA-256"])
    assert list(admin.describe_users("alice")["alice"].iterations) == ["SCRAM-SHA-256"]
    admin.delete_user("alice")
    assert admin.list_users() == ["bob"]


def test_a_missing_user_is_an_error(admin: headrace.Admin) -> None:
    with pytest.raises(ApiError, match="user 'alice'") as raised:
        admin.describe_users(["alice"])
    assert raised.value.code is ErrorCode.RESOURCE_NOT_FOUND
    with pytest.raises(ApiError) as raised:
        admin.delete_user("alice")
    assert raised.value.code is ErrorCode.RESOURCE_NOT_FOUND


def test_a_password_that_brokers_would_not_take(admin: headrace.Admin) -> None:
    with pytest.raises(SaslError, match="empty"):
        admin.set_user("alice", "")
    with pytest.raises(ApiError) as raised:
        admin.set_user("", "p")
    assert raised.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert admin.list_users() == []


def test_rights_come_and_go(admin: headrace.Admin) -> None:
    admin.create_acls([WRITE, READ, READ])
    assert admin.describe_acls() == [READ, WRITE]
    assert admin.describe_acls(AclFilter(operation=Operation.READ)) == [READ]
    filters = [AclFilter(operation=Operation.READ), AclFilter(principal="User:alice")]
    assert admin.delete_acls(filters) == [READ, WRITE]
    assert admin.describe_acls() == []


def test_a_refused_right_says_which_one_it_is(admin: headrace.Admin) -> None:
    with pytest.raises(ApiError, match=r"ALLOW alice READ on TOPIC t: .*User:name") as raised:
        admin.create_acls([WRITE, READ._replace(principal="alice")])
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert admin.describe_acls() == [WRITE]


def test_acl_calls_fail_without_an_authorizer() -> None:
    with headrace.Broker() as broker, headrace.Admin(broker) as admin:
        for ask in (
            admin.describe_acls,
            lambda: admin.create_acls([READ]),
            lambda: admin.delete_acls([AclFilter()]),
        ):
            with pytest.raises(ApiError) as raised:
                ask()
            assert raised.value.code is ErrorCode.SECURITY_DISABLED


def test_the_asyncio_client_does_the_same() -> None:
    async def use() -> None:
        with headrace.Broker(configs=AUTHORIZER) as broker:
            async with aio.Admin(broker) as admin:
                await admin.set_user("alice", "p")
                assert await admin.list_users() == ["alice"]
                assert list(await admin.describe_users()) == ["alice"]
                await admin.delete_user("alice")
                await admin.create_acls([READ])
                assert await admin.describe_acls() == [READ]
                assert await admin.delete_acls([AclFilter()]) == [READ]

    asyncio.run(use())
