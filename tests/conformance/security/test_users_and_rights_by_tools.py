"""Users and ACLs with the tools of several projects: each reads the others' changes, on Headrace and Apache Kafka."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import admin as confluent

import headrace
from headrace.errors import ApiError, ErrorCode
from headrace.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.conformance.cli.conftest import Commands
from tests.conformance.clients.java import JavaClient
from tests.conformance.clients.observer import FAST_RECONNECT, wait_until
from tests.fixtures.kafka import TEST_SETTINGS, KafkaServer
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS, HeadraceServer, Target, running_target
from tools.fetch_java import JavaUnavailableError

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas with a deprecated call
    from kafka import admin as kafka_python

SECURED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # every client in plaintext is an administrator: these tests are about the lists
}
WAIT_S: Final = 20
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
numbers = itertools.count()


@pytest.fixture(scope="module", params=["headrace", pytest.param("kafka", marks=pytest.mark.java)])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("target") / request.param
    server: Target
    if request.param == "kafka":
        server = KafkaServer(directory, settings={**TEST_SETTINGS, **SECURED})
    else:
        server = HeadraceServer(directory, settings={**HEADRACE_TEST_SETTINGS, **SECURED})
    with running_target(server):
        yield server


@pytest.fixture
def admin(target: Target) -> Iterator[headrace.Admin]:
    with headrace.Admin(target.bootstrap) as opened:
        yield opened


@pytest.fixture
def confluent_admin(target: Target) -> confluent.AdminClient:
    return confluent.AdminClient({"bootstrap.servers": target.bootstrap, **FAST_RECONNECT})


@pytest.fixture
def kafka_python_admin(target: Target) -> Iterator[kafka_python.KafkaAdminClient]:
    client = kafka_python.KafkaAdminClient(bootstrap_servers=target.bootstrap)
    yield client
    client.close()


@pytest.fixture
def java(target: Target, tmp_path) -> JavaClient:
    try:
        return JavaClient(target.bootstrap, tmp_path)
    except JavaUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def headrace_command(target: Target) -> Commands:
    return Commands(target)


@pytest.fixture
def name() -> str:
    """A unique name for the user and the topic of a test."""
    return f"name-{os.getpid()}-{next(numbers)}"


def binding(name: str, operation: Operation = Operation.READ, **changes: Any) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        f"User:{name}",
        "*",
        operation,
        Permission.ALLOW,
    )._replace(**changes)


def entries(admin: headrace.Admin, name: str) -> list[AclBinding]:
    return admin.describe_acls(AclFilter(principal=f"User:{name}"))


def iterations(admin: headrace.Admin, name: str) -> dict[str, int]:
    """Return the iterations of each of the user's mechanisms; nothing if there is no such user."""
    found = admin.describe_users()
    return found[name].iterations if name in found else {}


# Our own client, on both


def test_our_client_sets_changes_and_deletes_a_user(admin, name) -> None:
    admin.set_user(name, "p", iterations=8192)
    wait_until("the user", lambda: iterations(admin, name) == {SHA_256: 8192, SHA_512: 8192})
    admin.set_user(name, "q", mechanisms=[SHA_512])
    wait_until("one mechanism", lambda: iterations(admin, name) == {SHA_512: 4096})
    admin.delete_user(name)
    wait_until("nobody", lambda: iterations(admin, name) == {})
    with pytest.raises(ApiError) as raised:
        admin.describe_users([name])
    assert raised.value.code is ErrorCode.RESOURCE_NOT_FOUND


def test_our_client_creates_finds_and_deletes_rights(admin, name) -> None:
    wanted = [
        binding(name),
        binding(name, Operation.WRITE, permission=Permission.DENY, host="10.0.0.1"),
        binding(name, pattern_type=PatternType.PREFIXED, resource_type=ResourceType.GROUP),
    ]
    admin.create_acls(wanted)
    wait_until("all", lambda: entries(admin, name) == sorted(wanted))
    matching = AclFilter(ResourceType.GROUP, name + "-more", PatternType.MATCH)
    assert admin.describe_acls(matching) == [wanted[2]]
    assert admin.delete_acls([AclFilter(principal=f"User:{name}", host="10.0.0.1")]) == [wanted[1]]
    wait_until("two", lambda: entries(admin, name) == sorted([wanted[0], wanted[2]]))
    assert admin.delete_acls([AclFilter(principal=f"User:{name}")]) == sorted(
        [wanted[0], wanted[2]]
    )
    wait_until("none", lambda: entries(admin, name) == [])


# confluent-kafka


def test_confluent_kafka_sets_and_deletes_users(admin, confluent_admin, name) -> None:
    upsertion = confluent.UserScramCredentialUpsertion(
        name, confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_256, 5000), b"p"
    )
    confluent_admin.alter_user_scram_credentials([upsertion])[name].result(WAIT_S)
    wait_until("the user", lambda: iterations(admin, name) == {SHA_256: 5000})
    described = confluent_admin.describe_user_scram_credentials([name])[name].result(WAIT_S)
    [info] = described.scram_credential_infos
    assert (info.mechanism, info.iterations) == (confluent.ScramMechanism.SCRAM_SHA_256, 5000)
    assert name in confluent_admin.describe_user_scram_credentials(None).result(WAIT_S)
    deletion = confluent.UserScramCredentialDeletion(name, confluent.ScramMechanism.SCRAM_SHA_256)
    confluent_admin.alter_user_scram_credentials([deletion])[name].result(WAIT_S)
    wait_until("nobody", lambda: iterations(admin, name) == {})


def test_confluent_kafka_creates_finds_and_deletes_rights(admin, confluent_admin, name) -> None:
    wanted = confluent.AclBinding(
        confluent.ResourceType.TOPIC,
        name,
        confluent.ResourcePatternType.PREFIXED,
        f"User:{name}",
        "*",
        confluent.AclOperation.DESCRIBE_CONFIGS,
        confluent.AclPermissionType.DENY,
    )
    for future in confluent_admin.create_acls([wanted]).values():
        future.result(WAIT_S)
    expected = binding(
        name,
        Operation.DESCRIBE_CONFIGS,
        permission=Permission.DENY,
        pattern_type=PatternType.PREFIXED,
    )
    wait_until("the entry", lambda: entries(admin, name) == [expected])
    of_user = confluent.AclBindingFilter(
        confluent.ResourceType.ANY,
        None,
        confluent.ResourcePatternType.ANY,
        f"User:{name}",
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    assert confluent_admin.describe_acls(of_user).result(WAIT_S) == [wanted]
    assert confluent_admin.delete_acls([of_user])[of_user].result(WAIT_S) == [wanted]
    wait_until("none", lambda: entries(admin, name) == [])


# kafka-python


def test_kafka_python_sets_and_deletes_users(admin, kafka_python_admin, name) -> None:
    upsertion = kafka_python.UserScramCredentialUpsertion(name, SHA_512, "p", iterations=4096)
    assert kafka_python_admin.alter_user_scram_credentials([upsertion]) == {name: None}
    wait_until("the user", lambda: iterations(admin, name) == {SHA_512: 4096})
    described = kafka_python_admin.describe_user_scram_credentials([name])[name]
    [info] = described["credential_infos"]
    assert (info["mechanism"].name, info["iterations"]) == ("SCRAM_SHA_512", 4096)
    deletion = kafka_python.UserScramCredentialDeletion(name, SHA_512)
    assert kafka_python_admin.alter_user_scram_credentials([deletion]) == {name: None}
    wait_until("nobody", lambda: iterations(admin, name) == {})


def test_kafka_python_creates_finds_and_deletes_rights(admin, kafka_python_admin, name) -> None:
    pattern = kafka_python.ResourcePattern(kafka_python.ResourceType.TOPIC, name)
    wanted = kafka_python.ACL(
        f"User:{name}",
        "*",
        kafka_python.ACLOperation.READ,
        kafka_python.ACLPermissionType.ALLOW,
        pattern,
    )
    assert kafka_python_admin.create_acls([wanted])["failed"] == []
    wait_until("the entry", lambda: entries(admin, name) == [binding(name)])
    which = kafka_python.ACLFilter(
        f"User:{name}",
        None,
        kafka_python.ACLOperation.ANY,
        kafka_python.ACLPermissionType.ANY,
        kafka_python.ResourcePatternFilter(
            kafka_python.ResourceType.TOPIC, name, kafka_python.ACLResourcePatternType.MATCH
        ),
    )
    found, _ = kafka_python_admin.describe_acls(which)
    assert found == [wanted]
    [(_, matching, _)] = kafka_python_admin.delete_acls([which])
    assert matching == [wanted]
    wait_until("none", lambda: entries(admin, name) == [])


# Kafka's own tools


@pytest.mark.java
def test_kafka_configs_sets_and_deletes_users(admin, java, name) -> None:
    user = ("--entity-type", "users", "--entity-name", name)
    for settings in (f"{SHA_256}=[iterations=8192,password=p]", f"{SHA_512}=[password=p]"):
        java.run("configs", "--alter", *user, "--add-config", settings)
    wait_until("the user", lambda: iterations(admin, name) == {SHA_256: 8192, SHA_512: 4096})
    described = java.run("configs", "--describe", *user)
    assert f"{SHA_256}=iterations=8192" in described
    java.run("configs", "--alter", *user, "--delete-config", SHA_256)
    wait_until("one mechanism", lambda: iterations(admin, name) == {SHA_512: 4096})


@pytest.mark.java
def test_kafka_acls_creates_lists_and_deletes_rights(admin, java, name) -> None:
    who = ("--allow-principal", f"User:{name}")
    what = ("--topic", name, "--group", name)
    java.run("acls", "--add", *who, *what, "--consumer")
    wanted = [
        binding(name),
        binding(name, Operation.DESCRIBE),
        binding(name, resource_type=ResourceType.GROUP),
    ]
    wait_until("the entries", lambda: entries(admin, name) == sorted(wanted))
    listed = java.run("acls", "--list", "--topic", name)
    assert f"principal=User:{name}, host=*, operation=READ, permissionType=ALLOW" in listed
    java.run("acls", "--remove", *who, *what, "--consumer", "--force")
    wait_until("none", lambda: entries(admin, name) == [])


@pytest.mark.java
def test_kafka_tools_list_users_and_acls_that_the_commands_created(
    headrace_command, java, name
) -> None:
    run = headrace_command.run
    run("user", "create", name, "-m", SHA_256, data=b"p\n")
    run("acl", "create", "--allow-principal", f"User:{name}", "--producer", "--topic", name)
    user = ("--entity-type", "users", "--entity-name", name)
    wait_until("the user", lambda: SHA_256 in java.run("configs", "--describe", *user))
    listed = java.run("acls", "--list", "--topic", name)
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        assert f"User:{name}, host=*, operation={operation}, permissionType=ALLOW" in listed


# Our commands, on both


def test_the_commands_create_change_and_delete_a_user(headrace_command, name) -> None:
    run, lines = headrace_command.run, headrace_command.lines

    def listed() -> dict[str, Any]:
        return {each["user"]: each["credentials"] for each in headrace_command.json("user", "list")}

    assert b"created" in run("user", "create", name, data=b"p\n").stderr
    wait_until("the user", lambda: name in listed())
    assert [credential["mechanism"] for credential in listed()[name]] == [SHA_256, SHA_512]
    assert b"set-password" in run("user", "create", name, data=b"p\n", code=1).stderr
    run("user", "set-password", name, "-m", SHA_512, "--iterations", "5000", data=b"q\n")
    wanted = [{"mechanism": SHA_512, "iterations": 5000}]
    wait_until("one mechanism", lambda: listed()[name] == wanted)
    assert lines("user", "describe", name)[1].split() == [name, SHA_512, "5000"]
    run("user", "delete", name, "--yes")
    wait_until("nobody", lambda: name not in listed())
    gone = run("user", "delete", name, "--yes", code=1)
    assert b"RESOURCE_NOT_FOUND" in gone.stdout


def test_the_commands_create_list_and_delete_rights(headrace_command, name) -> None:
    whose = ("--allow-principal", f"User:{name}")
    what = ("--consumer", "--topic", name, "--group", name, "--prefixed")

    def listed() -> list[tuple[str, str, str]]:
        found = headrace_command.json("acl", "list", *whose)
        return [(each["resource"], each["pattern"], each["operation"]) for each in found]

    headrace_command.run("acl", "create", *whose, *what)
    wanted = [
        ("TOPIC", "PREFIXED", "Read"),
        ("TOPIC", "PREFIXED", "Describe"),
        ("TOPIC", "PREFIXED", "DescribeConfigs"),
        ("GROUP", "PREFIXED", "Read"),
    ]
    wait_until("the entries", lambda: listed() == wanted)
    assert len(headrace_command.lines("acl", "list", "--topic", name + "-more", *whose)) == 4
    headrace_command.run("acl", "delete", *whose, *what, "--dry-run")
    assert listed() == wanted
    headrace_command.run("acl", "delete", *whose, *what, "--yes")
    wait_until("none", lambda: listed() == [])
