from __future__ import annotations

import struct
from random import Random

import pytest

from headrace.errors import ProtocolError
from headrace.protocol import codec
from headrace.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from headrace.protocol.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.fixtures.messages import every_version, joined, random_message


def test_defaults_are_kafkas() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.session_epoch) == (-1, 0x7FFFFFFF, -1)
    assert request.cluster_id is None
    assert request.topics == []
    assert MetadataRequest().allow_auto_topic_creation is True
    assert MetadataRequestTopic().topic_id == codec.ZERO_UUID


def test_lists_are_fresh_and_none_stays_none() -> None:
    first, second = MetadataRequest(), MetadataRequest()
    assert first.topics is not None
    first.topics.append(MetadataRequestTopic(name="t"))
    assert second.topics == []
    assert MetadataRequest(topics=None).topics is None


def test_messages_compare_and_print_by_their_fields() -> None:
    assert HeartbeatRequest(group_id="g") == HeartbeatRequest(group_id="g")
    assert HeartbeatRequest(group_id="g") != HeartbeatRequest(group_id="h")
    assert HeartbeatRequest() != "HeartbeatRequest"
    assert repr(DescribeTopicPartitionsRequestCursor(topic_name="t")) == (
        "DescribeTopicPartitionsRequestCursor(topic_name='t', partition_index=0)"
    )
    with pytest.raises(TypeError):
        hash(HeartbeatRequest())
    with pytest.raises(AttributeError):
        HeartbeatRequest().no_such_field = 1  # type: ignore[attr-defined]  # that is the point


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_versions_that_do_not_exist(version: int) -> None:
    with pytest.raises(ProtocolError, match="ProduceRequest has no version"):
        ProduceRequest().encode(version)
    with pytest.raises(ProtocolError, match="ProduceRequest has no version"):
        ProduceRequest.decode(memoryview(bytes(100)), 0, version)


def test_null_is_refused_in_versions_where_the_field_is_not_nullable() -> None:
    response = JoinGroupResponse(protocol_name=None)
    for version in (0, 5, 6):
        with pytest.raises(ProtocolError, match="protocol_name"):
            response.encode(version)
    assert JoinGroupResponse.decode(memoryview(joined(response.encode(7))), 0, 7)[0] == response

    response.protocol_name = "range"
    plain = joined(response.encode(5)).replace(b"\0\5range", b"\xff\xff")
    flexible = joined(response.encode(6)).replace(b"\6range", b"\0")
    for version, data in ((5, plain), (6, flexible)):
        with pytest.raises(ProtocolError, match="protocol_name must not be null"):
            JoinGroupResponse.decode(memoryview(data), 0, version)


def test_null_topics_exist_from_version_one() -> None:
    null = memoryview(b"\xff\xff\xff\xff")
    assert MetadataRequest.decode(null, 0, 1)[0].topics is None
    with pytest.raises(ProtocolError):
        MetadataRequest.decode(null, 0, 0)
    assert MetadataRequest.decode(memoryview(bytes(4)), 0, 0)[0].topics == []


@pytest.mark.parametrize("length", [b"\xff\xff", b"\xff\xfe", b"\x80\x00"])
def test_negative_lengths_of_strings(length: bytes) -> None:
    with pytest.raises(ProtocolError, match="group_id must not be null"):
        HeartbeatRequest.decode(memoryview(length + bytes(20)), 0, 0)


@pytest.mark.parametrize("nullable", [False, True])
def test_strings_have_the_length_limit_of_kafka_in_flexible_versions_too(*, nullable: bool) -> None:
    def decoded(length: int) -> object:
        text = "x" * length
        message = (
            HeartbeatRequest(group_instance_id=text)
            if nullable
            else HeartbeatRequest(group_id=text)
        )
        return HeartbeatRequest.decode(memoryview(joined(message.encode(4))), 0, 4)

    decoded(codec.STRING_LIMIT)
    with pytest.raises(ProtocolError, match="is a string of 32768 bytes"):
        decoded(codec.STRING_LIMIT + 1)


def test_strings_must_be_utf8() -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        HeartbeatRequest.decode(memoryview(b"\0\2\xc3\x28" + bytes(20)), 0, 0)


def test_counts_are_checked_before_anything_is_built() -> None:
    data = memoryview(struct.pack(">i", 51) + bytes(100))
    with pytest.raises(ProtocolError, match="topics: 51 elements do not fit"):
        MetadataRequest.decode(data, 0, 1)
    data = memoryview(struct.pack(">i", 0x7FFFFFFF) + bytes(100))
    with pytest.raises(ProtocolError, match="has 2147451647 more than are allowed"):
        MetadataRequest.decode(data, 0, 1)


@pytest.mark.parametrize(("name", "version"), list(every_version()))
def test_elements_of_all_lists_of_a_message_are_counted(name: str, version: int) -> None:
    random = Random(f"{name} {version}")
    message = max((random_message(name, version, random) for _ in range(5)), key=_elements)
    data, count = memoryview(joined(message.encode(version))), _elements(message)
    cls = type(message)
    assert cls.decode(data, 0, version, count + _MOST_TAGS)[1] == len(data)
    if count:
        with pytest.raises(ProtocolError, match="more than are allowed"):
            cls.decode(data, 0, version, count - 1)


_MOST_TAGS = 5_000
"""More tagged fields than a random message has."""


def _elements(value: object) -> int:
    """Return how many elements all lists of a message have together."""
    if isinstance(value, list):
        return len(value) + sum(map(_elements, value))
    if isinstance(value, codec.Structure):
        return sum(_elements(getattr(value, name)) for name in value.__slots__)
    return 0


def test_a_request_has_a_bounded_number_of_elements() -> None:
    assert FetchRequest.MAX_ELEMENTS == MetadataRequest.MAX_ELEMENTS == codec.REQUEST_ELEMENTS
    most = [FetchPartition()] * (codec.REQUEST_ELEMENTS - 1)
    for further in (0, 1):
        request = FetchRequest(topics=[FetchTopic(partitions=most + [FetchPartition()] * further)])
        data = memoryview(joined(request.encode(4)))
        if further:
            with pytest.raises(ProtocolError, match="the message has 1 more than are allowed"):
                FetchRequest.decode(data, 0, 4)
        else:
            assert FetchRequest.decode(data, 0, 4)[0] == request


@pytest.mark.parametrize("wanted", [codec.SETTINGS_ELEMENTS, codec.SETTINGS_ELEMENTS + 1])
def test_a_request_that_changes_configs_has_fewer_elements(wanted: int) -> None:
    configs = [AlterableConfig(name="a", value=None)] * (wanted - 1)
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(configs=configs)])
    data = memoryview(joined(request.encode(1)))
    if wanted > codec.SETTINGS_ELEMENTS:
        with pytest.raises(ProtocolError, match="the message has 1 more than are allowed"):
            IncrementalAlterConfigsRequest.decode(data, 0, 1)
    else:
        assert IncrementalAlterConfigsRequest.decode(data, 0, 1)[0] == request


def test_tagged_fields_count_as_elements() -> None:
    count = codec.REQUEST_ELEMENTS
    number = bytearray()
    codec.write_varint(number, count + 1)
    unknown = b"\x05\x00" * (count + 1)
    name = b"\x02a"
    with pytest.raises(ProtocolError, match="the message has 1 more than are allowed"):
        ApiVersionsRequest.decode(memoryview(name + name + bytes(number) + unknown), 0, 3)
    known = memoryview(bytes(10) + bytes(number) + unknown)
    with pytest.raises(ProtocolError, match="the message has 1 more than are allowed"):
        codec.count_tags(known, 11, known[10], count)


def test_fields_of_other_versions_are_left_out_and_come_back_as_defaults() -> None:
    partition = PartitionProduceResponse(index=1, log_start_offset=9, error_message="no")
    message = ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=[partition])]
    )
    decoded, _ = ProduceResponse.decode(memoryview(joined(message.encode(4))), 0, 4)
    assert decoded.responses[0].partition_responses == [PartitionProduceResponse(index=1)]


def test_tagged_fields_are_written_only_where_set() -> None:
    plain = joined(ProduceResponse().encode(10))
    assert plain == b"\1" + bytes(4) + b"\0"
    endpoint = NodeEndpoint(node_id=1, host="h", port=9)
    tagged = ProduceResponse(node_endpoints=[endpoint])
    data = joined(tagged.encode(10))
    assert data == b"\1" + bytes(4) + b"\1\0\x0d\2\0\0\0\1\2h\0\0\0\x09\0\0"
    assert ProduceResponse.decode(memoryview(data), 0, 10)[0] == tagged
    # Version 9 does not have the field, nor does it mind a tag that it does not know.
    assert joined(tagged.encode(9)) == plain
    assert ProduceResponse.decode(memoryview(data), 0, 9) == (ProduceResponse(), len(data))


def test_unknown_tags_are_skipped_between_known_ones() -> None:
    known = ApiVersionsResponse(
        supported_features=[SupportedFeatureKey(name="f", max_version=1)], zk_migration_ready=True
    )
    data = joined(known.encode(3))
    head, tags = data[:7], data[8:]
    feature, ready = tags[:-3], tags[-3:]
    unknown = (
        b"\x02\x01\x01" + b"\x90\x4e\x05hello"
    )  # tag 2 is known: no features; tag 10000 is not
    mixed = head + b"\x04" + feature + unknown[:3] + ready + unknown[3:]
    decoded, position = ApiVersionsResponse.decode(memoryview(mixed), 0, 3)
    assert (decoded, position) == (known, len(mixed))


@pytest.mark.parametrize("size", [0, 2, 100])
def test_a_tagged_field_must_be_as_long_as_it_says(size: int) -> None:
    data = joined(ApiVersionsResponse(zk_migration_ready=True).encode(3))
    assert data.endswith(b"\x01\x03\x01\x01")
    with pytest.raises(ProtocolError):
        ApiVersionsResponse.decode(memoryview(data[:-2] + bytes([size, 1]) + bytes(20)), 0, 3)


def test_nullable_structs_survive_encoding_and_decoding() -> None:
    for cursor in (None, DescribeTopicPartitionsRequestCursor(topic_name="t", partition_index=3)):
        request = DescribeTopicPartitionsRequest(cursor=cursor)
        data = joined(request.encode(0))
        assert DescribeTopicPartitionsRequest.decode(memoryview(data), 0, 0)[0] == request
    assert joined(DescribeTopicPartitionsRequest(cursor=None).encode(0)) == b"\1\0\0\x07\xd0\xff\0"


@pytest.mark.parametrize("count", [0, 1, 16, 17, 126, 127, 128, 5000])
def test_arrays_of_numbers(count: int) -> None:
    numbers = list(range(-count // 2, count - count // 2))
    big = struct.pack(f">{len(numbers)}i", *numbers)
    assert codec.int32_array(numbers) == struct.pack(">i", len(numbers)) + big
    length = bytearray()
    codec.write_varint(length, len(numbers) + 1)
    assert codec.compact_int32_array(numbers) == bytes(length) + big
    assert codec.read_int32s(memoryview(big), 0, len(numbers)) == numbers


@pytest.mark.parametrize(
    "value", [0, 1, 127, 128, 300, 16383, 16384, 2**21, 2**28, 2**31 - 1, 2**32 - 1]
)
def test_varints_survive_encoding_and_decoding(value: int) -> None:
    out = bytearray(b"x")
    codec.write_varint(out, value)
    assert codec.read_varint(memoryview(out), 1) == (value, len(out))


def test_varints_end_after_five_bytes() -> None:
    with pytest.raises(ProtocolError, match="longer than five bytes"):
        codec.read_varint(memoryview(b"\x80\x80\x80\x80\x80\x00"), 0)


def test_decoding_starts_at_the_given_byte() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    data = b"abc" + joined(request.encode(0)) + b"def"
    assert HeartbeatRequest.decode(memoryview(data), 3, 0) == (request, len(data) - 3)


def test_a_prefix_begins_the_first_buffer() -> None:
    buffers = HeartbeatRequest().encode(0, b"head")
    assert len(buffers) == 1
    assert isinstance(buffers[0], bytearray)
    assert buffers[0].startswith(b"head")


def test_a_value_that_does_not_fit_its_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="HeartbeatRequest v0 cannot be encoded"):
        HeartbeatRequest(group_id="g" * 40_000).encode(0)
    with pytest.raises(ProtocolError, match="HeartbeatRequest v4 cannot be encoded"):
        HeartbeatRequest(generation_id=1 << 31).encode(4)
    with pytest.raises(ProtocolError, match="HeartbeatRequest v4 cannot be encoded"):
        HeartbeatRequest(group_id="\udc80").encode(4)
