"""SASL: damaged messages of every mechanism, on both sides of an exchange and in the broker."""

from __future__ import annotations

import contextlib
from functools import cache
from random import Random

from headrace.broker.session import Session
from headrace.config.listeners import SecurityProtocol
from headrace.errors import ErrorCode
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.mechanisms import SaslClient, SaslError, SaslServer
from headrace.security.oauthbearer import OAuthBearerClient, OAuthBearerServer, TokenIdentity
from headrace.security.plain import PlainClient, PlainServer
from headrace.security.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
)
from tests.fixtures.broker_harness import BrokerHarness
from tests.fuzz.mutation import mutated


@cache
def _credential(mechanism: ScramMechanism) -> ScramCredential:
    return credential_of("secret", mechanism, 4096, b"salt")


def _verify(token: str) -> TokenIdentity:
    if token != "good":
        raise SaslError("not the token")
    return TokenIdentity("alice", 0)


def _sides(chance: Random) -> tuple[SaslClient, SaslServer]:
    match chance.randrange(4):
        case 0:
            return PlainClient("alice", "secret"), PlainServer(
                lambda user, password: (user, password) == ("alice", "secret")
            )
        case 1:
            return OAuthBearerClient("good"), OAuthBearerServer(_verify)
        case _:
            mechanism = chance.choice(list(ScramMechanism))
            return ScramClient(mechanism, "alice", "secret", "client"), ScramServer(
                mechanism, lambda _: _credential(mechanism), "server"
            )


def fuzz_sasl(chance: Random) -> None:
    """Check that either side fails with SaslError. Only alice is authenticated, and only with her secret."""
    client, server = _sides(chance)
    message: bytes | None = client.first()
    with contextlib.suppress(SaslError):
        for _ in range(3):
            assert message is not None
            challenge = server.step(_damaged(message, chance))
            message = client.step(_damaged(challenge, chance))
            if message is None:
                break
    if server.done:
        assert server.user
    if client.done and client.mechanism.startswith("SCRAM"):
        assert server.done


def _damaged(message: bytes, chance: Random) -> bytes:
    return mutated(message, chance, b"n,,n=admin,r=x,") if chance.random() < 0.4 else message


def fuzz_sasl_at_the_broker(chance: Random) -> None:
    """Send garbage in SaslHandshake and SaslAuthenticate. It is refused, and the session stays unauthenticated."""
    harness = BrokerHarness(sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
    session = Session(
        listener="SASL_PLAINTEXT", protocol=SecurityProtocol.SASL_PLAINTEXT, client_host="127.0.0.1"
    )
    client, _ = _sides(chance)
    for _ in range(4):
        if chance.random() < 0.5:
            name = chance.choice([client.mechanism, "", "GSSAPI", "\0", "PLAIN"])
            pending = harness.send(
                SaslHandshakeRequest(mechanism=name), chance.randrange(2), session=session
            )
        else:
            token = mutated(client.first(), chance)
            request = SaslAuthenticateRequest(auth_bytes=token)
            pending = harness.send(request, chance.randrange(3), session=session)
        harness.advance(100)
        assert pending.response.error_code in {
            ErrorCode.NONE,
            ErrorCode.ILLEGAL_SASL_STATE,
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            ErrorCode.SASL_AUTHENTICATION_FAILED,
        }
        assert not session.authenticated
        if session.ended:
            break
