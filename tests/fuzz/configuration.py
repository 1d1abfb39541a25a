"""Fuzz targets for the input of administrators: configuration files, rules in values, and access control entries."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from headrace.cli.arguments.settings_files import read_settings
from headrace.clients.security import parse_jaas
from headrace.config.authorization import parse_super_users
from headrace.config.broker import BROKER_OPTIONS, parse_broker_config
from headrace.config.listeners import parse_advertised, parse_listeners, parse_protocol_map
from headrace.config.properties_file import parse_properties
from headrace.config.secrets import resolve_references
from headrace.errors import ConfigError, ProtocolError
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.security.principal_mapping import MappingError, PrincipalMapping
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.messages import joined
from tests.fuzz.mutation import mutated

LONGEST_S: Final = 5
SECRET: Final = "hunter2-and-more"
SUBJECT: Final = "CN=alice,OU=readers,O=Example\\, Inc,C=DE"
EVERYTHING: Final = DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)


def _map(text: str) -> None:
    with contextlib.suppress(MappingError):
        PrincipalMapping(text).name_of(SUBJECT)


def _configure(text: str) -> None:
    settings = parse_properties(text, "a file")
    environment = {"NAME": SECRET, "OTHER": SECRET}
    try:
        resolved = resolve_references(settings, lambda _: None, environment)
    except ConfigError as error:
        assert SECRET not in str(error)  # noqa: PT017 - it is not known which texts are refused
        return
    parse_broker_config(resolved)


FILE: Final = """# a file
listeners=SSL://:9093,SASL_SSL://127.0.0.1:9094
listener.security.protocol.map=INTERNAL:SASL_PLAINTEXT
ssl.key.password=${env:NAME}
listener.name.internal.ssl.keystore.key = ${file:/nowhere:key}
super.users=User:CN=a,O=b;User:bob
log.retention.ms : \\
    -1
num.partitions=3
"""
JAAS: Final = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="alice" password="se\\"cret";'
)
READERS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "a file": (FILE, _configure),
    "listeners": (
        "A://h:1,B://[::1]:2,PLAINTEXT://:9092",
        lambda text: parse_listeners(text, parse_protocol_map("A:SSL,B:SASL_SSL")),
    ),
    "a protocol map": ("A:SSL,B:SASL_PLAINTEXT", parse_protocol_map),
    "advertised addresses": ("A://h:1,B://[::1]:2", parse_advertised),
    "super users": ("User:CN=a,O=b;User:bob", parse_super_users),
    "rules": ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,RULE:(a+)b/x/,DEFAULT", _map),
    "a login module": (JAAS, parse_jaas),
}


def fuzz_configuration(chance: Random) -> None:
    """Parse any configuration. It is accepted, or refused with a ConfigError, within a bounded time."""
    text, read = READERS[chance.choice(sorted(READERS))]
    if chance.random() < 0.2:
        text += f"\n{chance.choice(sorted(BROKER_OPTIONS))}={text}"
    data = mutated(text.encode(), chance, FILE.encode()).decode(
        "utf-8", chance.choice(["replace", "surrogateescape"])
    )
    started = time.process_time()
    with contextlib.suppress(ConfigError):
        read(data)
    assert time.process_time() - started < LONGEST_S


TOML: Final = b'[a]\nb = "x"\n[[c]]\nd = [1, 2]\n[log.retention]\nms = -1\n'


def fuzz_configuration_file(chance: Random) -> None:
    """Read a file of any bytes, properties or TOML. It is accepted, or refused with its name."""
    name, content = chance.choice([("server.properties", FILE.encode()), ("server.toml", TOML)])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        path.write_bytes(mutated(content, chance, TOML))
        try:
            read_settings(path)
        except ConfigError as error:
            assert str(path) in str(error)  # noqa: PT017 - it is not known which files are refused


def random_creation(chance: Random) -> AclCreation:
    return AclCreation(
        resource_type=chance.choice([2, 2, 3, 4, 5, 7, 0, 1, -1, 99]),
        resource_name=chance.choice(["a", "*", "", "kafka-cluster", "a" * 300, "\0", "é/ü%"]),
        resource_pattern_type=chance.choice([3, 3, 4, 2, 1, 0, 99]),
        principal=chance.choice(["User:a", "User:*", "User:", ":", "", "Group:x", "User:CN=a,O=b"]),
        host=chance.choice(["*", "127.0.0.1", "", "host", "::1", "10.0.0.0/8"]),
        operation=chance.choice([2, 3, 4, 8, 12, 0, 1, -128, 127]),
        permission_type=chance.choice([2, 3, 3, 0, 1, 99]),
    )


def random_filter(chance: Random) -> DeleteAclsFilter:
    creation = random_creation(chance)
    return DeleteAclsFilter(
        resource_type_filter=creation.resource_type,
        resource_name_filter=chance.choice([None, creation.resource_name]),
        pattern_type_filter=creation.resource_pattern_type,
        principal_filter=chance.choice([None, creation.principal]),
        host_filter=chance.choice([None, creation.host]),
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def fuzz_access_control(chance: Random) -> None:
    """Create ACLs. Each is stored or refused. Stored ACLs are found, also after a crash."""
    harness = BrokerHarness(authorizer_class_name="headrace")
    for _ in range(4):
        request: Any = CreateAclsRequest(
            creations=[random_creation(chance) for _ in range(chance.randrange(5))]
        )
        if chance.random() < 0.3:
            request = DeleteAclsRequest(filters=[random_filter(chance)])
        version = chance.choice([1, 2, 3])
        data = joined(request.encode(version))
        if chance.random() < 0.3:
            data = mutated(data, chance, data)
        try:
            request, _ = type(request).decode(memoryview(data), 0, version)
        except ProtocolError:
            continue
        response = harness.call(request, version)
        if isinstance(request, CreateAclsRequest):
            assert len(response.results) == len(request.creations)
        else:
            assert len(response.filter_results) == len(request.filters)
    found = harness.call(EVERYTHING)
    assert found.error_code == 0
    harness.crash()
    assert harness.call(EVERYTHING) == found
