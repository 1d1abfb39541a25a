"""SASL: both sides agree if and only if they have the same password, and random bytes only fail the authentication."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.security.mechanisms import SaslError
from headrace.security.oauthbearer import OAuthBearerServer
from headrace.security.plain import PlainServer
from headrace.security.saslprep import saslprep
from headrace.security.scram import (
    ScramClient,
    ScramMechanism,
    ScramServer,
    credential_of_salted,
)
from headrace.security.unknown_users import unknown_user

MECHANISMS = st.sampled_from(ScramMechanism)
TEXT = st.characters(exclude_categories=["Cs"])
NAMES = st.text(TEXT, min_size=1, max_size=20)
PASSWORDS = st.text(TEXT, min_size=1, max_size=20)
NONCES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=","),
    min_size=1,
    max_size=40,
)


@cache
def credential(mechanism, password):
    salted = mechanism.salted(password, b"salt", 4096)
    return credential_of_salted(salted, mechanism, 4096, b"salt")


def exchange(client, server, damage=lambda place, message: message):
    """Run an exchange; return for each side whether it has succeeded."""
    with contextlib.suppress(SaslError):
        message = client.first()
        for place in range(2):
            challenge = damage(2 * place + 1, server.step(damage(2 * place, message)))
            message = client.step(challenge)
    return client.done, server.done


@given(MECHANISMS, NAMES, st.tuples(PASSWORDS, PASSWORDS), st.tuples(NONCES, NONCES))
def test_client_and_server_agree_if_they_have_the_same_password(mechanism, name, passwords, nonces):
    ours, theirs = passwords
    client = ScramClient(mechanism, name, ours, nonces[0])
    server = ScramServer(mechanism, lambda _: credential(mechanism, theirs), nonces[1])
    same = ours == theirs
    assert exchange(client, server) == (same, same)


@given(MECHANISMS, PASSWORDS, st.data())
def test_a_password_with_one_other_character_is_refused(mechanism, password, data):
    place = data.draw(st.integers(0, len(password) - 1))
    other = chr((ord(password[place]) + 1) % 0xD800 or 1)
    wrong = password[:place] + other + password[place + 1 :]
    client = ScramClient(mechanism, "alice", wrong, "c")
    server = ScramServer(mechanism, lambda _: credential(mechanism, password), "s")
    assert exchange(client, server) == (wrong == password, wrong == password)


@given(st.integers(0, 3), st.data())
def test_a_message_changed_in_flight_fails_the_authentication(where, data):
    """Only changes without a meaning may succeed: the unused bits of base64."""
    mechanism = ScramMechanism.SHA_256

    def damage(place, message):
        if place != where:
            return message
        position = data.draw(st.integers(0, len(message) - 1))
        change = data.draw(st.sampled_from([b"", b"x", b"=", b",", b"\0", b"\xff"]))
        changed = message[:position] + change + message[position + 1 :]
        return changed if changed != message else message + b"x"

    client = ScramClient(mechanism, "alice", "secret", "client")
    users = {"alice": credential(mechanism, "secret")}
    server = ScramServer(
        mechanism, lambda name: users.get(name) or unknown_user(b"x", name, mechanism), "server"
    )
    client_done, server_done = exchange(client, server, damage)
    assert not client_done or server_done
    if where < 2:  # the proof covers the whole first messages, except for the header
        assert not client_done
    assert not server_done or server.user == "alice"


@given(st.lists(st.binary(max_size=200), max_size=4), MECHANISMS)
def test_random_bytes_only_fail_the_authentication(messages, mechanism):
    def never(*_):
        raise SaslError("no")

    sides: list[Any] = [
        ScramClient(mechanism, "alice", "secret", "nonce"),
        ScramServer(mechanism, lambda _: credential(mechanism, "secret"), "nonce"),
        PlainServer(lambda *_: False),
        OAuthBearerServer(never),
    ]
    for side in sides:
        for message in messages:
            with contextlib.suppress(SaslError):
                side.step(message)
        assert not side.done


@given(st.text(max_size=40))
def test_a_prepared_name_is_unchanged_when_it_is_prepared_again(text):
    with contextlib.suppress(SaslError):
        prepared = saslprep(text)
        assert saslprep(prepared) == prepared
