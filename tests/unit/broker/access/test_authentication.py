"""SASL in the broker: the order of requests, refusals, re-authentication."""

from __future__ import annotations

import base64
from dataclasses import fields
from types import SimpleNamespace

import pytest

from headrace.broker.context import CloseConnection
from headrace.broker.session import LOCAL, Session
from headrace.config.broker import parse_broker_config
from headrace.config.listeners import SecurityProtocol
from headrace.errors import ConfigError, ErrorCode
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.oauthbearer import OAuthBearerClient
from headrace.security.plain import PlainClient
from headrace.security.principal import ANONYMOUS, Principal
from headrace.security.scram import ScramClient, ScramMechanism
from headrace.types import NEVER_MS
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.metadata_stores import stored

SALT = b"0123456789abcdef"
GENERIC = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
)


def upsertion(user, password, mechanism=ScramMechanism.SHA_256, iterations=4096, **other):
    return ScramCredentialUpsertion(
        **{
            "name": user,
            "mechanism": mechanism,
            "iterations": iterations,
            "salt": SALT,
            "salted_password": ScramMechanism(mechanism).salted(password, SALT, 4096),
        }
        | other
    )


def options_of(settings):
    config = parse_broker_config(settings)
    return {field.name: getattr(config, field.name) for field in fields(config)}


def harness_with(**settings) -> BrokerHarness:
    names = {
        name if "." in name else name.replace("_", "."): value for name, value in settings.items()
    }
    names.setdefault("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
    harness = BrokerHarness(**options_of(names))
    for credential in (
        upsertion("alice", "secret"),
        upsertion("alice", "secret", ScramMechanism.SHA_512),
        upsertion("bob", "hunter2"),
    ):
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential])
        assert [result.error_code for result in harness.call(request, 0).results] == [0]
    return harness


class Connection:
    """A client's connection on a listener with SASL."""

    def __init__(self, harness, host="127.0.0.1", protocol=SecurityProtocol.SASL_PLAINTEXT) -> None:
        self.harness = harness
        self.session = Session(listener=protocol.value, protocol=protocol, client_host=host)

    def send(self, request, version):
        return self.harness.send(request, version, session=self.session)

    def call(self, request, version):
        pending = self.send(request, version)
        if not pending.done:
            self.harness.advance(100)
        return pending.response

    def handshake(self, mechanism, version=1):
        return self.call(SaslHandshakeRequest(mechanism=mechanism), version)

    def token(self, token, version=2):
        return self.call(SaslAuthenticateRequest(auth_bytes=token), version)

    def run(self, client, version=2):
        """Do a whole authentication, and return the last response."""
        assert self.handshake(client.mechanism).error_code == 0
        response = self.token(client.first(), version)
        while response.error_code == 0:
            message = client.step(bytes(response.auth_bytes))
            if message is None:
                break
            response = self.token(message, version)
        return response


def scram(user="alice", password="secret", mechanism=ScramMechanism.SHA_256):
    return ScramClient(mechanism, user, password, "nonce")


@pytest.fixture
def harness():
    return harness_with()


@pytest.fixture
def connection(harness):
    return Connection(harness)


@pytest.mark.parametrize(
    "client",
    [
        scram,
        lambda: scram(mechanism=ScramMechanism.SHA_512),
        lambda: PlainClient("alice", "secret"),
    ],
)
def test_the_right_password_authenticates(connection, client):
    assert connection.session.principal == ANONYMOUS
    side = client()
    response = connection.run(side)
    assert response.error_code == 0
    assert response.session_lifetime_ms == 0
    assert side.done
    assert connection.session.principal == Principal("alice")
    assert connection.session.authenticated
    assert connection.session.valid_until_ms == NEVER_MS
    assert connection.call(MetadataRequest(topics=[]), 12).cluster_id


@pytest.mark.parametrize("name", ["alice", "nobody"])
@pytest.mark.parametrize("kind", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_clients_cannot_find_out_whether_a_user_exists(connection, name, kind):
    side = (
        PlainClient(name, "wrong")
        if kind == "PLAIN"
        else scram(name, "wrong", ScramMechanism.named(kind))
    )
    connection.handshake(kind)
    message = side.first()
    if kind != "PLAIN":
        first = connection.token(message)
        assert first.error_code == 0
        message = side.step(bytes(first.auth_bytes))
    pending = connection.send(SaslAuthenticateRequest(auth_bytes=message), 2)
    assert not pending.done
    connection.harness.advance(99)
    assert not pending.done
    assert not connection.session.authenticated
    connection.harness.advance(1)
    assert pending.response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert pending.response.error_message == GENERIC.format(kind)
    assert bytes(pending.response.auth_bytes) == b""
    assert connection.session.ended
    assert connection.session.principal == ANONYMOUS


def test_an_unknown_user_has_the_same_salt_for_ever():
    harness = harness_with()

    def challenge() -> bytes:
        connection = Connection(harness)
        connection.handshake("SCRAM-SHA-256")
        message = bytes(connection.token(scram("nobody").first()).auth_bytes)
        return message.partition(b",")[2]

    first = challenge()
    assert first.endswith(b",i=4096")
    assert challenge() == first
    harness.restart()
    assert challenge() == first


def test_an_unknown_user_has_the_form_of_a_stored_one():
    harness = BrokerHarness()

    def shown(user: str, mechanism: ScramMechanism) -> tuple[int, bytes]:
        connection = Connection(harness)
        connection.handshake(mechanism.sasl_name)
        message = bytes(connection.token(scram(user, mechanism=mechanism).first()).auth_bytes)
        _, salt, iterations = message.split(b",")
        return len(base64.b64decode(salt[2:])), iterations

    def store(*upsertions):
        answer = harness.call(
            AlterUserScramCredentialsRequest(deletions=[], upsertions=[*upsertions]), 0
        )
        assert [each.error_code for each in answer.results] == [0] * len(upsertions)

    kinds = ScramMechanism.SHA_256, ScramMechanism.SHA_512
    store(upsertion("carol", "x", salt=b"\xff" * 64, iterations=8192))
    store(upsertion("carol", "x", kinds[1], salt=b"\xff" * 20, iterations=16_384))
    for restart in (False, True):
        if restart:
            harness.restart()
        assert shown("carol", kinds[0]) == shown("nobody", kinds[0]) == (64, b"i=8192")
        assert shown("carol", kinds[1]) == shown("nobody", kinds[1]) == (20, b"i=16384")
    # The password of an unknown user is hashed, too.
    assert harness.broker.services.credentials._usual_plain_mechanism("nobody") is kinds[0]
    remove = ScramCredentialDeletion(name="carol", mechanism=kinds[0])
    harness.call(AlterUserScramCredentialsRequest(deletions=[remove], upsertions=[]), 0)
    assert harness.broker.services.credentials._usual_plain_mechanism("nobody") is kinds[1]
    assert shown("nobody", kinds[0]) == shown("carol", kinds[0]) == (24, b"i=4096")


class TestBeforeAuthentication:
    def test_other_requests_close_the_connection(self, connection):
        with pytest.raises(CloseConnection, match="authenticate first"):
            connection.send(MetadataRequest(topics=[]), 12)
        connection.handshake("PLAIN")
        with pytest.raises(CloseConnection, match="authenticate first"):
            connection.send(MetadataRequest(topics=[]), 12)

    def test_api_versions_is_answered_before_authentication(self, connection):
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        assert connection.call(request, 3).error_code == 0

    def test_tokens_before_the_handshake(self, connection):
        response = connection.token(b"\0alice\0secret")
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert connection.session.ended

    def test_a_second_handshake(self, connection):
        connection.handshake("PLAIN")
        assert connection.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert connection.session.ended

    def test_an_unknown_mechanism(self, connection):
        response = connection.handshake("GSSAPI")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert connection.session.ended

    def test_invalid_bytes_fail_a_scram_authentication(self, connection):
        connection.handshake("SCRAM-SHA-256")
        assert connection.token(b"\xff").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert connection.session.ended

    def test_a_token_that_is_too_large(self):
        connection = Connection(harness_with(sasl_server_max_receive_size="2048"))
        connection.handshake("PLAIN")
        response = connection.token(b"\0alice\0" + b"x" * 2048)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


class TestPasswordsOnTheWire:
    @pytest.mark.parametrize(
        ("host", "protocol", "offered"),
        [
            ("127.0.0.1", SecurityProtocol.SASL_PLAINTEXT, True),
            ("::1", SecurityProtocol.SASL_PLAINTEXT, True),
            ("::ffff:127.0.0.1", SecurityProtocol.SASL_PLAINTEXT, True),
            ("10.0.0.1", SecurityProtocol.SASL_PLAINTEXT, False),
            ("::ffff:10.0.0.1", SecurityProtocol.SASL_PLAINTEXT, False),
            ("?", SecurityProtocol.SASL_PLAINTEXT, False),
            ("10.0.0.1", SecurityProtocol.SASL_SSL, True),
        ],
    )
    def test_are_not_for_others_to_read(self, harness, host, protocol, offered):
        response = Connection(harness, host, protocol).handshake("PLAIN")
        assert (response.error_code == 0) is offered
        assert ("PLAIN" in response.mechanisms) is offered

    def test_unless_the_operator_insists(self):
        harness = harness_with(headrace_sasl_plain_allow_plaintext="true")
        assert Connection(harness, "10.0.0.1").handshake("PLAIN").error_code == 0


def test_a_listener_can_have_its_own_mechanisms():
    harness = harness_with(
        **{"listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-512"},
    )
    ours = Connection(harness, protocol=SecurityProtocol.SASL_SSL)
    assert ours.handshake("PLAIN").mechanisms == ["SCRAM-SHA-512"]
    assert Connection(harness).handshake("PLAIN").error_code == 0


@pytest.mark.parametrize("session", [LOCAL, Session()])
def test_sasl_requests_are_refused_on_a_listener_without_sasl(harness, session):
    answer = harness.send(SaslHandshakeRequest(mechanism="PLAIN"), 1, session=session).response
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert answer.mechanisms == []
    answer = harness.send(SaslAuthenticateRequest(auth_bytes=b""), 2, session=session).response
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert not session.ended


def test_a_password_that_is_checked_in_a_thread(connection):
    work = []
    connection.harness.broker.services.authenticator.run_aside = lambda run, done: work.append(
        (run, done)
    )
    connection.handshake("PLAIN")
    pending = connection.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2)
    assert not pending.done
    second = connection.send(SaslAuthenticateRequest(auth_bytes=b"\0bob\0hunter2"), 2)
    ((run, done),) = work
    done(run())
    assert pending.response.error_code == 0
    connection.harness.advance(100)
    assert second.response.error_code == ErrorCode.ILLEGAL_SASL_STATE


class TestReauthentication:
    @pytest.fixture
    def harness(self):
        return harness_with(connections_max_reauth_ms="60000")

    def test_a_session_has_an_end(self, harness, connection):
        assert connection.run(scram()).session_lifetime_ms == 60_000
        harness.advance(59_999)
        connection.call(MetadataRequest(topics=[]), 12)
        harness.advance(1)
        with pytest.raises(CloseConnection, match="expired"):
            connection.send(MetadataRequest(topics=[]), 12)

    def test_and_can_be_renewed(self, harness, connection):
        connection.run(scram())
        for _ in range(3):
            harness.advance(59_999)
            assert connection.run(scram()).session_lifetime_ms == 60_000
        connection.call(MetadataRequest(topics=[]), 12)

    def test_even_when_it_is_over(self, harness, connection):
        connection.run(scram())
        harness.advance(100_000)
        assert connection.run(scram()).error_code == 0
        connection.call(MetadataRequest(topics=[]), 12)

    def test_as_often_as_it_ends(self):
        harness = harness_with(connections_max_reauth_ms="500")
        connection = Connection(harness)
        for _ in range(3):
            assert connection.run(scram()).session_lifetime_ms == 500
            harness.advance(500)

    def test_a_reauthentication_as_another_user_fails(self, harness, connection):
        connection.run(scram())
        harness.advance(30_000)
        response = connection.run(scram("bob", "hunter2"))
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert connection.session.ended
        assert connection.session.principal == Principal("alice")

    def test_not_by_another_mechanism(self, harness, connection):
        connection.run(scram())
        harness.advance(30_000)
        response = connection.run(scram(mechanism=ScramMechanism.SHA_512))
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert connection.session.ended

    def test_with_one_attempt(self, harness, connection):
        """More attempts may be in flight before the first is answered and the connection closed."""
        connection.run(PlainClient("alice", "secret"))
        harness.advance(30_000)
        connection.handshake("PLAIN")
        connection.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        with pytest.raises(CloseConnection, match="failed"):
            connection.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2)
        with pytest.raises(CloseConnection, match="failed"):
            connection.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)

    def test_not_with_a_wrong_password(self, harness, connection):
        connection.run(scram())
        harness.advance(30_000)
        response = connection.run(scram(password="wrong"))
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert connection.session.ended

    def test_not_at_once_again(self, harness, connection):
        connection.run(scram())
        assert connection.handshake("SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert not connection.session.ended

    def test_other_requests_go_on_meanwhile(self, harness, connection):
        connection.run(scram())
        harness.advance(30_000)
        connection.handshake("SCRAM-SHA-256")
        connection.call(MetadataRequest(topics=[]), 12)


class TestTokensAsBareFrames:
    """SaslHandshake version 0. The server handles the frames."""

    def test_the_session_announces_the_start_and_the_end_of_bare_tokens(self, connection):
        changes = []
        connection.session.on_change = lambda: changes.append(connection.session.raw_tokens)
        connection.handshake("PLAIN", 0)
        assert connection.token(b"\0alice\0secret", 0).error_code == 0
        assert changes == [True, False]


class TestOAuthNeedsKeys:
    """CVE-2026-110985, CVE-2026-33557: a broker that would accept any token does not start."""

    @pytest.mark.parametrize(
        "settings",
        [
            {"sasl.enabled.mechanisms": "OAUTHBEARER"},
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER"},
            {"listener.name.outside.sasl.enabled.mechanisms": "OAUTHBEARER"},
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "http://localhost/keys",
            },
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "ftp://localhost/keys",
            },
        ],
    )
    def test_or_the_broker_does_not_start(self, settings):
        with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
            BrokerHarness(**options_of(settings))

    def test_and_the_library(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "jwt", None)
        with pytest.raises(ConfigError, match="pip install"):
            BrokerHarness(
                sasl_enabled_mechanisms="OAUTHBEARER",
                sasl_oauthbearer_jwks_endpoint_url="file:///keys.json",
            )


class TestCredentials:
    def alter(self, harness, deletions=(), upsertions=()):
        request = AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=n, mechanism=m) for n, m in deletions],
            upsertions=list(upsertions),
        )
        answer = harness.call(request, 0)
        return {result.user: ErrorCode(result.error_code) for result in answer.results}

    def describe(self, harness, *users):
        names = [UserName(name=user) for user in users] or None
        answer = harness.call(DescribeUserScramCredentialsRequest(users=names), 0)
        assert answer.error_code == 0
        return {
            result.user: [(info.mechanism, info.iterations) for info in result.credential_infos]
            or ErrorCode(result.error_code)
            for result in answer.results
        }

    def test_are_described_without_keys(self, harness):
        everything = {"alice": [(1, 4096), (2, 4096)], "bob": [(1, 4096)]}
        assert self.describe(harness) == everything
        harness.restart()
        assert self.describe(harness) == everything
        assert self.describe(harness, "bob", "zoe", "bob", "alice", "") == {
            "bob": ErrorCode.DUPLICATE_RESOURCE,
            "zoe": ErrorCode.RESOURCE_NOT_FOUND,
            "alice": [(1, 4096), (2, 4096)],
            "": ErrorCode.RESOURCE_NOT_FOUND,
        }

    def test_count_from_the_next_authentication_on(self, harness):
        connection = Connection(harness)
        connection.run(scram())
        assert self.alter(harness, upsertions=[upsertion("alice", "new")]) == {"alice": 0}
        assert Connection(harness).run(scram()).error_code != 0
        assert Connection(harness).run(scram(password="new")).error_code == 0
        assert self.alter(harness, [("alice", 1)]) == {"alice": 0}
        assert self.alter(harness, [("alice", 2)]) == {"alice": 0}
        assert Connection(harness).run(scram(password="new")).error_code != 0
        connection.call(MetadataRequest(topics=[]), 12)
        assert self.describe(harness) == {"bob": [(1, 4096)]}

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
            ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
            ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
            ({"name": "x" * 451}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
            ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
            ({"salt": b"x" * 1025}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
            ({"salted_password": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ],
    )
    def test_credentials_out_of_bounds_are_refused(self, harness, change, code):
        wrong = upsertion("carol", "secret", **change)
        assert self.alter(harness, upsertions=[wrong]) == {wrong.name: code}
        assert self.describe(harness, "carol") == {"carol": ErrorCode.RESOURCE_NOT_FOUND}

    @pytest.mark.parametrize("mechanism", list(ScramMechanism))
    @pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 65, 1000])
    def test_salted_passwords_of_any_length_log_in_as_in_kafka(
        self, harness, monkeypatch, mechanism, size
    ):
        key = bytes(1 + number % 255 for number in range(size))
        carol = upsertion("carol", "x", mechanism, salted_password=key)
        assert self.alter(harness, upsertions=[carol]) == {"carol": 0}
        by_password = Connection(harness).run(scram("carol", "x", mechanism))
        assert by_password.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        monkeypatch.setattr(ScramMechanism, "salted", lambda *_: key)  # a client that has the key
        assert Connection(harness).run(scram("carol", "x", mechanism)).error_code == 0

    def test_are_refused_user_by_user(self, harness):
        unknown = upsertion("dora", "x")
        unknown.mechanism = 3
        answer = self.alter(
            harness,
            [("alice", 1), ("zoe", 1)],
            [upsertion("alice", "new"), upsertion("carol", "x"), unknown],
        )
        assert answer == {
            "alice": ErrorCode.DUPLICATE_RESOURCE,
            "zoe": ErrorCode.RESOURCE_NOT_FOUND,
            "carol": 0,
            "dora": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        }
        assert Connection(harness).run(scram()).error_code == 0

    @pytest.mark.parametrize("deletion", [("bob", 1), ("bob", 2)])
    def test_a_user_is_changed_once_a_request(self, harness, deletion):
        answer = self.alter(harness, [deletion], [upsertion("bob", "new")])
        assert answer == {"bob": ErrorCode.DUPLICATE_RESOURCE}
        assert Connection(harness).run(scram("bob", "hunter2")).error_code == 0

    def test_stored_credentials_and_the_log_do_not_contain_the_password(self, harness):
        credentials = stored(harness.metadata, "scram/")
        assert list(credentials) == [
            "scram/SCRAM-SHA-256/alice",
            "scram/SCRAM-SHA-256/bob",
            "scram/SCRAM-SHA-512/alice",
        ]
        salted = ScramMechanism.SHA_256.salted("secret", SALT, 4096)
        assert all(salted.hex().encode() not in entry.value for entry in credentials.values())
        assert all(b"secret" not in entry.value for entry in credentials.values())
        assert not any("secret" in repr(line) for line in harness.journal.lines)


def test_the_audit_log_has_the_user_and_the_reason(harness):
    Connection(harness).run(scram())
    Connection(harness, "10.1.2.3").run(scram(password="wrong"))
    lines = [SimpleNamespace(event=event, **fields) for _, event, fields in harness.journal.lines]
    good = next(line for line in lines if line.event == "audit_authentication_succeeded")
    assert (good.principal, good.mechanism) == ("User:alice", "SCRAM-SHA-256")
    bad = next(line for line in lines if line.event == "audit_authentication_failed")
    assert (bad.user, bad.host) == ("alice", "10.1.2.3")
    assert bad.reason == "unknown user or wrong password"


@pytest.mark.parametrize("answers", [False, True])
def test_the_audit_log_has_a_refused_token_once(tmp_path, answers):
    keys = tmp_path / "keys.json"
    harness = BrokerHarness(
        sasl_enabled_mechanisms="OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=keys.as_uri()
    )
    connection = Connection(harness)
    connection.handshake("OAUTHBEARER")
    assert b"invalid_token" in connection.token(OAuthBearerClient("not.a.token").first()).auth_bytes
    if answers:
        refused = connection.token(b"\x01")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    events = [event for _, event, _ in harness.journal.lines]
    assert events.count("audit_authentication_failed") == 1
