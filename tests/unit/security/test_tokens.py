"""Tokens: only tokens that a key of the issuer has signed, for this audience and the present time, are accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from headrace.errors import ConfigError
from headrace.security.mechanisms import SaslError
from headrace.security.tokens import KeySet, TokenRules, UnknownKeyError
from tests.fixtures.sasl_server import AUDIENCE, ISSUER, Issuer, unsigned_token

NOW_S = 1_700_000_000
RULES = TokenRules(ISSUER, (AUDIENCE, "other"))


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    issuer = Issuer()
    issuer.add_ec("second")
    return issuer


@pytest.fixture(scope="module")
def keys(issuer) -> KeySet:
    return KeySet(issuer.key_set())


def verify(keys, token, rules=RULES, now_s=NOW_S):
    return keys.verify(token, rules, int(now_s * 1000))


@pytest.mark.parametrize("key", ["first", "second"])
@pytest.mark.parametrize("audience", [AUDIENCE, ["x", AUDIENCE]])
def test_a_good_token_names_its_user(issuer, keys, key, audience):
    identity = verify(keys, issuer.token("zoë", key=key, now_s=NOW_S, aud=audience))
    assert identity == ("zoë", (NOW_S + 3600 + 30) * 1000)


def test_another_claim_may_name_the_user(issuer, keys):
    token = issuer.token(now_s=NOW_S, preferred_username="bob")
    assert verify(keys, token, TokenRules(user_claim="preferred_username")).user == "bob"


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        ({"exp": None}, "no time at which it expires"),
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": "tomorrow"}, "is not a time"),
        ({"exp": True}, "is not a time"),
        ({"exp": float("nan")}, "is not a time"),
        ({"exp": float("inf")}, "is not a time"),
        ({"exp": NOW_S + 60, "nbf": 10**400}, "not valid yet"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"nbf": "now"}, "is not a time"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other-service"}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": None}, "audience"),
        ({"sub": None}, "no user"),
        ({"sub": ""}, "no user"),
        ({"sub": "x" * 256}, "no user"),
        ({"sub": "a\nb"}, "cannot be shown"),
    ],
)
def test_a_claim_that_is_wrong(issuer, keys, claims, what):
    with pytest.raises(SaslError, match=what):
        verify(keys, issuer.token(now_s=NOW_S, **claims))


def test_a_user_that_is_no_text(issuer, keys):
    token = issuer.token(now_s=NOW_S, account=7)
    with pytest.raises(SaslError, match="no user"):
        verify(keys, token, TokenRules(user_claim="account"))


def test_clocks_may_differ_a_little(issuer, keys):
    assert verify(keys, issuer.token(now_s=NOW_S, exp=NOW_S - 29, iat=NOW_S + 29)).user == "alice"


CLAIMS = {"sub": "admin", "iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 60}


class TestSignatures:
    """CVE-2026-33557: a token that no key of the issuer has signed is refused."""

    @pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 7])
    @pytest.mark.parametrize("named", [{}, {"kid": "first"}])
    def test_an_unsigned_token_is_refused(self, keys, algorithm, named):
        with pytest.raises(SaslError):
            verify(keys, unsigned_token({"alg": algorithm, **named}, CLAIMS))

    @pytest.mark.parametrize("encoded", ["pem", "jwk"])
    def test_by_the_public_key_as_a_secret(self, issuer, keys, encoded):
        public = issuer.keys["first"].public_key()
        secret = (
            public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            if encoded == "pem"
            else json.dumps(json.loads(issuer.key_set())["keys"][0]).encode()
        )
        header = {"alg": "HS256", "kid": "first"}
        unsigned = unsigned_token(header, CLAIMS).rpartition(".")[0]
        signature = hmac.digest(secret, unsigned.encode(), hashlib.sha256)
        with pytest.raises(SaslError):
            verify(keys, unsigned_token(header, CLAIMS, signature))

    def test_by_another_key_of_the_same_name(self, keys):
        with pytest.raises(SaslError, match="InvalidSignature"):
            verify(keys, Issuer().token(now_s=NOW_S))

    def test_by_an_unknown_key(self, issuer, keys):
        stranger = Issuer()
        stranger.add_rsa("stranger")
        with pytest.raises(UnknownKeyError):
            verify(keys, stranger.token(key="stranger", now_s=NOW_S))

    def test_by_an_unnamed_key_of_several(self, issuer, keys):
        token = jwt.encode(CLAIMS, issuer.keys["first"], algorithm="RS256")
        with pytest.raises(UnknownKeyError):
            verify(keys, token)

    def test_by_the_only_key_without_a_name(self):
        issuer = Issuer()
        token = jwt.encode(CLAIMS, issuer.keys["first"], algorithm="RS256")
        assert verify(KeySet(issuer.key_set()), token).user == "admin"

    def test_by_an_algorithm_that_the_key_is_not_for(self, issuer):
        keys = KeySet(Issuer.key_set(issuer, alg="RS512"))
        with pytest.raises(SaslError):
            verify(keys, issuer.token(now_s=NOW_S))

    @pytest.mark.parametrize("place", range(3))
    def test_a_changed_token_is_refused(self, issuer, keys, place):
        parts = issuer.token(now_s=NOW_S).split(".")
        content = bytearray(base64.urlsafe_b64decode(parts[place] + "=="))
        content[len(content) // 2] ^= 1
        parts[place] = base64.urlsafe_b64encode(content).decode().rstrip("=")
        with pytest.raises(SaslError):
            verify(keys, ".".join(parts))

    def test_show_nothing_of_the_token(self, keys):
        token = Issuer().token(now_s=NOW_S)
        with pytest.raises(SaslError) as caught:
            verify(keys, token)
        assert token[:20] not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("token", ["", ".", "a.b.c", "..", "x" * 10_000, "é.é.é", "e30.e30.e30"])
def test_garbage_is_no_token(keys, token):
    with pytest.raises(SaslError):
        verify(keys, token)


class TestKeySets:
    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"[]",
            b"{}",
            b'{"keys": {}}',
            b'{"keys": []}',
            b'{"keys": [1, null, "x"]}',
            b'{"keys": [{"kty": "RSA"}]}',
            b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
            b'{"keys": [' + b"1," * 200 + b"1]}",
            b"[" * 100_000,
            b"\xff",
        ],
    )
    def test_a_text_that_is_no_key_set_is_refused(self, text):
        with pytest.raises(ConfigError):
            KeySet(text)

    def test_keys_for_other_uses_or_with_few_bits_are_refused(self):
        issuer = Issuer()
        with pytest.raises(ConfigError):
            KeySet(issuer.key_set(use="enc"))
        with pytest.raises(ConfigError):
            KeySet(issuer.key_set(d="private"))
        issuer.keys.clear()
        issuer.add_rsa("weak", 1024)
        with pytest.raises(ConfigError):
            KeySet(issuer.key_set())
