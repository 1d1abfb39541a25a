"""SCRAM: the examples of the RFCs, and exchanges that must fail."""

from __future__ import annotations

import base64
import hashlib

import pytest

from headrace.security.mechanisms import SaslError
from headrace.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    credential_of_salted,
)
from headrace.security.unknown_users import unknown_user

SHA_256 = ScramMechanism.SHA_256
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = credential_of("pencil", SHA_256, 4096, SALT)
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
NONCE = CLIENT_NONCE + SERVER_NONCE
FIRST = b"n,,n=user,r=" + CLIENT_NONCE.encode()
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def server(credential=PENCIL, nonce=SERVER_NONCE, mechanism=SHA_256):
    return ScramServer(mechanism, lambda name: credential, nonce)


def client(password="pencil", nonce=CLIENT_NONCE, mechanism=SHA_256, user="user"):
    return ScramClient(mechanism, user, password, nonce)


def refused(exchange, message: bytes, what: str = ".") -> None:
    with pytest.raises(SaslError, match=what):
        exchange.step(message)
    assert not exchange.done


def agree(client_side, server_side) -> None:
    message = client_side.first()
    while message is not None:
        message = client_side.step(server_side.step(message))


class TestExample:
    """The example of RFC 7677, section 3."""

    def test_the_client_sends_the_messages_of_the_rfc(self):
        side = client()
        assert side.first() == FIRST
        assert side.step(SERVER_FIRST) == FINAL
        assert not side.done
        assert side.step(SERVER_FINAL) is None
        assert side.done

    def test_the_server_sends_the_messages_of_the_rfc(self):
        side = server()
        assert side.step(FIRST) == SERVER_FIRST
        assert not side.done
        assert side.step(FINAL) == SERVER_FINAL
        assert side.done
        assert side.user == "user"

    def test_rfc_5802_with_sha_1(self, monkeypatch):
        """The example of RFC 5802, section 5, with its hash function."""
        monkeypatch.setattr(ScramMechanism, "hash_name", property(lambda self: "sha1"))
        monkeypatch.setattr(ScramMechanism, "size", property(lambda self: 20))
        salt = base64.b64decode("QSXCR+Q6sek8bf92")
        salted = hashlib.pbkdf2_hmac("sha1", b"pencil", salt, 4096)
        server_side = server(
            credential_of_salted(salted, SHA_256, 4096, salt), "3rfcNHYJY1ZVvWVs7j"
        )
        client_side = client(nonce="fyko+d2lbbFgONRv9qkxdawL")
        first = server_side.step(client_side.first())
        assert first == b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
        final = client_side.step(first)
        assert final == (
            b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
        )
        assert server_side.step(final) == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("name", ["alice", "a=b,c", "=2C", "zoë", "a b"])
def test_both_sides_agree_on_any_name(mechanism, name):
    credential = credential_of("secret", mechanism, 4096, b"salt")
    server_side, client_side = (
        server(credential, mechanism=mechanism),
        client("secret", mechanism=mechanism, user=name),
    )
    agree(client_side, server_side)
    assert client_side.done
    assert server_side.done
    assert server_side.user == name


class TestServerRefuses:
    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"n,,",
            b"n,,n=,r=abc",
            b"n,,r=abc,n=user",
            b"n,,n=user",
            b"n,,n=user,r=",
            b"n,,n=user,r=a\x00b",
            b"n,,n=user,r=caf\xc3\xa9",
            b"n,,n=us=er,r=abc",
            b"n,,n=user,r=" + b"x" * 2000,
            b"n,,n=" + b"u" * 9000 + b",r=abc",
            b"x,,n=user,r=abc",
            b"n,b=user,n=user,r=abc",
            b"\xff\xfe",
            b"n,,n=user,r=abc,r=def",
            b"n,,n=user,r=abc,",
        ],
    )
    def test_a_malformed_first_message(self, message):
        refused(server(), message)

    def test_the_server_refuses_channel_binding(self):
        refused(server(), b"p=tls-unique,,n=user,r=abc", "channel binding")

    def test_a_client_that_acts_for_another(self):
        """A client cannot act for another user (CVE-2017-12610)."""
        refused(server(), b"n,a=admin,n=user,r=abc", "another user")

    def test_the_server_refuses_delegation_tokens(self):
        refused(server(), b"n,,n=user,r=abc,tokenauth=true", "tokenauth")

    def test_the_server_refuses_mandatory_extensions(self):
        refused(server(), b"n,,n=user,r=abc,m=what", "extension m")

    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"p=abc",
            FINAL.replace(b",p=", b",q="),
            FINAL.replace(b"c=biws,", b""),
            FINAL.replace(b"c=biws", b"c=!!!!"),
            FINAL + b"%",
            FINAL.replace(b"p=", b"m=1,p="),
            b"r=" + NONCE.encode() + b",c=biws,p=AAAA",
        ],
    )
    def test_a_malformed_last_message(self, message):
        side = server()
        side.step(FIRST)
        refused(side, message)
        refused(side, FINAL, "over")

    @pytest.mark.parametrize("nonce", [CLIENT_NONCE, SERVER_NONCE, NONCE + "x", NONCE[:-1], ""])
    def test_another_nonce_than_its_own(self, nonce):
        """CVE-2024-56128: the proof is right for the message, but the nonce is of another exchange."""
        side = server()
        side.step(FIRST)
        refused(side, FINAL.replace(NONCE.encode(), nonce.encode()), "nonce")

    @pytest.mark.parametrize("header", [b"y,,", b"n,a=user,", b"p=tls-unique,,", b"n", b""])
    def test_another_header_than_the_first_one(self, header):
        side = server()
        side.step(FIRST)
        refused(side, FINAL.replace(b"biws", base64.b64encode(header)), "channel binding")

    @pytest.mark.parametrize("proof", [b"", b"AAAA", base64.b64encode(bytes(32)), b"A" * 400])
    def test_a_wrong_proof(self, proof):
        side = server()
        side.step(FIRST)
        refused(side, FINAL.split(b",p=")[0] + b",p=" + proof, "unknown user or wrong password")

    def test_the_server_refuses_a_replayed_message(self):
        side = server(nonce="other")
        side.step(FIRST)
        refused(side, FINAL, "nonce")

    def test_more_after_the_end(self):
        side = server()
        side.step(FIRST)
        side.step(FINAL)
        with pytest.raises(SaslError, match="over"):
            side.step(FINAL)


def test_a_client_that_supports_channel_binding_is_accepted():
    """'y': the client supports channel binding, and sees that the server does not offer it."""
    side = server()
    first = side.step(b"y,a=user,n=user,r=abc").decode()
    salted = SHA_256.salted("pencil", SALT, 4096)
    without_proof = f"c={base64.b64encode(b'y,a=user,').decode()},r=abc{SERVER_NONCE}"
    key = SHA_256.hmac(salted, b"Client Key")
    message = f"n=user,r=abc,{first},{without_proof}".encode()
    signature = SHA_256.hmac(SHA_256.hash(key), message)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    side.step(f"{without_proof},p={base64.b64encode(proof).decode()}".encode())
    assert side.done


class TestClientRefuses:
    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"r=abc",
            SERVER_FIRST.replace(b"i=4096", b"i=4095"),
            SERVER_FIRST.replace(b"i=4096", b"i=1000001"),
            SERVER_FIRST.replace(b"i=4096", b"i=99999999999999999999"),
            SERVER_FIRST.replace(b"i=4096", b"i=-4096"),
            SERVER_FIRST.replace(b"i=4096", "i=\uff14096".encode()),
            SERVER_FIRST.replace(b"s=W22", b"s=!!!"),
            SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="),
            b"m=1," + SERVER_FIRST,
            SERVER_FIRST + b",m=1",
            b"e=other-error",
            b"x" * 9000,
            b"\xff",
        ],
    )
    def test_a_wrong_first_message(self, message):
        refused(client(), message)

    @pytest.mark.parametrize("nonce", [CLIENT_NONCE, CLIENT_NONCE[:-1] + "xyz", SERVER_NONCE])
    def test_a_nonce_that_is_not_its_own_and_more(self, nonce):
        refused(client(), SERVER_FIRST.replace(NONCE.encode(), nonce.encode()), "nonce")

    @pytest.mark.parametrize(
        "message", [b"", b"v=", b"v=AAAA", b"v=!", b"e=invalid-proof", SERVER_FINAL[2:]]
    )
    def test_a_server_without_proof(self, message):
        side = client()
        side.step(SERVER_FIRST)
        refused(side, message)


class TestCredentials:
    @pytest.mark.parametrize("iterations", [MIN_ITERATIONS - 1, MAX_ITERATIONS + 1, 0, -1])
    def test_iterations_have_bounds(self, iterations):
        with pytest.raises(SaslError, match="iterations"):
            credential_of("pencil", SHA_256, iterations, SALT)

    @pytest.mark.parametrize("password", ["", "a\u0308", "ﬁ", "a\u00a0b", "a\x07", "\ud800", "א1a"])
    def test_a_password_means_the_same_to_all_clients(self, password):
        with pytest.raises(SaslError):
            credential_of(password, SHA_256, 4096, SALT)

    def test_do_not_show_themselves(self):
        assert PENCIL.stored_key.hex() not in repr(PENCIL)
        assert repr(PENCIL.stored_key) not in repr(PENCIL)

    def test_know_their_password(self):
        assert PENCIL.is_password("pencil", SHA_256)
        assert not PENCIL.is_password("Pencil", SHA_256)
        assert not PENCIL.is_password("", SHA_256)


class TestUnknownUser:
    def test_has_no_password(self):
        side = server(unknown_user(b"secret", "user", SHA_256))
        with pytest.raises(SaslError, match="unknown user or wrong password"):
            agree(client(), side)


def test_a_credential_that_was_salted_elsewhere_is_the_same():
    salted = SHA_256.salted("pencil", SALT, 4096)
    assert credential_of_salted(salted, SHA_256, 4096, SALT) == PENCIL
    assert isinstance(PENCIL, ScramCredential)
