from __future__ import annotations

import struct

import pytest

from headrace.errors import ProtocolError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import (
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_unsupported_version,
    read_correlation_id,
    request_class,
    response_class,
)
from headrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.types import FileRange
from tests.fixtures.messages import joined


def frame_of(data: bytes) -> memoryview:
    (size,) = struct.unpack_from(">i", data)
    assert size == len(data) - 4
    return memoryview(data)[4:]


def test_request_header_before_flexible_versions() -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, 3, 77, "tester")
    data = joined(
        encode_request(header, HeartbeatRequest(group_id="g", generation_id=2, member_id="m"))
    )
    assert (
        data[4:] == struct.pack(">hhih6s", 12, 3, 77, 6, b"tester") + b"\0\1g\0\0\0\2\0\1m\xff\xff"
    )
    assert decode_request(frame_of(data)) == (
        header,
        HeartbeatRequest(group_id="g", generation_id=2, member_id="m"),
    )


def test_flexible_request_header_keeps_a_plain_client_id_and_ends_with_tags() -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, 4, 77, "tester")
    data = joined(encode_request(header, HeartbeatRequest(group_id="g")))
    assert data[4:] == struct.pack(">hhih6s", 12, 4, 77, 6, b"tester") + b"\0\2g\0\0\0\0\1\0\0"
    assert decode_request(frame_of(data))[0] == header


@pytest.mark.parametrize("client_id", [None, "", "ünïcode"])
@pytest.mark.parametrize("version", [0, 4])
def test_client_ids_survive_encoding_and_decoding(client_id: str | None, version: int) -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, version, 1, client_id)
    assert decode_request(frame_of(joined(encode_request(header, HeartbeatRequest()))))[0] == header


def test_unknown_tags_in_the_header_are_skipped() -> None:
    head = struct.pack(">hhih", ApiKey.HEARTBEAT, 4, 77, -1)
    tags = b"\x02" + b"\x00\x03abc" + b"\x81\x01\x00"
    header, request = decode_request(memoryview(head + tags + b"\2g\0\0\0\5\2m\0\0"))
    assert header == RequestHeader(ApiKey.HEARTBEAT, 4, 77, None)
    assert request == HeartbeatRequest(group_id="g", generation_id=5, member_id="m")


def test_tagged_fields_of_a_header_are_bounded() -> None:
    head = struct.pack(">hhih", ApiKey.HEARTBEAT, 4, 77, -1)
    for count, refused in ((1_000, False), (1_001, True)):
        number = bytes([count & 0x7F | 0x80, count >> 7])
        frame = memoryview(head + number + b"\x05\x00" * count + b"\2g\0\0\0\5\2m\0\0")
        if refused:
            with pytest.raises(ProtocolError, match="the message has 1 more than are allowed"):
                decode_request(frame)
        else:
            assert decode_request(frame)[1] == HeartbeatRequest(
                group_id="g", generation_id=5, member_id="m"
            )


def test_bytes_after_a_request_are_ignored() -> None:
    data = joined(encode_request(RequestHeader(ApiKey.HEARTBEAT, 0, 1, None), HeartbeatRequest()))
    assert decode_request(memoryview(data[4:] + b"more"))[1] == HeartbeatRequest()


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (ApiKey.API_VERSIONS, 5),
        (ApiKey.API_VERSIONS, 32767),
        (ApiKey.API_VERSIONS, -1),
        (ApiKey.PRODUCE, 2),
        (ApiKey.FETCH, 19),
        (999, 0),
        (-1, 0),
        (ApiKey.VOTE, 0),
    ],
)
def test_unknown_apis_and_versions_are_refused_with_their_header(key: int, version: int) -> None:
    data = struct.pack(">hhih3s", key, version, 55, 3, b"abc") + b"who knows"
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(memoryview(data))
    assert caught.value.header == RequestHeader(key, version, 55, "abc")


def test_an_unknown_version_has_its_own_error_even_if_the_rest_is_garbage() -> None:
    data = struct.pack(">hhih", ApiKey.API_VERSIONS, 9, 55, 30_000)
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(memoryview(data))
    assert caught.value.header == RequestHeader(ApiKey.API_VERSIONS, 9, 55, None)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_response_has_the_oldest_header_in_every_version(version: int) -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=4)])
    data = joined(encode_response(RequestHeader(ApiKey.API_VERSIONS, version, 9, None), response))
    body = joined(response.encode(version))
    assert data == struct.pack(">ii", 4 + len(body), 9) + body
    assert decode_response(frame_of(data), ApiVersionsResponse, version) == (9, response)


def test_answer_to_an_unknown_version_of_api_versions() -> None:
    response = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=4)])
    data = joined(
        encode_unsupported_version(RequestHeader(ApiKey.API_VERSIONS, 40, 9, "c"), response)
    )
    assert data[4:] == struct.pack(">ihihhh", 9, 35, 1, 18, 0, 4)


@pytest.mark.parametrize(("version", "tags"), [(3, b""), (4, b"\0")])
def test_response_header_ends_with_tags_in_flexible_versions(version: int, tags: bytes) -> None:
    response = HeartbeatResponse(error_code=27)
    data = joined(encode_response(RequestHeader(ApiKey.HEARTBEAT, version, 9, None), response))
    assert data[4:] == struct.pack(">i", 9) + tags + joined(response.encode(version))
    assert decode_response(frame_of(data), HeartbeatResponse, version) == (9, response)
    assert read_correlation_id(frame_of(data)) == 9


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1", b"\0\0\0\1\0\0"])
def test_responses_cut_short(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_response(memoryview(data), HeartbeatResponse, 4)


def test_records_are_not_copied_on_the_way_in() -> None:
    records = bytes(range(200)) * 5
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])
    for version in range(3, 13):
        header = RequestHeader(ApiKey.PRODUCE, version, 1, "c")
        received = bytearray(joined(encode_request(header, ProduceRequest(topic_data=[topic]))))
        _, request = decode_request(memoryview(received)[4:])
        assert isinstance(request, ProduceRequest)
        view = request.topic_data[0].partition_data[0].records
        assert isinstance(view, memoryview)
        assert view == records
        assert view.obj is received


class StoredBytes:
    """A segment file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def fileno(self) -> int | None:
        return None

    def buffers(self, position: int, size: int) -> list[bytes]:
        return [self.content[position : position + size]]


@pytest.mark.parametrize("version", [4, 11, 12])
def test_records_are_not_copied_on_the_way_out(version: int) -> None:
    stored = FileRange(StoredBytes(bytes(100) + b"batches" * 100), 100, 700)
    view = memoryview(b"more batches")
    partitions = [
        PartitionData(partition_index=0, records=stored),
        PartitionData(partition_index=1, records=b""),
        PartitionData(partition_index=2, records=None),
        PartitionData(partition_index=3, records=view),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    buffers = encode_response(RequestHeader(ApiKey.FETCH, version, 3, None), response)
    assert buffers[1] is stored
    assert buffers[3] is view
    data = joined(buffers)
    _, decoded = decode_response(frame_of(data), FetchResponse, version)
    got = [partition.records for partition in decoded.responses[0].partitions]
    assert got == [b"batches" * 100, b"", None, b"more batches"]


def test_every_request_has_a_response_of_the_same_key_and_versions() -> None:
    for key in ApiKey:
        request, response = request_class(key), response_class(key)
        if request is None or response is None:
            assert request is response
            continue
        assert request.API_KEY == response.API_KEY == key
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix(
            "Response"
        )
        assert (request.MIN_VERSION, request.MAX_VERSION) == (
            response.MIN_VERSION,
            response.MAX_VERSION,
        )
        assert request.FLEXIBLE_VERSION == response.FLEXIBLE_VERSION
    assert request_class(ApiKey.VOTE) is None
    assert response_class(12345) is None


def test_a_client_s_api_versions_request() -> None:
    """librdkafka sends these bytes first."""
    data = bytes.fromhex("00120003000000010007") + b"rdkafka" + b"\0\x0blibrdkafka\x072.11.1\0"
    header, request = decode_request(memoryview(data))
    assert header == RequestHeader(18, 3, 1, "rdkafka")
    assert request == ApiVersionsRequest(
        client_software_name="librdkafka", client_software_version="2.11.1"
    )
