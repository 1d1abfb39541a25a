"""Users and their SCRAM credentials, against scripted answers: passwords are never sent."""

from __future__ import annotations

import pytest

from headrace.clients.flows.scram import (
    MECHANISMS,
    UserDescription,
    delete_user,
    describe_users,
    salt_password,
    set_user,
)
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from headrace.security.mechanisms import SaslError
from headrace.security.scram import ScramMechanism, credential_of, credential_of_salted
from headrace.security.unknown_users import SALT_BYTES
from tests.unit.clients.scripted import ScriptedDriver

PASSWORD = "correct horse"


class Salts:
    """The bytes that the test uses in place of random ones."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, size: int) -> bytes:
        self.given += 1
        return bytes([self.given]) * size


def salted(*mechanisms: str, iterations: int = 4096):
    return salt_password(PASSWORD, mechanisms, iterations, Salts())


class Users:
    """A broker that knows users; `refusal` is what it says to changes."""

    def __init__(self, refusal: int = 0, **known: dict[int, int]) -> None:
        self.refusal, self.known = refusal, known

    def __call__(self, call):
        request = call.request
        if isinstance(request, AlterUserScramCredentialsRequest):
            changed = [each.name for each in request.upsertions]
            changed += [each.name for each in request.deletions]
            results = [
                AlterUserScramCredentialsResult(
                    user=name, error_code=self.refusal, error_message=None
                )
                for name in changed
            ]
            return AlterUserScramCredentialsResponse(results=results)
        assert isinstance(request, DescribeUserScramCredentialsRequest)
        users = request.users
        names = list(self.known) if users is None else [user.name for user in users]
        return DescribeUserScramCredentialsResponse(results=[self.described(n) for n in names])

    def described(self, name: str) -> DescribeUserScramCredentialsResult:
        if name not in self.known:
            return DescribeUserScramCredentialsResult(
                user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message="none"
            )
        infos = [CredentialInfo(mechanism=m, iterations=i) for m, i in self.known[name].items()]
        return DescribeUserScramCredentialsResult(user=name, credential_infos=infos)


def alterations(driver: ScriptedDriver) -> list[tuple[str, int]]:
    """Return the changes in order. Kafka accepts one change of a user in a request."""
    changes: list[tuple[str, int]] = []
    for request in driver.requests(AlterUserScramCredentialsRequest):
        assert len(request.deletions) + len(request.upsertions) == 1
        changes += [("forget", each.mechanism) for each in request.deletions]
        changes += [("set", each.mechanism) for each in request.upsertions]
    return changes


def test_users_are_found_with_their_mechanisms_sorted() -> None:
    driver = ScriptedDriver(Users(bob={2: 8192, 1: 4096}, alice={1: 4096}))
    found = driver.run(describe_users(None))
    assert list(found) == ["alice", "bob"]
    assert found["bob"] == UserDescription("bob", {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 8192})
    assert list(found["bob"].iterations) == list(MECHANISMS)


def test_describe_users_returns_an_error_for_each_missing_user() -> None:
    found = ScriptedDriver(Users(alice={1: 4096})).run(describe_users(["alice", "bob", "bob"]))
    assert isinstance(found["alice"], UserDescription)
    assert found["bob"].code is ErrorCode.RESOURCE_NOT_FOUND


def test_a_mechanism_of_a_later_kafka_is_shown_by_its_number() -> None:
    found = ScriptedDriver(Users(alice={7: 9000})).run(describe_users(["alice"]))
    assert found["alice"].iterations == {"mechanism 7": 9000}


def test_a_broker_may_refuse_to_describe() -> None:
    answer = DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="no"
    )
    with pytest.raises(ApiError, match="no"):
        ScriptedDriver(lambda _: answer).run(describe_users(None))


def test_an_answer_about_others_is_refused() -> None:
    others = ScriptedDriver(lambda _: DescribeUserScramCredentialsResponse())
    with pytest.raises(ProtocolError, match="alice"):
        others.run(describe_users(["alice"]))


def test_passwords_are_salted_for_each_mechanism_and_never_sent() -> None:
    driver = ScriptedDriver(Users())
    driver.run(set_user("alice", salted(*MECHANISMS, iterations=5000)))
    assert alterations(driver) == [("set", 1), ("set", 2)]
    requests = driver.requests(AlterUserScramCredentialsRequest)
    upsertions = [request.upsertions[0] for request in requests]
    salts = [bytes(each.salt) for each in upsertions]
    assert salts == [b"\1" * SALT_BYTES, b"\2" * SALT_BYTES]
    for each in upsertions:
        mechanism = ScramMechanism(each.mechanism)
        assert each.iterations == 5000
        kept = credential_of_salted(each.salted_password, mechanism, 5000, each.salt)
        assert kept == credential_of(PASSWORD, mechanism, 5000, each.salt)
        assert kept.is_password(PASSWORD, mechanism)
    encoded = b"".join(bytes(part) for request in requests for part in request.encode(0))
    assert PASSWORD.encode() not in encoded


def test_an_earlier_password_is_void_for_every_mechanism() -> None:
    driver = ScriptedDriver(Users(alice={1: 4096, 2: 4096}))
    driver.run(set_user("alice", salted("SCRAM-SHA-512")))
    # Old credentials are deleted first, so that the old password is not valid if the second request fails.
    assert alterations(driver) == [("forget", 1), ("set", 2)]


def test_a_mechanism_named_twice_counts_once() -> None:
    assert len(salted("SCRAM-SHA-256", "SCRAM-SHA-256")) == 1


def test_representations_hide_passwords() -> None:
    [one] = salted("SCRAM-SHA-256")
    assert repr(one.salt) not in repr(one)
    assert repr(one.value) not in repr(one)


def test_a_user_is_deleted_with_all_mechanisms() -> None:
    driver = ScriptedDriver(Users(alice={1: 4096, 2: 4096}))
    driver.run(delete_user("alice"))
    assert alterations(driver) == [("forget", 1), ("forget", 2)]


def test_a_credential_that_is_gone_already_is_no_error() -> None:
    driver = ScriptedDriver(Users(ErrorCode.RESOURCE_NOT_FOUND, alice={1: 4096}))
    driver.run(delete_user("alice"))
    assert alterations(driver) == [("forget", 1)]


def test_deleting_a_missing_user_is_an_error() -> None:
    driver = ScriptedDriver(Users())
    with pytest.raises(ApiError) as raised:
        driver.run(delete_user("alice"))
    assert raised.value.code is ErrorCode.RESOURCE_NOT_FOUND
    assert driver.requests(AlterUserScramCredentialsRequest) == []


@pytest.mark.parametrize(
    ("flow", "known"),
    [
        (lambda: set_user("alice", salted("SCRAM-SHA-256")), {}),
        (lambda: delete_user("alice"), {1: 1}),
    ],
)
def test_a_refusal_is_raised(flow, known) -> None:
    users = Users(ErrorCode.UNACCEPTABLE_CREDENTIAL, alice=known)
    with pytest.raises(ApiError) as raised:
        ScriptedDriver(users).run(flow())
    assert raised.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize(
    ("password", "mechanism", "iterations", "text"),
    [
        ("", "SCRAM-SHA-256", 4096, "empty"),
        ("p", "SCRAM-SHA-1", 4096, "SCRAM-SHA-256"),
        ("p", "SCRAM-SHA-256", 4095, "4096 to 16384"),
        ("p", "SCRAM-SHA-256", 16385, "4096 to 16384"),
        ("\N{LATIN SMALL LIGATURE FI}", "SCRAM-SHA-256", 4096, "some clients replace"),
    ],
)
def test_credentials_that_brokers_refuse_are_refused_before_the_request(
    password: str, mechanism: str, iterations: int, text: str
) -> None:
    with pytest.raises(SaslError, match=text):
        salt_password(password, [mechanism], iterations, Salts())
