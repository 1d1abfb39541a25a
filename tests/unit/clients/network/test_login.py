"""Logins: the part of the connection and the part of the pool, with a manual clock."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.network.connection import BrokerConnection
from headrace.clients.network.links import Link
from headrace.errors import AuthenticationError, ErrorCode, TransportError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.security.mechanisms import SaslError
from tests.unit.clients.network.test_connection import encoded, feed, sent
from tests.unit.clients.network.test_pool import A, B, FakeSockets, text

VERSIONS = [
    ApiVersion(api_key=ApiKey.HEARTBEAT, min_version=0, max_version=4),
    ApiVersion(api_key=ApiKey.SASL_HANDSHAKE, min_version=0, max_version=1),
    ApiVersion(api_key=ApiKey.SASL_AUTHENTICATE, min_version=0, max_version=2),
]
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
    "sasl.username": "u", "sasl.password": "p",
}  # fmt: skip


class TwoRounds:
    """A mechanism in which the client sends `hello`, then the server's answer in capitals."""

    mechanism = "TWO-ROUNDS"

    def __init__(self) -> None:
        self.done = False
        self.rounds = 0

    def first(self) -> bytes:
        return b"hello"

    def step(self, challenge: bytes) -> bytes | None:
        self.rounds += 1
        if challenge == b"lie":
            raise SaslError("the server does not know our password")
        if self.rounds == 1:
            return challenge.upper()
        self.done = True
        return None


def new_connection() -> BrokerConnection[str]:
    return BrokerConnection(client_id="me", peer="b:1", authenticates=True)


def asked(connection: BrokerConnection[str]) -> tuple[Any, Any]:
    [(header, request)] = sent(connection)
    return header, request


def answer(connection: BrokerConnection[str], response: Any) -> None:
    header, _ = asked(connection)
    feed(connection, encoded(header, response))


def log_in(connection: BrokerConnection[str], lifetime_ms: int = 0) -> None:
    answer(connection, SaslHandshakeResponse())
    answer(connection, SaslAuthenticateResponse(auth_bytes=b"who"))
    answer(connection, SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))


def test_a_login_sends_versions_mechanism_messages_and_then_the_waiting_requests() -> None:
    connection = new_connection()
    connection.send(HeartbeatRequest(group_id="g"), "first")
    answer(connection, ApiVersionsResponse(api_keys=VERSIONS))
    assert bool(connection.wants_credentials)
    assert sent(connection) == []
    connection.authenticate(TwoRounds())
    assert not connection.wants_credentials
    header, request = asked(connection)
    assert isinstance(request, SaslHandshakeRequest)
    assert (header.api_version, request.mechanism) == (1, "TWO-ROUNDS")
    feed(connection, encoded(header, SaslHandshakeResponse()))
    header, request = asked(connection)
    assert isinstance(request, SaslAuthenticateRequest)
    assert (header.api_version, bytes(request.auth_bytes)) == (2, b"hello")
    feed(connection, encoded(header, SaslAuthenticateResponse(auth_bytes=b"who")))
    header, request = asked(connection)
    assert bytes(request.auth_bytes) == b"WHO"
    assert not bool(connection.ready)
    feed(connection, encoded(header, SaslAuthenticateResponse(session_lifetime_ms=7000)))
    assert connection.ready
    assert connection.session_lifetime_ms == 7000
    _, request = asked(connection)
    assert isinstance(request, HeartbeatRequest)


def test_an_older_broker_is_answered_in_its_version() -> None:
    connection = new_connection()
    older = ApiVersion(api_key=ApiKey.SASL_AUTHENTICATE, min_version=0, max_version=0)
    answer(connection, ApiVersionsResponse(api_keys=[*VERSIONS[:2], older]))
    connection.authenticate(TwoRounds())
    answer(connection, SaslHandshakeResponse())
    header, _ = asked(connection)
    assert header.api_version == 0


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (VERSIONS[:1], "does not support SASL: set security.protocol=PLAINTEXT"),
        (VERSIONS[:2], "too old for a login"),
        (
            [
                ApiVersion(api_key=ApiKey.SASL_HANDSHAKE, min_version=0, max_version=0),
                VERSIONS[2],
            ],
            "too old for a login",
        ),
    ],
)
def test_a_failed_login_has_its_own_error(versions: list[ApiVersion], said: str) -> None:
    connection = new_connection()
    answer(connection, ApiVersionsResponse(api_keys=versions))
    with pytest.raises(AuthenticationError, match=said):
        connection.authenticate(TwoRounds())


@pytest.mark.parametrize(
    ("responses", "said"),
    [
        (
            [SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "X\nY"])],
            "does not offer TWO-ROUNDS; set sasl.mechanism to one of: PLAIN, X\\?Y",
        ),
        ([SaslHandshakeResponse(error_code=34)], "does not use SASL on this listener"),
        (
            [
                SaslHandshakeResponse(),
                SaslAuthenticateResponse(error_code=58, error_message="No.\x1b[2J"),
            ],
            r"b:1 refuses the login: No.\?\[2J",
        ),
        ([SaslHandshakeResponse(), SaslAuthenticateResponse(auth_bytes=b"lie")], "does not know"),
    ],
)
def test_a_refusal_is_reported_in_one_line(responses: list[Any], said: str) -> None:
    connection = new_connection()
    answer(connection, ApiVersionsResponse(api_keys=VERSIONS))
    connection.authenticate(TwoRounds())
    for response in responses[:-1]:
        answer(connection, response)
    with pytest.raises(AuthenticationError, match=said):
        answer(connection, responses[-1])


def test_logging_in_again_waits_for_answers_and_holds_requests_back() -> None:
    connection = new_connection()
    answer(connection, ApiVersionsResponse(api_keys=VERSIONS))
    connection.authenticate(TwoRounds())
    log_in(connection)
    connection.send(HeartbeatRequest(group_id="before"), "before")
    before, _ = asked(connection)
    connection.authenticate(TwoRounds())
    connection.send(HeartbeatRequest(group_id="after"), "after")
    assert sent(connection) == [], "the first is not answered yet"
    assert not bool(connection.logging_in)
    feed(connection, encoded(before, HeartbeatResponse()))
    assert [done.token for done in connection.take_completed()] == ["before"]
    assert connection.logging_in
    log_in(connection, 5000)
    assert connection.logins == 2
    header, request = asked(connection)
    assert isinstance(request, HeartbeatRequest)
    feed(connection, encoded(header, HeartbeatResponse()))
    assert [done.token for done in connection.take_completed()] == ["after"]


def test_a_connection_lost_during_reauthentication_fails_pending_requests() -> None:
    connection = new_connection()
    answer(connection, ApiVersionsResponse(api_keys=VERSIONS))
    connection.authenticate(TwoRounds())
    log_in(connection)
    connection.authenticate(TwoRounds())
    connection.send(HeartbeatRequest(), "held back")
    lost = TransportError("gone")
    assert connection.abandon(lost) == [("held back", lost)]


# The pool


class Broker(FakeSockets):
    """Sockets of a broker that supports `TwoRounds`."""

    def __init__(self, *bootstrap: tuple[str, int], **properties: Any) -> None:
        super().__init__(*bootstrap, **{**LOGIN, **properties})

    def versions(self, link: Link) -> None:
        self.pool.connected(link)
        self.answer(link, ApiVersionsResponse(api_keys=VERSIONS))

    def log_in(self, link: Link, lifetime_ms: int = 0) -> None:
        self.pool.present(link, TwoRounds())
        self.finish_login(link, lifetime_ms)

    def finish_login(self, link: Link, lifetime_ms: int = 0) -> None:
        self.answer(link, SaslHandshakeResponse())
        self.answer(link, SaslAuthenticateResponse(auth_bytes=b"who"))
        self.answer(link, SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))

    def refuse_login(self, link: Link) -> None:
        self.pool.denied(link, AuthenticationError("a:1 refuses the login: no"))


def test_credentials_are_asked_for_once_and_calls_wait_for_the_login() -> None:
    sockets = Broker(A)
    outcomes = sockets.submit()
    [link] = sockets.opened
    sockets.versions(link)
    sockets.pool.received(link)  # as when something has been written
    assert sockets.asked == [link]
    assert not bool(link.ready)
    sockets.log_in(link)
    assert link.ready
    assert outcomes == []
    sockets.answer(link, HeartbeatResponse())
    assert len(outcomes) == 1
    assert sockets.pool.next_deadline_ms is None
    assert not sockets.pool.busy


def test_a_refusal_fails_every_call_at_once_and_no_other_broker_is_bothered() -> None:
    sockets = Broker(A, B)
    first, second = sockets.submit(), sockets.submit()
    [link] = sockets.opened
    sockets.versions(link)
    sockets.refuse_login(link)
    assert text(first) == text(second) == "a:1 refuses the login: no"
    assert isinstance(first[0], AuthenticationError)
    assert sockets.opened == [link]


def test_a_broker_that_refused_is_left_alone_for_a_moment() -> None:
    sockets = Broker(A, **{"retry.backoff.max.ms": 1000})
    sockets.submit()
    sockets.versions(sockets.opened[0])
    sockets.refuse_login(sockets.opened[0])
    for _ in range(3):
        assert text(sockets.submit()) == "a:1 refuses the login: no"
    assert len(sockets.opened) == 1
    sockets.now_ms += 1000
    later = sockets.submit()
    assert later == []
    sockets.versions(sockets.opened[1])
    sockets.log_in(sockets.opened[1])
    sockets.answer(sockets.opened[1], HeartbeatResponse())
    assert isinstance(later[0], HeartbeatResponse)


def test_credentials_that_do_not_come_run_into_the_setup_time() -> None:
    sockets = Broker(A)
    outcomes = sockets.submit()
    sockets.versions(sockets.opened[0])
    sockets.pass_time(10_000)
    assert "does not answer the handshake" in text(outcomes)


def ready(sockets: Broker, lifetime_ms: int = 10_000) -> Link:
    sockets.know(1, A)
    sockets.submit(node=1)
    link = sockets.opened[-1]
    sockets.versions(link)
    sockets.log_in(link, lifetime_ms)
    sockets.answer(link, HeartbeatResponse())
    sockets.asked.clear()
    return link


def test_nine_tenths_into_a_session_we_log_in_again_on_the_same_connection() -> None:
    sockets = Broker(A)
    link = ready(sockets)
    sockets.pass_time(8_999)
    assert sockets.asked == []
    sockets.pass_time(1)
    assert sockets.asked == [link]
    assert sockets.pool.busy
    sockets.pool.present(link, TwoRounds())
    held_back = sockets.submit(node=1)
    sockets.finish_login(link, 20_000)
    sockets.answer(link, HeartbeatResponse())
    assert isinstance(held_back[0], HeartbeatResponse)
    assert sockets.opened == [link]
    sockets.asked.clear()
    sockets.pass_time(17_999)
    assert sockets.asked == []
    sockets.pass_time(1)
    assert sockets.asked == [link]


def test_while_a_token_is_got_requests_go_on_until_the_session_ends() -> None:
    sockets = Broker(A)
    link = ready(sockets)
    sockets.pass_time(9_000)
    in_time = sockets.submit(node=1)
    sockets.answer(link, HeartbeatResponse())
    assert isinstance(in_time[0], HeartbeatResponse)


def test_requests_wait_for_the_login_after_the_session_has_expired() -> None:
    sockets = Broker(A)
    link = ready(sockets)
    sockets.now_ms += 11_000  # without a call of expire
    sockets.pool.expire(sockets.now_ms)
    late = sockets.submit(node=1)
    assert sockets.received[link] == []
    sockets.log_in(link, 10_000)
    sockets.answer(link, HeartbeatResponse())
    assert isinstance(late[0], HeartbeatResponse)


def test_an_answer_that_takes_long_does_not_end_a_connection_that_wants_to_log_in_again() -> None:
    sockets = Broker(A)
    link = ready(sockets)
    joined = sockets.submit(node=1, timeout_ms=300_000, deadline_ms=sockets.now_ms + 300_000)
    sockets.pass_time(9_000)
    sockets.pool.present(link, TwoRounds())
    sockets.pass_time(200_000)
    assert link.lost is None
    sockets.answer(link, HeartbeatResponse())
    assert isinstance(joined[0], HeartbeatResponse)
    sockets.finish_login(link, 10_000)
    assert link.connection.logins == 2


def test_a_login_that_is_not_answered_ends_the_connection() -> None:
    sockets = Broker(A)
    link = ready(sockets)
    sockets.pass_time(9_000)
    sockets.pool.present(link, TwoRounds())
    held_back = sockets.submit(node=1)
    sockets.pass_time(10_000)
    assert text(held_back) == "a:1 did not answer the login in time"


def test_a_token_that_cannot_be_had_is_asked_for_again_while_the_session_lasts() -> None:
    sockets = Broker(A)
    link = ready(sockets, 100_000)
    sockets.pass_time(90_000)
    sockets.refuse_login(link)
    assert link.lost is None
    assert [str(error) for error in sockets.errors] == ["a:1 refuses the login: no"]
    sockets.asked.clear()
    sockets.pass_time(5_000)
    assert sockets.asked == [link]
    sockets.pass_time(5_000)
    held_back = sockets.submit(node=1)
    sockets.refuse_login(link)
    assert text(held_back) == "a:1 refuses the login: no"


def test_a_second_login_that_is_refused_ends_the_connection() -> None:
    sockets = Broker(A)
    link = ready(sockets)
    sockets.pass_time(9_000)
    sockets.pool.present(link, TwoRounds())
    held_back = sockets.submit(node=1)
    error = AuthenticationError("revoked")
    sockets.pool.denied(link, error)
    assert held_back == [error]
    assert error.code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_broker_lost_as_it_becomes_ready_leaves_the_search_to_the_next() -> None:
    sockets = FakeSockets(A, B)
    outcomes = sockets.submit()
    sockets.lose_on_flush = False
    sockets.pool.connected(sockets.opened[0])
    sockets.lose_on_flush = True
    sockets.answer(sockets.opened[0], ApiVersionsResponse(api_keys=VERSIONS))
    sockets.lose_on_flush = False
    assert outcomes == [], "the second broker is tried"
    assert [link.address for link in sockets.opened] == [A, B]
    sockets.accept(sockets.opened[1])
    sockets.answer(sockets.opened[1], HeartbeatResponse())
    assert isinstance(outcomes[0], HeartbeatResponse)
