"""The pool of connections, with a shell in which the test acts as the sockets."""

from __future__ import annotations

import pytest

from headrace.clients.config import ClientConfig, parse_config
from headrace.clients.flows.cluster import BrokerAddress
from headrace.clients.flows.effects import Call, ClientState
from headrace.clients.network.links import Link
from headrace.clients.network.pool import Pool
from headrace.errors import (
    ApiError,
    AuthenticationError,
    ClosedError,
    ErrorCode,
    HeadraceError,
    TransportError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import decode_request, encode_response
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.types import FileRange

A, B, C = ("a", 1), ("b", 2), ("::1", 3)
SETUP_MS, REQUEST_MS = 10_000, 30_000
VERSIONS = [
    ApiVersion(api_key=ApiKey.HEARTBEAT, min_version=0, max_version=4),
    ApiVersion(api_key=ApiKey.PRODUCE, min_version=3, max_version=9),
]


class FakeSockets:
    """A pool, and the broker ends of its connections."""

    def __init__(self, *bootstrap: tuple[str, int], **properties) -> None:
        servers = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in bootstrap
        )
        config = parse_config(ClientConfig, properties, bootstrap_servers=servers or "a:1")
        self.now_ms = 1000
        self.state = ClientState()
        self.opened: list[Link] = []
        self.closed: list[Link] = []
        self.asked: list[Link] = []
        self.received: dict[Link, list] = {}
        self.refuse: set[tuple[str, int]] = set()
        self.lose_on_flush = False
        self.errors: list[Exception] = []
        self.reports: list[str] = []
        self.reported_ms: list[int] = []
        self.pool = Pool(
            self.state,
            config,
            self,
            now_ms=lambda: self.now_ms,
            shuffle=lambda addresses: None,
            on_error=self.errors.append,
            report=self.note,
        )

    def note(self, line: str) -> None:
        self.reports.append(line)
        self.reported_ms.append(self.now_ms)

    # The interface for the pool

    def open(self, link: Link) -> None:
        self.opened.append(link)
        self.received[link] = []
        if link.address in self.refuse:
            self.pool.refused(link, "Connection refused")

    def flush(self, link: Link) -> None:
        data = b"".join(
            bytes(part) for part in link.connection.take_output() if not isinstance(part, FileRange)
        )
        while data:
            size = int.from_bytes(data[:4], "big")
            self.received[link].append(decode_request(memoryview(data[4 : 4 + size])))
            data = data[4 + size :]
        link.connection.written()
        if self.lose_on_flush:
            self.pool.lost(link, "lost: broken pipe")

    def authenticate(self, link: Link) -> None:
        self.asked.append(link)

    def close(self, link: Link) -> None:
        self.closed.append(link)

    # The interface for the test

    def know(self, node: int, address: tuple[str, int]) -> None:
        self.state.metadata.brokers[node] = BrokerAddress(node, *address)

    def submit(self, *, deadline_ms: int | None = None, request=None, **call) -> list:
        outcomes: list = []
        until_ms = self.now_ms + REQUEST_MS if deadline_ms is None else deadline_ms
        self.pool.submit(
            Call(request=request or HeartbeatRequest(), **call), until_ms, outcomes.append
        )
        return outcomes

    def accept(self, link: Link) -> None:
        """Open the socket and answer the handshake."""
        self.pool.connected(link)
        self.answer(link, ApiVersionsResponse(api_keys=VERSIONS))

    def answer(self, link: Link, response) -> None:
        header, _ = self.received[link].pop(0)
        data = b"".join(
            bytes(part)
            for part in encode_response(header, response)
            if not isinstance(part, FileRange)
        )
        while data:
            buffer = link.connection.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            link.connection.bytes_received(count)
            data = data[count:]
        self.pool.received(link)

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass as a driver does: `expire` at every deadline."""
        end_ms = self.now_ms + milliseconds
        while (due_ms := self.pool.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.pool.expire(self.now_ms)
        self.now_ms = end_ms


def text(outcomes: list) -> str:
    [error] = outcomes
    assert isinstance(error, HeadraceError), error
    return str(error)


def test_calls_wait_until_the_connection_is_open_and_has_shaken_hands() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    first, second = sockets.submit(node=1), sockets.submit(node=1)
    [link] = sockets.opened
    assert sockets.received[link] == [], "nothing is written before the socket is open"
    sockets.accept(link)
    assert [type(request) for _, request in sockets.received[link]] == [HeartbeatRequest] * 2
    sockets.answer(link, HeartbeatResponse(error_code=1))
    assert first[0].error_code == 1
    assert second == []
    sockets.answer(link, HeartbeatResponse(error_code=2))
    assert second[0].error_code == 2
    assert not sockets.pool.busy


def test_channels_have_connections_of_their_own_and_calls_of_one_share_one() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    for channel in ("", "group", ""):
        sockets.submit(node=1, channel=channel)
    assert [(link.address, link.channel) for link in sockets.opened] == [(A, ""), (A, "group")]


def test_a_node_without_an_address_and_an_api_without_a_version_fail_at_once() -> None:
    sockets = FakeSockets()
    assert "address of broker 7 is not known" in text(sockets.submit(node=7))
    sockets.know(1, A)
    unknown = sockets.submit(node=1, request=ListGroupsRequest())
    sockets.accept(sockets.opened[0])
    assert isinstance(unknown[0], ApiError)
    assert unknown[0].code == ErrorCode.UNSUPPORTED_VERSION


def test_a_request_without_an_answer_is_done_when_it_is_written() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    done = sockets.submit(node=1, request=ProduceRequest(acks=0), answered=False)
    assert done == []
    sockets.accept(sockets.opened[0])
    assert done == [None]
    assert not sockets.pool.busy


def test_a_lost_connection_fails_its_calls_and_names_the_peer_and_the_next_call_opens_another() -> (
    None
):
    sockets = FakeSockets()
    sockets.know(1, C)
    first, second = sockets.submit(node=1), sockets.submit(node=1)
    [link] = sockets.opened
    sockets.accept(link)
    sockets.pool.lost(link, "closed the connection")
    assert text(first) == text(second) == "[::1]:3 closed the connection"
    assert isinstance(first[0], TransportError)
    assert sockets.closed == [link]
    assert sockets.pool.lost_connections == 1
    third = sockets.submit(node=1)
    sockets.accept(sockets.opened[1])
    sockets.answer(sockets.opened[1], HeartbeatResponse())
    assert third[0].error_code == 0


def test_a_connection_that_breaks_while_it_is_written_to_fails_the_call_once() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    sockets.submit(node=1)
    sockets.accept(sockets.opened[0])
    sockets.lose_on_flush = True
    assert "broken pipe" in text(sockets.submit(node=1))
    assert sockets.pool.links == {}


def test_a_call_to_any_broker_uses_a_connected_one_or_the_first_that_answers() -> None:
    sockets = FakeSockets(A, B)
    sockets.refuse = {A}
    waiting = sockets.submit()
    assert [link.address for link in sockets.opened] == [A, B]
    sockets.accept(sockets.opened[1])
    sockets.answer(sockets.opened[1], HeartbeatResponse())
    assert waiting[0].error_code == 0
    sockets.submit()
    assert len(sockets.opened) == 2, "the one that is there is used"


def test_the_error_names_all_addresses_if_none_answers() -> None:
    sockets = FakeSockets(A, B)
    sockets.refuse = {A}
    waiting, another = sockets.submit(), sockets.submit()
    sockets.pool.connected(sockets.opened[1])
    sockets.pool.lost(sockets.opened[1], "closed the connection")
    expected = (
        "cannot connect to a:1: Connection refused; "
        "b:2 closed the connection; should security.protocol be SSL or SASL_SSL?"
    )
    assert text(waiting) == text(another) == expected
    assert not sockets.pool.busy


def test_addresses_that_failed_are_tried_last() -> None:
    sockets = FakeSockets(A, B)
    sockets.refuse = {A, B}
    sockets.submit()
    sockets.now_ms += 5
    sockets.refuse = {A}
    sockets.opened.clear()
    sockets.submit()
    assert [link.address for link in sockets.opened] == [A, B]
    sockets.pool.lost(sockets.opened[1], "closed the connection")
    sockets.now_ms += 5
    sockets.opened.clear()
    sockets.refuse.clear()
    sockets.submit()
    assert [link.address for link in sockets.opened] == [A]


def test_connecting_asks_for_no_more_than_a_broker_that_answers() -> None:
    sockets = FakeSockets(A, B)
    outcomes: list = []
    sockets.pool.connect(sockets.now_ms + REQUEST_MS, outcomes.append)
    sockets.pass_time(SETUP_MS - 1)
    assert [link.address for link in sockets.opened] == [A]
    sockets.pass_time(1)
    assert [link.address for link in sockets.opened] == [A, B]
    sockets.accept(sockets.opened[1])
    assert outcomes == [None]
    sockets.pool.connect(sockets.now_ms + REQUEST_MS, outcomes.append)
    assert outcomes == [None, None]


def test_a_peer_that_accepts_and_never_answers_is_given_up_after_the_set_up_time() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    waiting = sockets.submit(node=1)
    sockets.pool.connected(sockets.opened[0])
    sockets.pass_time(SETUP_MS - 1)
    assert waiting == []
    sockets.pass_time(1)
    assert text(waiting) == "a:1 does not answer the handshake"
    assert sockets.pool.lost_connections == 0, "it never was one"


def test_a_peer_that_does_not_accept_has_its_own_error() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    waiting = sockets.submit(node=1)
    sockets.pass_time(SETUP_MS)
    assert text(waiting) == "cannot connect to a:1: timed out"


def test_a_call_that_is_given_up_early_leaves_its_connection_to_the_others() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    hasty = sockets.submit(node=1, deadline_ms=sockets.now_ms + 50)
    patient = sockets.submit(node=1)
    [link] = sockets.opened
    sockets.accept(link)
    sockets.pass_time(60)
    assert text(hasty) == "a:1 did not answer in time"
    sockets.answer(link, HeartbeatResponse(error_code=1))
    sockets.answer(link, HeartbeatResponse(error_code=2))
    assert len(hasty) == 1, "its late answer is dropped"
    assert patient[0].error_code == 2
    assert sockets.closed == []


def test_a_broker_that_is_silent_for_as_long_as_it_may_take_loses_the_connection() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    hasty = sockets.submit(node=1, deadline_ms=sockets.now_ms + 50, timeout_ms=500)
    patient = sockets.submit(node=1)
    [link] = sockets.opened
    sockets.accept(link)
    sockets.pass_time(499)
    assert len(hasty) == 1
    assert patient == []
    sockets.pass_time(1)
    assert text(patient) == "a:1 did not answer in time", "behind a missing answer none can come"
    assert sockets.closed == [link]


def test_the_time_a_broker_may_take_begins_after_the_handshake() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    waiting = sockets.submit(node=1, timeout_ms=500)
    sockets.pass_time(400)
    sockets.accept(sockets.opened[0])
    sockets.pass_time(400)
    sockets.answer(sockets.opened[0], HeartbeatResponse())
    assert waiting[0].error_code == 0


def test_closing_fails_everything_that_is_open_and_everything_that_comes() -> None:
    sockets = FakeSockets(A, B)
    walking = sockets.submit()
    sockets.know(1, C)
    handed = sockets.submit(node=1)
    outcomes: list = []
    later: list = []
    call = Call(request=HeartbeatRequest(), node=1)

    def asks_again(outcome: object) -> None:
        outcomes.append(outcome)
        sockets.pool.submit(call, 5000, later.append)

    sockets.pool.submit(call, sockets.now_ms + 100, asks_again)
    sockets.pool.close()
    for outcome in (walking, handed, outcomes, later, sockets.submit()):
        assert isinstance(outcome[0], ClosedError)
    assert len(sockets.closed) == len(sockets.opened) == 2
    assert sockets.pool.next_deadline_ms is None


def test_a_callback_that_raises_does_not_keep_others_from_their_answers() -> None:
    sockets = FakeSockets()
    sockets.know(1, A)

    def fail(_: object) -> None:
        raise ZeroDivisionError

    sockets.pool.submit(Call(request=HeartbeatRequest(), node=1), 99_999, fail)
    other = sockets.submit(node=1)
    sockets.pool.lost(sockets.opened[0], "closed the connection")
    assert len(other) == 1
    assert [type(error) for error in sockets.errors] == [ZeroDivisionError]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_report_about_a_link_that_is_gone_changes_nothing(when: str) -> None:
    sockets = FakeSockets()
    sockets.know(1, A)
    sockets.submit(node=1)
    [link] = sockets.opened
    if when == "after":
        sockets.accept(link)
    sockets.pool.lost(link, "closed the connection")
    lost = sockets.pool.lost_connections
    sockets.pool.lost(link, "closed the connection")
    sockets.pool.connected(link)
    sockets.pool.received(link)
    assert sockets.pool.lost_connections == lost
    assert sockets.closed == [link]


def test_a_broker_that_hangs_up_on_the_first_request_again_and_again_wants_a_login() -> None:
    sockets = FakeSockets(A)
    outcomes = []
    for _ in range(3):
        waiting = sockets.submit()
        sockets.accept(sockets.opened[-1])
        sockets.pool.lost(sockets.opened[-1], "closed the connection")
        outcomes += waiting
    assert [type(each) for each in outcomes] == [
        TransportError,
        TransportError,
        AuthenticationError,
    ]
    assert "should security.protocol be SASL_PLAINTEXT?" in str(outcomes[-1])


def test_a_broker_that_hangs_up_before_it_has_answered_is_tried_again() -> None:
    """A proxy whose broker is being started closes connections, too."""
    sockets = FakeSockets(A)
    for _ in range(10):
        waiting = sockets.submit()
        sockets.pool.connected(sockets.opened[-1])
        sockets.pool.lost(sockets.opened[-1], "closed the connection")
        assert type(waiting[0]) is TransportError
