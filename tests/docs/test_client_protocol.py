"""docs/reference/client-protocol.md is right: its layouts equal the schemas, and the codec writes its examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from crc32c import crc32c

from headrace.clients.assignors import MemberSubscription, RangeAssignor
from headrace.clients.flows import classic_group
from headrace.errors import ErrorCode
from headrace.protocol.frame import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from headrace.protocol.messages import api_versions as versions
from headrace.protocol.messages import fetch, find_coordinator, heartbeat, list_offsets, metadata
from headrace.protocol.messages import join_group as join
from headrace.protocol.messages import leave_group as leave
from headrace.protocol.messages import offset_commit as commit
from headrace.protocol.messages import offset_fetch as committed
from headrace.protocol.messages import sync_group as sync
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.reader import read_records
from headrace.records.varint import encode_varint
from headrace.types import TopicPartition
from tests.docs.page_layouts import Field, blocks, parse_layout, render
from tools.message_schema import FieldSchema, parse_schema

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "client-protocol.md").read_text()
TITLE = re.compile(r"(\w+) (request|response), key (\d+), version (\d+)")
LAYOUTS = {title: parse_layout(text) for title, text in blocks(PAGE, "layout").items()}
EXAMPLES = blocks(PAGE, "hex")

MEMBER, OTHER = "billing-1-7f3a", "billing-2-c05d"
SUBSCRIPTION = classic_group.encode_subscription(["orders"])[:-6]  # up to version 1: no generation
SUBSCRIPTION = b"\x00\x00" + SUBSCRIPTION[2 : 2 + 4 + 8 + 4]  # version 0: topics and user data
SHARE = classic_group.encode_assignment([TopicPartition("orders", n) for n in (0, 1, 2)])
SHARE = b"\x00\x00" + SHARE[2:]
OTHER_SHARE = classic_group.encode_assignment([TopicPartition("orders", n) for n in (3, 4, 5)])
OTHER_SHARE = b"\x00\x00" + OTHER_SHARE[2:]
BATCH = build_batch(
    [
        (b"alice", b'{"id": 1}', [("trace", b"\x01")], 1_700_000_000_000),
        (None, b'{"id": 2}', [], 1_700_000_000_007),
        (b"bob", None, [("note", None)], 1_700_000_000_007),
    ],
    base_offset=40,
    partition_leader_epoch=0,
)


def _control_batch() -> bytes:
    builder = BatchBuilder(transactional=True, control=True)
    builder.append(b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00", (), 1_700_000_000_100)
    return builder.build(9, 0, base_offset=43, partition_leader_epoch=0)


CONTROL_BATCH = _control_batch()

MESSAGES = {
    "ApiVersions request": versions.ApiVersionsRequest(),
    "ApiVersions response, cut down to two APIs": versions.ApiVersionsResponse(
        api_keys=[
            versions.ApiVersion(api_key=1, min_version=4, max_version=12),
            versions.ApiVersion(api_key=11, min_version=0, max_version=9),
        ]
    ),
    "Metadata request": metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name="orders")], allow_auto_topic_creation=False
    ),
    "Metadata response": metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(node_id=1, host="10.0.0.7", port=9092)],
        cluster_id="c1",
        controller_id=1,
        topics=[
            metadata.MetadataResponseTopic(
                name="orders",
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=0,
                        leader_id=1,
                        leader_epoch=0,
                        replica_nodes=[1],
                        isr_nodes=[1],
                    )
                ],
            )
        ],
    ),
    "FindCoordinator request": find_coordinator.FindCoordinatorRequest(key="billing"),
    "FindCoordinator response": find_coordinator.FindCoordinatorResponse(
        error_message="NONE", node_id=1, host="10.0.0.7", port=9092
    ),
    "JoinGroup request of a newcomer": join.JoinGroupRequest(
        group_id="billing",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[join.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    ),
    "JoinGroup response to a newcomer: MEMBER_ID_REQUIRED": join.JoinGroupResponse(
        error_code=79, protocol_name="", leader="", member_id=MEMBER
    ),
    "JoinGroup response to the leader": join.JoinGroupResponse(
        generation_id=5,
        protocol_name="range",
        leader=MEMBER,
        member_id=MEMBER,
        members=[
            join.JoinGroupResponseMember(member_id=MEMBER, metadata=SUBSCRIPTION),
            join.JoinGroupResponseMember(member_id=OTHER, metadata=SUBSCRIPTION),
        ],
    ),
    "SyncGroup request of the leader": sync.SyncGroupRequest(
        group_id="billing",
        generation_id=5,
        member_id=MEMBER,
        assignments=[
            sync.SyncGroupRequestAssignment(member_id=MEMBER, assignment=SHARE),
            sync.SyncGroupRequestAssignment(member_id=OTHER, assignment=OTHER_SHARE),
        ],
    ),
    "SyncGroup response": sync.SyncGroupResponse(assignment=SHARE),
    "Heartbeat request": heartbeat.HeartbeatRequest(
        group_id="billing", generation_id=5, member_id=MEMBER
    ),
    "Heartbeat response: REBALANCE_IN_PROGRESS": heartbeat.HeartbeatResponse(error_code=27),
    "OffsetFetch request": committed.OffsetFetchRequest(
        group_id="billing",
        topics=[committed.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])],
    ),
    "OffsetFetch response": committed.OffsetFetchResponse(
        topics=[
            committed.OffsetFetchResponseTopic(
                name="orders",
                partitions=[
                    committed.OffsetFetchResponsePartition(
                        partition_index=0,
                        committed_offset=40,
                        committed_leader_epoch=-1,
                        metadata="",
                    ),
                    committed.OffsetFetchResponsePartition(
                        partition_index=1,
                        committed_offset=-1,
                        committed_leader_epoch=-1,
                        metadata="",
                    ),
                ],
            )
        ]
    ),
    "ListOffsets request": list_offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            list_offsets.ListOffsetsTopic(
                name="orders",
                partitions=[list_offsets.ListOffsetsPartition(partition_index=1, timestamp=-2)],
            )
        ],
    ),
    "ListOffsets response": list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name="orders",
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(
                        partition_index=1, offset=17, leader_epoch=0
                    )
                ],
            )
        ]
    ),
    "Fetch request": fetch.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[
            fetch.FetchTopic(
                topic="orders",
                partitions=[
                    fetch.FetchPartition(partition=0, fetch_offset=40, partition_max_bytes=1 << 20)
                ],
            )
        ],
        rack_id="",
    ),
    "Fetch response": fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic="orders",
                partitions=[
                    fetch.PartitionData(
                        partition_index=0,
                        high_watermark=43,
                        last_stable_offset=43,
                        log_start_offset=0,
                        aborted_transactions=None,
                        records=BATCH,
                    )
                ],
            )
        ]
    ),
    "OffsetCommit request": commit.OffsetCommitRequest(
        group_id="billing",
        generation_id_or_member_epoch=5,
        member_id=MEMBER,
        topics=[
            commit.OffsetCommitRequestTopic(
                name="orders",
                partitions=[
                    commit.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=43, committed_metadata=""
                    )
                ],
            )
        ],
    ),
    "OffsetCommit response": commit.OffsetCommitResponse(
        topics=[
            commit.OffsetCommitResponseTopic(
                name="orders",
                partitions=[commit.OffsetCommitResponsePartition(partition_index=0)],
            )
        ]
    ),
    "LeaveGroup request": leave.LeaveGroupRequest(
        group_id="billing", members=[leave.MemberIdentity(member_id=MEMBER)]
    ),
    "LeaveGroup response": leave.LeaveGroupResponse(
        members=[leave.MemberResponse(member_id=MEMBER, group_instance_id=None)]
    ),
}
BLOBS = {
    "Subscription of one topic": ("Subscription, version 0", SUBSCRIPTION),
    "Assignment of three partitions": ("Assignment, version 0", SHARE),
    "Batch of three records": ("Record batch, uncompressed", BATCH),
    "Control batch: an abort marker": ("Record batch, uncompressed", CONTROL_BATCH),
}


def _message_layout(api: str, kind: str) -> tuple[list[Field], int, int]:
    """Return the layout of a message, with the fields of its header."""
    [title] = [title for title in LAYOUTS if title.startswith(f"{api} {kind}, ")]
    match = TITLE.fullmatch(title)
    assert match is not None, title
    header = LAYOUTS["Request header" if kind == "request" else "Response header"]
    return [*header, *LAYOUTS[title]], int(match[3]), int(match[4])


def _frame(title: str) -> bytes:
    api, kind = title.split()[:2]
    kind = kind.rstrip(":,")
    _, key, version = _message_layout(api, kind)
    header = RequestHeader(key, version, 7, "billing-1")
    encode = encode_request if kind == "request" else encode_response
    return b"".join(encode(header, MESSAGES[title]))  # type: ignore[arg-type]  # no file ranges here


def _expected(title: str) -> str:
    if title in BLOBS:
        layout, data = BLOBS[title]
        return render(LAYOUTS[layout], data)
    api, kind = title.split()[:2]
    return render(_message_layout(api, kind.rstrip(":,"))[0], _frame(title))


def test_this_file_checks_every_example() -> None:
    assert EXAMPLES.keys() == MESSAGES.keys() | BLOBS.keys()


@pytest.mark.parametrize("title", [*MESSAGES, *BLOBS])
def test_the_codec_writes_each_example(title: str) -> None:
    assert EXAMPLES[title] == _expected(title)


@pytest.mark.parametrize("title", MESSAGES)
def test_the_codec_reads_each_example(title: str) -> None:
    data = bytes.fromhex("".join(line[:48] for line in EXAMPLES[title].splitlines()))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    frame = memoryview(data)[4:]
    _, key, version = _message_layout(*(word.rstrip(":,") for word in title.split()[:2]))
    if " request" in title:
        header, request = decode_request(frame)
        assert (header.api_key, header.api_version) == (key, version)
        assert request == MESSAGES[title]
        return
    cls = response_class(key)
    assert cls is not None
    correlation_id, response = decode_response(frame, cls, version)
    assert correlation_id == 7
    assert response == MESSAGES[title]


def _described(each: FieldSchema, version: int) -> Field:
    null = "?" if version in each.nullable else ""
    if not each.is_array:
        return Field(each.name, each.type.replace("records", "bytes") + null)
    if each.struct is None:
        return Field(each.name, f"array{null} of {each.type}")
    children = [
        _described(child, version) for child in each.struct.fields if version in child.versions
    ]
    return Field(each.name, "array" + null, children)


@pytest.mark.parametrize("title", [title for title in LAYOUTS if TITLE.fullmatch(title)])
def test_each_layout_equals_its_schema(title: str) -> None:
    match = TITLE.fullmatch(title)
    assert match is not None
    api, kind, key, version = match[1], match[2], int(match[3]), int(match[4])
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    schemas = parse_schema(ROOT / "tools" / "schemas" / f"{name}.txt")
    [schema] = [each for each in schemas if each.kind == kind]
    assert (schema.name, schema.api_key) == (f"{api}{kind.title()}", key)
    assert version < schema.first_flexible, "the page explains the older encoding alone"
    if api != "ApiVersions":
        assert version == schema.first_flexible - 1, "the newest version in the older encoding"
    assert version in range(schema.versions.low, schema.versions.high + 1)
    assert LAYOUTS[title] == [
        _described(each, version) for each in schema.fields if version in each.versions
    ]


def test_each_request_layout_has_a_response_layout() -> None:
    titles = [match for match in map(TITLE.fullmatch, LAYOUTS) if match]
    assert len(titles) == 22
    for match in titles:
        same = [other for other in titles if other.group(1, 3, 4) == match.group(1, 3, 4)]
        assert len(same) == 2
        assert request_class(int(match[3])) is not None


def test_the_broker_serves_the_versions_of_the_layouts() -> None:
    titles = [match for match in map(TITLE.fullmatch, LAYOUTS) if match]
    listed = re.findall(r"(\w+) \| (\d+) \| (\d+) \|", PAGE.split("## 3.")[1].split("```")[0])
    assert set(listed) == {match.group(1, 3, 4) for match in titles}
    support = (ROOT / "docs" / "reference" / "protocol-support.md").read_text()
    for api, key, version in listed:
        [(low, high)] = re.findall(
            rf"^\| {key} \| \[{api}\].* (\d+)-(\d+) \|$", support, re.MULTILINE
        )
        assert int(low) <= int(version) <= int(high)


def test_the_reader_reads_each_batch_of_the_page() -> None:
    records = list(read_records(BATCH + CONTROL_BATCH))
    assert [record.offset for record in records] == [40, 41, 42]
    assert classic_group.decode_assignment(SHARE)[2] == TopicPartition("orders", 2)
    assert classic_group.decode_subscription(SUBSCRIPTION) == {"orders"}


def test_the_varints_of_the_page_are_right() -> None:
    rows = re.findall(r"^\| (-?\d+) \| `([0-9a-f ]+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 6
    for value, encoded in rows:
        assert encode_varint(int(value)).hex(" ") == encoded


def test_the_check_value_of_the_crc_is_right() -> None:
    prose = " ".join(PAGE.split())
    [(text, value)] = re.findall(r"CRC-32C of the nine bytes `(\w+)` is `0x([0-9A-F]{8})`", prose)
    assert crc32c(text.encode()) == int(value, 16)


def test_the_error_codes_of_the_page_are_right() -> None:
    rows = re.findall(r"^\| (-?\d+) ([A-Z_]+) \|", PAGE, re.MULTILINE)
    assert len(rows) > 15
    for code, name in rows:
        assert ErrorCode(int(code)).name == name


def test_the_range_example_of_the_page_is_right() -> None:
    rows = re.findall(r"^\| `(m\d)` \| ([\d, ]+) \|$", PAGE, re.MULTILINE)
    members = {member: MemberSubscription(frozenset({"t"})) for member, _ in rows}
    assert len(members) == 4
    shares = RangeAssignor().assign(members, {"t": 10})
    for member, partitions in rows:
        assert [each.partition for each in shares[member]] == [
            int(n) for n in partitions.split(",")
        ]
