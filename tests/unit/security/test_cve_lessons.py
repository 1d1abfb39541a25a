"""Vulnerabilities of other Kafka software, tried on Headrace. Each test repeats an attack.

The names of the tests contain the numbers of the vulnerabilities.
"""

from __future__ import annotations

import ast
import base64
import hmac
import json
import pickle
import re
import time
import tomllib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import crc32c
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

import headrace
from headrace.broker.access.audit_rules import RULES as AUDIT_RULES
from headrace.broker.access.authorization_rules import RULES as AUTHORIZATION_RULES
from headrace.broker.context import CloseConnection
from headrace.broker.dispatch import APIS
from headrace.broker.session import Session
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.security import parse_jaas
from headrace.config.broker import BROKER_OPTIONS, BrokerConfig
from headrace.config.listeners import SecurityProtocol
from headrace.errors import ConfigError, CorruptRecordError, ErrorCode, ProtocolError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import RequestHeader, decode_request, encode_request, request_class
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.records.batch import CRC_POSITION, CRC_START
from headrace.records.compression import MAX_DECOMPRESSED_SIZE, Compression, compress, decompress
from headrace.security.acls import Operation, PatternType, Permission, ResourceType
from headrace.security.mechanisms import SaslError
from headrace.security.oauthbearer import OAuthBearerClient
from headrace.security.plain import PlainServer
from headrace.security.principal import Principal
from headrace.security.scram import ScramClient, ScramMechanism, ScramServer, credential_of
from headrace.server.connections.framing import BadFrameError
from headrace.server.limits import MIB, ServerLimits
from tests.fixtures.broker_harness import BrokerHarness, batch, fetch_request, produce_request
from tests.unit.server.test_framing import buffer_of

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [
    path
    for name in ("headrace", "pyspark_headrace")
    for path in (ROOT / "src" / name).rglob("*.py")
]
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SALT = b"0123456789abcdef"


def peak_of(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(memoryview(data))


def header(api: ApiKey, version: int, tags: bytes) -> bytes:
    return int(api).to_bytes(2) + version.to_bytes(2) + bytes(4) + b"\xff\xff" + tags


# Claims of clients are not believed


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff", b"\x00\x10\x00\x00"])
def test_cve_2026_111108_a_count_of_elements_costs_nothing(count: bytes) -> None:
    """Four bytes announce two thousand million topics, and nothing follows."""
    data = header(ApiKey.CREATE_TOPICS, 2, b"") + count
    assert peak_of(lambda: refused(data)) < 64 << 10
    compact = header(ApiKey.METADATA, 12, b"\x00") + b"\xff\xff\xff\xff\x07"
    assert peak_of(lambda: refused(compact)) < 64 << 10


def test_cve_2026_111115_unknown_tagged_fields_are_not_kept() -> None:
    """Requests have the largest number of tags, one more, and a wrong number of tags."""

    def tagged(tags: int) -> bytes:
        numbers = [bytes((0x80 | n & 0x7F, 0x80 | n >> 7 & 0x7F, n >> 14)) for n in range(tags + 1)]
        section = numbers[tags] + b"".join(number + b"\0" for number in numbers[:tags])
        return header(ApiKey.METADATA, 12, section) + b"\x01\x00\x00\x00\x00"

    data = tagged(1_000)
    assert peak_of(lambda: decode_request(memoryview(data))) < 64 << 10
    refused(tagged(1_001))
    lie = header(ApiKey.METADATA, 12, b"\xff\xff\xff\xff\x0f") + b"\x01\x00\x00\x00\x00"
    started = time.monotonic()
    refused(lie)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec != Compression.NONE])
def test_cve_2026_111073_decompressed_output_is_bounded(codec: Compression) -> None:
    """A small batch of each codec inflates to a gigabyte."""
    if codec == Compression.SNAPPY:
        bomb = b"\xff\xff\xff\xff\x0f" + bytes(1000)  # the announced length
    else:
        bomb = compress(codec, bytes(80 << 20), 1)

    def open_it() -> None:
        with pytest.raises(CorruptRecordError):
            decompress(codec, bomb)

    # The refused output, and the copy that it was cut from.
    assert peak_of(open_it) <= 2 * MAX_DECOMPRESSED_SIZE + (2 << 20)


def test_cve_2022_34917_before_authentication_requests_are_small() -> None:
    """An unauthenticated client announces a large request. Neither the announcement nor the bytes get memory."""
    limits = ServerLimits()
    buffer, _ = buffer_of(limits)
    most = BrokerConfig().sasl_server_max_receive_size
    assert most == 524_288
    buffer.bound(tokens=False, most=most)
    space = buffer.free_space()
    frame = (most + 1).to_bytes(4) + int(ApiKey.PRODUCE).to_bytes(2)
    space[: len(frame)] = frame
    buffer.received(len(frame))
    with pytest.raises(BadFrameError):
        buffer.next_frame()
    assert buffer.capacity == limits.initial_buffer_bytes < MIB
    buffer.close()


# Authentication


class Connection:
    """A client on a listener with SASL."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        protocol = SecurityProtocol.SASL_SSL
        self.session = Session(listener="SASL_SSL", protocol=protocol, client_host="10.1.1.1")

    def call(self, request: Any) -> Any:
        pending = self.harness.send(request, session=self.session)
        if not pending.done:
            self.harness.advance(100)
        return pending.response

    def authenticate(self, mechanism: str, *tokens: bytes) -> Any:
        assert self.call(SaslHandshakeRequest(mechanism=mechanism)).error_code == 0
        response = None
        for token in tokens:
            response = self.call(SaslAuthenticateRequest(auth_bytes=token))
        return response


def with_users(**options: Any) -> BrokerHarness:
    harness = BrokerHarness(sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", **options)
    users = {"alice": "secret", "admin": "root"}
    mechanism = ScramMechanism.SHA_256
    upsertions = [
        ScramCredentialUpsertion(
            name=user,
            mechanism=mechanism,
            iterations=4096,
            salt=SALT,
            salted_password=mechanism.salted(password, SALT, 4096),
        )
        for user, password in users.items()
    ]
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)
    assert {result.error_code for result in harness.call(request).results} == {0}
    return harness


def test_cve_2026_110985_oauthbearer_without_a_source_of_keys_does_not_start() -> None:
    """Without keys signatures cannot be checked: the start has to fail."""
    for url in ("", "http://issuer.example/keys", "ftp://x/", "jndi:ldap://x/"):
        with pytest.raises(ConfigError, match="keys of the token issuer"):
            BrokerHarness(
                sasl_enabled_mechanisms="OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=url
            )


def unsigned(claims: dict[str, Any], algorithm: str = "none") -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims)}."


@pytest.mark.parametrize("keys_are_there", [False, True])
@pytest.mark.parametrize(
    "token",
    [
        "garbage",
        "a.b.c",
        unsigned({"sub": "admin", "exp": 4_000_000_000}),
        unsigned({"sub": "admin", "exp": 4_000_000_000}, "HS256") + "AAAA",
        unsigned({"sub": "admin", "exp": 4_000_000_000}, "RS256") + "AAAA",
    ],
)
def test_cve_2026_33557_the_default_validator_refuses_any_token_but_a_signed_one(
    token: str, *, keys_are_there: bool
) -> None:
    """Only the URL of the keys is configured, and the keys were not read yet."""
    url = "https://issuer.example/keys"
    harness = BrokerHarness(
        sasl_enabled_mechanisms="OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=url
    )
    if keys_are_there:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        harness.broker.services.authenticator.keys_read(
            url, json.dumps({"keys": [public]}).encode()
        )
    connection = Connection(harness)
    response = connection.authenticate("OAUTHBEARER", OAuthBearerClient(token).first(), b"\x01")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not connection.session.authenticated
    with pytest.raises(CloseConnection):
        connection.call(MetadataRequest(topics=[]))


def test_cve_2024_56128_the_server_verifies_the_nonce() -> None:
    """The client's last message repeats that of another exchange, or has another nonce."""
    mechanism = ScramMechanism.SHA_256
    credential = credential_of("secret", mechanism, 4096, SALT)

    def exchange(server_nonce: str) -> tuple[ScramServer, ScramClient, bytes]:
        server = ScramServer(mechanism, lambda _: credential, server_nonce)
        client = ScramClient(mechanism, "alice", "secret", "client")
        return server, client, server.step(client.first())

    server, client, challenge = exchange("one")
    recorded = client.step(challenge)
    assert recorded is not None
    server.step(recorded)
    assert server.done
    replayed, _, _ = exchange("two")
    with pytest.raises(SaslError, match="nonce"):
        replayed.step(recorded)
    # The proof is right for the message, but the nonce is of another exchange.
    forged, client, challenge = exchange("three")
    message = client.step(challenge.replace(b"clientthree", b"clientother"))
    assert message is not None
    with pytest.raises(SaslError, match="nonce"):
        forged.step(message)
    assert not replayed.done
    assert not forged.done


def test_cve_2021_38153_secrets_are_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every check of a password uses compare_digest, and refuses a wrong password."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def spy(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    harness = with_users()
    stored = credential_of("secret", ScramMechanism.SHA_256, 4096, SALT).stored_key
    for password, code in (("secret", 0), ("wrong", ErrorCode.SASL_AUTHENTICATION_FAILED)):
        compared.clear()
        plain = Connection(harness).authenticate("PLAIN", f"\0alice\0{password}".encode())
        assert plain.error_code == code
        assert any(stored in pair for pair in compared)
        compared.clear()
        connection = Connection(harness)
        client = ScramClient(ScramMechanism.SHA_256, "alice", password, "nonce")
        response = connection.authenticate("SCRAM-SHA-256", client.first())
        final = client.step(bytes(response.auth_bytes))
        assert final is not None
        response = connection.call(SaslAuthenticateRequest(auth_bytes=final))
        assert response.error_code == code
        assert any(stored in pair for pair in compared)


def test_cve_2017_12610_a_user_cannot_act_for_another_user() -> None:
    """In PLAIN and in SCRAM, alice cannot authenticate with her credentials as another principal."""
    harness = with_users()
    for message in (b"admin\0alice\0secret", b"User:admin\0alice\0secret"):
        connection = Connection(harness)
        response = connection.authenticate("PLAIN", message)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert not connection.session.authenticated
    connection = Connection(harness)
    client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", "nonce")
    response = connection.authenticate("SCRAM-SHA-256", b"n,a=admin," + client.first()[3:])
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    server = PlainServer(lambda _user, _password: True)
    with pytest.raises(SaslError):
        server.step(b"admin\0alice\0secret\0more")
    # The same name is not another name.
    assert Connection(harness).authenticate("PLAIN", b"alice\0alice\0secret").error_code == 0


# Authorization


def of(name: str) -> Session:
    return Session(principal=Principal(name), client_host="10.1.1.1")


def allow(
    harness: BrokerHarness,
    user: str,
    operation: Operation,
    topic: str,
    permission: Permission = Permission.ALLOW,
) -> None:
    creation = AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=permission,
    )
    (result,) = harness.call(CreateAclsRequest(creations=[creation])).results
    assert result.error_code == 0, result.error_message


@pytest.fixture
def guarded() -> BrokerHarness:
    harness = BrokerHarness(authorizer_class_name=AUTHORIZER)
    harness.create_topic("orders")
    harness.produce("orders", b"x")
    return harness


@pytest.mark.parametrize("replica_id", [0, 1, 2, 2**31 - 1])
def test_cve_2018_1288_a_client_is_no_replica(guarded: BrokerHarness, replica_id: int) -> None:
    """A Fetch that claims to come from a follower gets no records, and the high watermark stays."""
    allow(guarded, "alice", Operation.ALL, "orders")
    before = guarded.broker.services.partitions.require("orders", 0).high_watermark
    request = fetch_request(("orders", 0, 99), replica_id=replica_id, max_wait_ms=0)
    response = guarded.call(request, session=of("alice"))
    partition = response.responses[0].partitions[0]
    assert partition.error_code in {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert not partition.records
    assert guarded.broker.services.partitions.require("orders", 0).high_watermark == before


def transactional(records: bytes) -> bytes:
    """Set the transactional bit of a batch, and correct the checksum."""
    changed = bytearray(records)
    changed[CRC_START + 1] |= 0x10
    changed[CRC_POSITION:CRC_START] = crc32c.crc32c(bytes(changed[CRC_START:])).to_bytes(4)
    return bytes(changed)


def test_cve_2018_17196_the_batch_decides_which_permission_is_checked(
    guarded: BrokerHarness,
) -> None:
    """A user without permissions sends transactional and idempotent batches in requests that do not declare them."""

    def code(user: str, records: bytes, **options: Any) -> int:
        request = produce_request("orders", 0, records, **options)
        response = guarded.call(request, session=of(user))
        return int(response.responses[0].partition_responses[0].error_code)

    idempotent = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0)
    end = guarded.broker.services.partitions.require("orders", 0).high_watermark
    assert code("nobody", batch(b"x")) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert code("nobody", idempotent) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied = guarded.call(InitProducerIdRequest(transactional_id=None), session=of("nobody"))
    assert denied.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    allow(guarded, "writer", Operation.WRITE, "orders")
    refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert code("writer", transactional(idempotent)) == refusal
    assert code("writer", batch(b"x"), transactional_id="t") == refusal
    named = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
    assert guarded.call(named, session=of("writer")).error_code == refusal
    assert guarded.broker.services.partitions.require("orders", 0).high_watermark == end
    # A user with permission to write to a topic may write idempotently.
    assert code("writer", idempotent) == 0


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_cve_2024_27309_rights_are_in_force_after_a_restart(
    guarded: BrokerHarness, how: str
) -> None:
    """A denial wins over the permission before and after a restart."""
    allow(guarded, "alice", Operation.READ, "*")
    allow(guarded, "alice", Operation.READ, "orders", Permission.DENY)
    guarded.create_topic("others")

    def codes() -> list[int]:
        request = fetch_request(("orders", 0, 0), ("others", 0, 0), max_wait_ms=0)
        response = guarded.call(request, session=of("alice"))
        return [topic.partitions[0].error_code for topic in response.responses]

    expected = [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE]
    assert codes() == expected
    getattr(guarded, how)()
    assert codes() == expected
    # The authorizer is switched off and on, as during an upgrade.
    guarded.restart(authorizer_class_name="")
    assert codes() == [ErrorCode.NONE, ErrorCode.NONE]
    guarded.restart(authorizer_class_name=AUTHORIZER)
    assert codes() == expected


def test_akhq_no_api_is_without_a_rule(guarded: BrokerHarness) -> None:
    """One controller lacked its check. Here each API has its row in the tables, and other users get nothing."""
    served = {api.key for api in APIS}
    assert served <= AUTHORIZATION_RULES.keys()
    changing = AUDIT_RULES.keys() - {ApiKey.OFFSET_COMMIT}
    assert all(AUTHORIZATION_RULES[ApiKey(key)] for key in changing)
    created = guarded.call(CreateTopicsRequest(topics=[]), session=of("stranger"))
    assert not created.topics
    metadata = guarded.call(MetadataRequest(topics=None), session=of("stranger"))
    assert [topic.name for topic in metadata.topics] == []


# Configuration and data are not code


@pytest.mark.parametrize(
    "jaas",
    [
        'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://x/";',
        'com.sun.security.auth.module.LdapLoginModule required userProvider="ldap://x/";',
        'os.system required username="a" password="b";',
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b"; x.Jndi required;',
    ],
)
def test_cve_2023_25194_a_login_module_is_a_name_and_never_loaded(jaas: str) -> None:
    """`sasl.jaas.config` is parsed as text. Two modules are known, and any other is refused."""
    with pytest.raises(ConfigError) as raised:
        parse_jaas(jaas)
    assert "ldap://" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "gopher://localhost:9092/",
        "/etc/passwd",
        "jar:file:/x.jar!/y",
        "https",
        "HTTPS:///etc/passwd",
    ],
)
def test_cve_2025_27817_urls_in_a_configuration_are_on_a_list(url: str) -> None:
    """Only https.

    And file: URLs are allowed. The operator configures them, and no client can name one (27818, 27819).
    """
    with pytest.raises(ConfigError):
        BrokerHarness(sasl_enabled_mechanisms="OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=url)
    assert not [
        name
        for name, described in BROKER_OPTIONS.items()
        if described.dynamic and re.search(r"url|class|location|listeners", name)
    ]


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
EVALUATES_ANNOTATIONS = "headrace/workers/handler/signature.py"
"""The modules that evaluate annotations with `typing.get_type_hints`, only of the program's own functions."""
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle", "jsonpickle"}
IMPORTED_BY_NAME = {
    "headrace/__init__.py",
    "headrace/cli/__init__.py",
    "headrace/cli/commands/produce_partitioner.py",
    "headrace/cli/commands/run.py",
    "headrace/demo/run.py",
    "headrace/kinesis/__init__.py",
    "headrace/pipelines/running/session.py",
    "headrace/protocol/frame.py",
    "headrace/records/accel.py",
    "headrace/registers.py",
    "headrace/spark/decode/protobuf_values.py",
    "headrace/spark/doctor.py",
    "headrace/testing/__init__.py",
}
"""The modules that call `import_module`.

They import Headrace's own modules, libraries, the program of `headrace run`, the class of `headrace produce
--partitioner`, and the Protobuf module that the option `schema` of the user's query names.
"""


def test_cve_2023_52251_nothing_is_evaluated() -> None:
    """No module uses eval, exec or pickle, or imports what a configuration or a client names."""
    words = "|".join([*FORBIDDEN_CALLS, *FORBIDDEN_MODULES, "import_module"])
    suspicious = re.compile(rf"\b({words})\b")
    found, importing = [], set()
    for path in SOURCES:
        name = path.relative_to(ROOT / "src").as_posix()
        text = path.read_text()
        if not suspicious.search(text):
            continue  # most of it is generated, and slow to parse
        for node in ast.walk(ast.parse(text)):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            if FORBIDDEN_MODULES & {module.split(".")[0] for module in modules}:
                found.append(f"{name}:{node.lineno}: {modules}")  # type: ignore[attr-defined]  # an import
            if isinstance(node, ast.Call):
                called = node.func
                if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
                    found.append(f"{name}:{node.lineno}: {called.id}")
                if ast.unparse(called).endswith("import_module"):
                    importing.add(name)
    (annotations,) = [place for place in found if place.startswith(EVALUATES_ANNOTATIONS)]
    assert annotations.endswith(": eval")
    assert found == [annotations]
    assert importing == IMPORTED_BY_NAME


def test_cve_2023_34040_a_record_stays_bytes() -> None:
    """A header that names a class, and a pickle as a value, are returned as the same bytes."""

    class Trap:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return (pytest.fail, ("unpickled",))

    with headrace.Broker() as broker:
        broker.create_topic("traps")
        data = pickle.dumps(Trap())
        with headrace.Producer(broker) as producer:
            headers = [("springDeserializerExceptionValue", data), ("__TypeId__", b"os.system")]
            producer.send("traps", value=data, key=data, headers=headers).result(10)
        consumer = headrace.Consumer(broker, auto_offset_reset="earliest")
        with consumer:
            consumer.assign([headrace.TopicPartition("traps", 0)])
            record: ConsumerRecord = consumer.poll(10)[0]
    assert record.value == data
    assert record.key == data
    assert dict(record.headers)["springDeserializerExceptionValue"] == data


SAFE = {
    "cramjam": (2, 11),
    "crc32c": (2, 7),
    "msgspec": (0, 19),
    "lz4": (4, 4),
    "zstandard": (0, 23),
    "python-snappy": (0, 7),
}
"""The oldest versions without a known vulnerability. A change of pyproject.toml has to pass this test."""


def test_lz4_and_snappy_codecs_have_a_lowest_version_and_tests_run_with_exact_ones() -> None:
    """Codecs are native code that reads hostile bytes: each has a lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"].get("dev", [])]
    lowest = {}
    for requirement in wanted:
        match = re.match(r"([A-Za-z0-9_-]+)[^>]*>=([0-9.]+)", requirement)
        if match is not None:
            lowest[match[1].lower()] = tuple(map(int, match[2].split(".")))
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    for name, safe in SAFE.items():
        assert lowest[name] >= safe, name
        exact = tuple(int(part) for part in pinned[name].split(".") if part.isdigit())
        assert exact >= lowest[name], name
    # The installed codec refuses a false length without allocating the memory.
    assert peak_of(lambda: _fails(cramjam.snappy.decompress_raw, b"\xff\xff\xff\xff\x0f\x00")) < MIB
    for codec in (Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        whole = compress(codec, bytes(range(256)) * 64)
        for cut in range(0, len(whole), 7):
            damaged = whole[:cut] + b"\xff" * 8 + whole[cut + 8 :]
            try:
                decompress(codec, damaged)
            except CorruptRecordError:
                continue


def _fails(function: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(cramjam.DecompressionError):
        function(data)


def test_only_three_apis_are_allowed_before_authentication() -> None:
    """No other request is allowed (CVE-2022-34917 again: no work for unauthenticated clients)."""
    harness = with_users()
    for api in APIS:
        if api.key in {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}:
            continue
        connection = Connection(harness)
        frame = RequestHeader(api.key, api.served.max, 1, None)
        made = request_class(api.key)
        assert made is not None
        message = made()
        assert encode_request(frame, message)
        with pytest.raises(CloseConnection):
            connection.call(message)
    assert Connection(harness).call(ApiVersionsRequest()).error_code == 0
