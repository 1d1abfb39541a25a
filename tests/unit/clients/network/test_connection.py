"""The state machine of a connection, with scripted bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.network.connection import BrokerConnection
from headrace.clients.network.versions import choose_version
from headrace.errors import ApiError, ErrorCode, ProtocolError, TransportError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import RequestHeader, decode_request, encode_response
from headrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.versions import VersionRange
from headrace.types import FileRange, Payload

EVERYTHING = [
    ApiVersion(api_key=ApiKey.HEARTBEAT, min_version=0, max_version=3),
    ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=4),
    ApiVersion(api_key=ApiKey.PRODUCE, min_version=0, max_version=13),
]


def joined(parts: list[Payload]) -> bytes:
    return b"".join(bytes(part) for part in parts if not isinstance(part, FileRange))


def new_connection(**options) -> BrokerConnection[str]:
    return BrokerConnection(client_id="me", peer="b:1", **options)


def sent(connection: BrokerConnection[str]) -> list[tuple[RequestHeader, object]]:
    """Return the requests in the connection's output."""
    data = joined(connection.take_output())
    requests: list[tuple[RequestHeader, object]] = []
    while data:
        size = int.from_bytes(data[:4], "big")
        requests.append(decode_request(memoryview(data[4 : 4 + size])))
        data = data[4 + size :]
    return requests


def feed(connection: BrokerConnection[str], data: bytes, step: int | None = None) -> None:
    """Deliver bytes, `step` at a time at most."""
    while data:
        buffer = connection.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data), step or len(data))
        buffer[:count] = data[:count]
        connection.bytes_received(count)
        data = data[count:]


def encoded(header: RequestHeader, response) -> bytes:
    return joined(encode_response(header, response))


def shake_hands(connection: BrokerConnection[str], api_versions=EVERYTHING) -> None:
    [(header, _)] = sent(connection)
    feed(connection, encoded(header, ApiVersionsResponse(api_keys=api_versions)))


def test_the_handshake_requests_versions_and_names_the_client_software() -> None:
    connection = new_connection()
    [(header, request)] = sent(connection)
    assert isinstance(request, ApiVersionsRequest)
    assert (header.client_id, header.api_version) == ("me", 3)
    assert request.client_software_name == "headrace"
    assert not connection.ready


def test_unknown_handshake_version_is_answered_in_version_0_and_asked_again() -> None:
    connection = new_connection()
    [(header, _)] = sent(connection)
    refusal = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)],
    )
    feed(connection, encoded(header._replace(api_version=0), refusal))
    [(again, _)] = sent(connection)
    assert again.api_version == 2
    assert not connection.ready
    feed(connection, encoded(again, ApiVersionsResponse(api_keys=EVERYTHING)))
    assert connection.ready


def test_a_refusal_without_a_table_falls_back_to_version_0_and_then_gives_up() -> None:
    connection = new_connection()
    [(header, _)] = sent(connection)
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    feed(connection, encoded(header._replace(api_version=0), refusal))
    [(again, _)] = sent(connection)
    assert again.api_version == 0
    with pytest.raises(ProtocolError, match="UNSUPPORTED_VERSION"):
        feed(connection, encoded(again, refusal))


def test_requests_wait_for_the_end_of_the_handshake() -> None:
    connection = new_connection()
    connection.send(HeartbeatRequest(group_id="g"), "first")
    shake_hands(connection)
    [(header, request)] = sent(connection)
    assert isinstance(request, HeartbeatRequest)
    assert header.api_version == 3, "the broker's maximum, below ours"


@given(step=st.integers(1, 40))
def test_answers_come_back_under_their_tokens_however_they_are_cut(step: int) -> None:
    connection = new_connection()
    shake_hands(connection)
    for name in ("a", "b", "c"):
        connection.send(HeartbeatRequest(group_id=name), name)
    data = b"".join(
        encoded(header, HeartbeatResponse(error_code=25 + index))
        for index, (header, _) in enumerate(sent(connection))
    )
    feed(connection, data, step)
    completed = connection.take_completed()
    assert [done.token for done in completed] == ["a", "b", "c"]
    codes = [
        done.outcome.error_code for done in completed if isinstance(done.outcome, HeartbeatResponse)
    ]
    assert codes == [25, 26, 27]
    assert connection.idle


def test_a_response_out_of_order_breaks_the_connection_and_fails_pending_requests() -> None:
    connection = new_connection()
    shake_hands(connection)
    connection.send(HeartbeatRequest(), "a")
    connection.send(HeartbeatRequest(), "b")
    (_, _), (second, _) = sent(connection)
    with pytest.raises(ProtocolError, match="was due"):
        feed(connection, encoded(second, HeartbeatResponse()))
    lost = TransportError("gone")
    assert {(done.token, done.outcome) for done in connection.abandon(lost)} == {
        ("a", lost),
        ("b", lost),
    }


def test_an_answer_that_nothing_asked_for_breaks_the_connection() -> None:
    connection = new_connection()
    shake_hands(connection)
    with pytest.raises(ProtocolError, match="a response without a request"):
        feed(connection, encoded(RequestHeader(12, 3, 9, None), HeartbeatResponse()))


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "TLS or an HTTP port"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "speaks TLS: set security.protocol=SSL"),
    ],
)
def test_a_wrong_protocol_is_detected_before_memory_is_allocated(
    greeting: bytes, text: str
) -> None:
    connection = new_connection()
    with pytest.raises(ProtocolError, match=text):
        feed(connection, greeting)


@pytest.mark.parametrize("length", [-1, 0, 3, 1001])
def test_frame_sizes_are_bounded(length: int) -> None:
    connection = new_connection(max_frame_bytes=1000)
    shake_hands(connection)
    with pytest.raises(ProtocolError, match="bytes"):
        feed(connection, length.to_bytes(4, "big", signed=True))


def test_a_garbled_answer_breaks_the_connection() -> None:
    connection = new_connection()
    shake_hands(connection)
    connection.send(HeartbeatRequest(), "a")
    [(header, _)] = sent(connection)
    whole = encoded(header, HeartbeatResponse())
    cut = (len(whole) - 4 - 3).to_bytes(4, "big") + whole[4:-3]
    with pytest.raises(ProtocolError):
        feed(connection, cut)
    assert [done.token for done in connection.abandon(TransportError("x"))] == ["a"]


def test_an_api_that_the_broker_lacks_fails_that_request_only() -> None:
    connection = new_connection()
    shake_hands(connection)
    connection.send(ListGroupsRequest(), "list")
    [done] = connection.take_completed()
    assert isinstance(done.outcome, ApiError)
    assert done.outcome.code == ErrorCode.UNSUPPORTED_VERSION
    assert "LIST_GROUPS" in str(done.outcome)
    assert connection.take_output() == []


def test_produce_without_acknowledgement_is_complete_when_it_is_written() -> None:
    connection = new_connection()
    shake_hands(connection)
    connection.send(ProduceRequest(acks=0), "p", answered=False)
    assert len(sent(connection)) == 1
    assert connection.take_completed() == []
    waits = not connection.idle
    assert waits
    connection.written()
    [done] = connection.take_completed()
    assert done.outcome is None
    assert connection.idle
    connection.send(ProduceRequest(acks=0), "lost", answered=False)
    assert [done.token for done in connection.abandon(ApiError.for_code(1))] == ["lost"]


@pytest.mark.parametrize(("max_version", "expected"), [(None, 13), (12, 12)])
def test_a_call_limits_the_version_of_its_request(max_version, expected) -> None:
    connection = new_connection()
    shake_hands(connection)
    connection.send(ProduceRequest(acks=0), "p", answered=False, max_version=max_version)
    [(header, _)] = sent(connection)
    connection.written()
    connection.take_completed()
    assert header.api_version == expected
    connection.send(HeartbeatRequest(), "h")
    [(header, _)] = sent(connection)
    feed(connection, encoded(header, HeartbeatResponse()))
    assert [done.token for done in connection.take_completed()] == ["h"]


def test_versions_are_the_highest_that_both_speak() -> None:
    assert choose_version(12, VersionRange(0, 4), VersionRange(2, 9)) == 4
    assert choose_version(12, VersionRange(0, 4), VersionRange(0, 2)) == 2
    with pytest.raises(ApiError, match="offers HEARTBEAT 5-9"):
        choose_version(12, VersionRange(0, 4), VersionRange(5, 9))


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [([], b""), (["something", "filter"], b"\x01\x01a"), (["filters"], b"")],
)
def test_a_filter_is_sent_only_to_a_broker_with_the_extension(extensions, expected) -> None:
    connection = new_connection()
    [(header, _)] = sent(connection)
    offers = [ApiVersion(api_key=ApiKey.FETCH, min_version=4, max_version=17)]
    answer = ApiVersionsResponse(api_keys=offers, headrace_extensions=extensions)
    feed(connection, encoded(header, answer))
    connection.send(FetchRequest(headrace_filter=b"\x01\x01a"), "t")
    [(header, request)] = sent(connection)
    assert header.api_version == 17
    assert isinstance(request, FetchRequest)
    assert bytes(request.headrace_filter) == expected


@pytest.mark.parametrize("extensions", [[], ["filter"], ["filter", "delayed"]])
def test_scheduled_records_are_requested_from_brokers_with_the_extension_only(extensions) -> None:
    connection = new_connection()
    [(header, _)] = sent(connection)
    offers = [ApiVersion(api_key=ApiKey.LIST_OFFSETS, min_version=1, max_version=9)]
    answer = ApiVersionsResponse(api_keys=offers, headrace_extensions=extensions)
    feed(connection, encoded(header, answer))
    connection.send(ListOffsetsRequest(headrace_delayed=True), "t")
    [(_, request)] = sent(connection)
    assert isinstance(request, ListOffsetsRequest)
    assert request.headrace_delayed == ("delayed" in extensions)
