"""SCRAM credentials are changed and described, and SASL is refused where there is none, as Kafka does it."""

from __future__ import annotations

import time

import pytest

from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()


@scenarios.mark()
def test_headrace_alters_and_describes_scram_credentials_as_kafka_does(
    pair: Pair, scenario: Scenario
) -> None:
    pair.compare(scenario)


def put(
    name: str,
    mechanism: int = 1,
    iterations: int = 4096,
    *,
    salt: bytes = b"0123456789",
    salted: bytes | None = None,
) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=b"x" * (64 if mechanism == 2 else 32) if salted is None else salted,
    )


def delete(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


Change = ScramCredentialUpsertion | ScramCredentialDeletion
SHOWN_S = 10.0


def await_shown(peer: Peer, change: Change) -> None:
    """Wait until a broker shows what its controller has accepted: Kafka's learns of it a moment later."""
    is_put = isinstance(change, ScramCredentialUpsertion)
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=change.name)])
    deadline = time.monotonic() + SHOWN_S
    while time.monotonic() < deadline:
        infos = peer.quiet(request).results[0].credential_infos
        if is_put == any(info.mechanism == change.mechanism for info in infos):
            return


def alter_users(peer: Peer, label: str, *changes: Change) -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[c for c in changes if isinstance(c, ScramCredentialDeletion)],
        upsertions=[c for c in changes if isinstance(c, ScramCredentialUpsertion)],
    )
    answer = peer.quiet(request)
    answer.results.sort(key=lambda result: result.user)
    peer.note_answer(label, answer)
    accepted = {result.user for result in answer.results if not result.error_code}
    for change in changes:
        if change.name in accepted:
            await_shown(peer, change)


def describe_users(peer: Peer, label: str, *names: str) -> None:
    wanted = [UserName(name=name) for name in names] or None
    answer = peer.quiet(DescribeUserScramCredentialsRequest(users=wanted))
    answer.results.sort(key=lambda result: result.user)
    for result in answer.results:
        result.credential_infos.sort(key=lambda info: info.mechanism)
    peer.note_answer(label, answer)


@scenarios
def salted_passwords(peer: Peer) -> None:
    """Salts and salted passwords of every length; what is accepted is deleted again."""
    sizes = (0, 1, 31, 32, 33, 63, 64, 65, 1000, 100_000)
    cases = {f"{size} bytes": put("salted", 1, salted=b"y" * size) for size in sizes}
    cases |= {f"{size} bytes, SHA-512": put("salted", 2, salted=b"y" * size) for size in sizes}
    cases |= {
        f"a salt of {size} bytes": put("salted", salt=b"s" * size) for size in (0, 1, 1024, 1025)
    }
    for label, change in cases.items():
        alter_users(peer, label, change)
        describe_users(peer, f"described: {label}", "salted")
        alter_users(peer, f"deleted: {label}", delete("salted", change.mechanism))


@scenarios
def users(peer: Peer) -> None:
    def alter(label: str, *changes: Change) -> None:
        alter_users(peer, label, *changes)

    def describe(label: str, *names: str) -> None:
        describe_users(peer, label, *names)

    alter("two users", put("a"), put("b", 2, 8192))
    alter("another mechanism", put("a", 2))
    describe("all")
    alter("nothing")
    alter("a user twice", put("c", 1), put("c", 2))
    alter("the same twice", put("c"), put("c"))
    alter("put and delete", delete("b", 2), put("b", 1))
    alter("delete twice", delete("a", 1), delete("a", 2))
    alter("empty name", put(""))
    alter("delete an empty name", delete(""))
    for mechanism in (-1, 0, 3):
        alter(f"mechanism {mechanism}", put("d", mechanism))
        alter(f"delete mechanism {mechanism}", delete("d", mechanism))
    for iterations in (-1, 0, 4095, 16385):
        alter(f"{iterations} iterations", put("d", 1, iterations))
    alter("most iterations", put("d", 1, 16384))
    alter("delete an unknown user", delete("zz"))
    alter("delete another mechanism", delete("d", 2))
    alter("each for itself", put("f"), put("g", 9), put("h", 1, 1), delete("zz"))
    alter("any characters", put("x\né,="))
    describe("some", "a", "f", "x\né,=")
    describe("one twice", "a", "f", "a")
    describe("nobody", "zz")
    describe("nameless", "")
    describe("nameless twice", "", "")
    for user, mechanism in (("a", 1), ("a", 2), ("b", 2), ("d", 1), ("f", 1), ("x\né,=", 1)):
        alter(f"delete {user} {mechanism}", delete(user, mechanism))
    describe("none left")


@scenarios
def sasl_without_sasl(peer: Peer) -> None:
    for version in peer.range_of(SaslHandshakeRequest):
        request = SaslHandshakeRequest(mechanism="PLAIN")
        peer.note_answer(f"handshake v{version}", peer.quiet(request, version))
    for version in peer.range_of(SaslAuthenticateRequest):
        token = SaslAuthenticateRequest(auth_bytes=b"x")
        peer.note_answer(f"authenticate v{version}", peer.quiet(token, version))
