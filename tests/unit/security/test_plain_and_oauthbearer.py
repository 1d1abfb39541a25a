"""PLAIN and OAUTHBEARER: valid exchanges succeed, and all others fail."""

from __future__ import annotations

import pytest

from headrace.security.mechanisms import SaslError
from headrace.security.oauthbearer import OAuthBearerClient, OAuthBearerServer, TokenIdentity
from headrace.security.plain import PlainClient, PlainServer


def plain_server():
    return PlainServer(lambda user, password: (user, password) == ("alice", "sécret"))


class TestPlain:
    def test_the_right_password(self):
        client, server = PlainClient("alice", "sécret"), plain_server()
        assert client.step(server.step(client.first())) is None
        assert client.done
        assert server.done
        assert server.user == "alice"

    def test_acting_for_oneself(self):
        server = plain_server()
        assert server.step("alice\0alice\0sécret".encode()) == b""
        assert server.done

    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"\0",
            b"alice",
            b"\0alice\0",
            b"\0\0secret",
            b"\0alice\0wrong",
            "\0alice\0sécret\0".encode(),
            "admin\0alice\0sécret".encode(),  # CVE-2017-12610
            b"\0alice\0s\xe9cret",
            b"\0alice\0" + b"x" * 10_000,
        ],
    )
    def test_an_invalid_message_is_refused(self, message):
        server = plain_server()
        with pytest.raises(SaslError) as caught:
            server.step(message)
        assert not server.done
        assert "cret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("user", "password"), [("", "x"), ("x", ""), ("a\0b", "x"), ("x", "\0")]
    )
    def test_values_that_the_message_cannot_contain_are_refused(self, user, password):
        with pytest.raises(SaslError):
            PlainClient(user, password)

    def test_a_challenge_of_the_server_is_refused(self):
        client = PlainClient("alice", "secret")
        with pytest.raises(SaslError):
            client.step(b"more")
        assert not client.done


def verify(token: str) -> TokenIdentity:
    if token != "good.token":
        raise SaslError("the token is not valid")
    return TokenIdentity("alice", 1000)


class TestOAuthBearer:
    """The OAUTHBEARER exchanges of RFC 7628."""

    def test_a_good_token(self):
        client, server = (
            OAuthBearerClient("good.token", {"scope": "all"}),
            OAuthBearerServer(verify),
        )
        assert client.first() == b"n,,\x01auth=Bearer good.token\x01scope=all\x01\x01"
        assert client.step(server.step(client.first())) is None
        assert client.done
        assert (server.done, server.user, server.expires_ms) == (True, "alice", 1000)

    def test_a_bad_token_gets_the_reason_before_the_refusal(self):
        client, server = OAuthBearerClient("bad"), OAuthBearerServer(verify)
        challenge = server.step(client.first())
        assert challenge == b'{"status":"invalid_token"}'
        acknowledged = client.step(challenge)
        assert acknowledged == b"\x01"
        with pytest.raises(SaslError, match="not valid"):
            server.step(acknowledged)
        with pytest.raises(SaslError, match="invalid_token"):
            client.step(b"")
        assert not client.done
        assert not server.done

    def test_no_second_token_after_a_bad_one(self):
        server = OAuthBearerServer(verify)
        server.step(OAuthBearerClient("bad").first())
        with pytest.raises(SaslError):
            server.step(OAuthBearerClient("good.token").first())
        assert not server.done

    @pytest.mark.parametrize("name", ["alice", ""])
    def test_acting_for_oneself(self, name):
        server = OAuthBearerServer(verify)
        header = f"n,a={name}," if name else "y,,"
        assert server.step(f"{header}\x01auth=bearer good.token\x01\x01".encode()) == b""
        assert server.done

    def test_acting_for_another(self):
        server = OAuthBearerServer(verify)
        assert server.step(b"n,a=admin,\x01auth=Bearer good.token\x01\x01") != b""
        assert not server.done

    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"n,,",
            b"n,,\x01\x01",
            b"n,,\x01auth=Bearer good.token\x01",
            b"n,,auth=Bearer good.token\x01\x01",
            b"p=x,,\x01auth=Bearer good.token\x01\x01",
            b"n,,\x01auth=Basic good.token\x01\x01",
            b"n,,\x01auth=Bearer \x01\x01",
            b"n,,\x01auth=Bearer good token\x01\x01",
            b"n,,\x01auth=Bearer bad\x01auth=Bearer good.token\x01\x01",
            b"n,,\x01auth\x01\x01",
            b"n,,\x01scope=all\x01\x01",
            b"\xff",
            b"n,,\x01auth=Bearer " + b"x" * 100_000 + b"\x01\x01",
        ],
    )
    def test_an_invalid_message_is_refused(self, message):
        server = OAuthBearerServer(verify)
        with pytest.raises(SaslError):
            server.step(message)
        assert not server.done

    @pytest.mark.parametrize("token", ["", "a b", "a\x01b", "é"])
    def test_values_that_the_message_cannot_contain_are_refused(self, token):
        with pytest.raises(SaslError):
            OAuthBearerClient(token)

    @pytest.mark.parametrize("name", ["auth", "a=b", "", "a\x01"])
    def test_extensions_have_bounds(self, name):
        with pytest.raises(SaslError):
            OAuthBearerClient("good.token", {name: "x"})
