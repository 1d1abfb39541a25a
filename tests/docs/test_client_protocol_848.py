"""Compare the layouts of docs/reference/client-protocol-kip848.md with the schemas, its examples with the codec."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.frame import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    response_class,
)
from headrace.protocol.messages import consumer_group_heartbeat as beat
from headrace.protocol.messages import heartbeat, metadata
from headrace.protocol.messages import leave_group as leave
from headrace.protocol.messages import offset_commit as commit
from headrace.protocol.messages import offset_fetch as fetch
from tests.docs.page_layouts import NUMBERS, Field, Walk, parse_layout
from tools.message_schema import FieldSchema, parse_schema

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "client-protocol-kip848.md").read_text()
TITLE = re.compile(r"(\w+) (request|response), key (\d+), version (\d+)")
BLOCK = re.compile(r"^```(flexible|bytes)\n([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LAYOUTS = {
    title: parse_layout(text) for kind, title, text in BLOCK.findall(PAGE) if kind == "flexible"
}
EXAMPLES = {title: text for kind, title, text in BLOCK.findall(PAGE) if kind == "bytes"}

MEMBER = "0d8a7c1e-53a5-4b0e-9b5e-2f1d6a7c9e10"
TOPIC_ID = bytes.fromhex("6f1b0c5ad2e34f7f8a9b0c1d2e3f4051")
OWNED = beat.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1, 2])
GIVEN = beat.ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1, 2])

MESSAGES = {
    "Heartbeat request in version 4": heartbeat.HeartbeatRequest(
        group_id="billing", generation_id=5, member_id="billing-1-7f3a"
    ),
    "Heartbeat response that stops the member": heartbeat.HeartbeatResponse(headrace_stop=True),
    "LeaveGroup request that stops a member": leave.LeaveGroupRequest(
        group_id="billing",
        headrace_stop=leave.HeadraceStop(member_id="billing-1-7f3a", timeout_ms=60_000),
    ),
    "ConsumerGroupHeartbeat request that joins": beat.ConsumerGroupHeartbeatRequest(
        group_id="billing",
        member_id=MEMBER,
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    ),
    "ConsumerGroupHeartbeat response with an assignment": beat.ConsumerGroupHeartbeatResponse(
        member_id=MEMBER,
        member_epoch=5,
        heartbeat_interval_ms=5_000,
        assignment=beat.Assignment(topic_partitions=[GIVEN]),
    ),
    "ConsumerGroupHeartbeat request that says what is owned": beat.ConsumerGroupHeartbeatRequest(
        group_id="billing", member_id=MEMBER, member_epoch=5, topic_partitions=[OWNED]
    ),
    "ConsumerGroupHeartbeat request with nothing new": beat.ConsumerGroupHeartbeatRequest(
        group_id="billing", member_id=MEMBER, member_epoch=5
    ),
    "Metadata request by id": metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(topic_id=TOPIC_ID, name=None)],
        allow_auto_topic_creation=False,
    ),
    "OffsetFetch request of a member": fetch.OffsetFetchRequest(
        groups=[
            fetch.OffsetFetchRequestGroup(
                group_id="billing",
                member_id=MEMBER,
                member_epoch=5,
                topics=[fetch.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])],
            )
        ]
    ),
    "OffsetCommit request of a member": commit.OffsetCommitRequest(
        group_id="billing",
        generation_id_or_member_epoch=5,
        member_id=MEMBER,
        topics=[
            commit.OffsetCommitRequestTopic(
                name="orders",
                partitions=[
                    commit.OffsetCommitRequestPartition(
                        partition_index=0,
                        committed_offset=43,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                ],
            )
        ],
    ),
}


STOP = {
    kind == "bool": LAYOUTS[f"Tag 26738 of {where}"]
    for where, kind in (("a heartbeat's response", "bool"), ("LeaveGroup", "struct"))
}
"""The content of the tag in section 13: a field that asks the member to stop, or that names the member to stop."""


class FlexibleWalk(Walk):
    """Reads also the types of flexible versions."""

    def _field(self, each: Field, depth: int) -> Iterator[str]:
        start = self.position
        if each.type.startswith("carray"):
            count = self._unsigned() - 1
            shown = "null" if count < 0 else f"{count} element" + "s" * (count != 1)
            yield from self._lines(start, depth, each.name, shown)
            element = [Field(each.name, each.type.partition(" of ")[2])]
            for _ in range(count):
                yield from self.fields(each.children or element, depth + 1)
        elif each.type == "struct?":
            there = self._number("int8") >= 0
            yield from self._lines(start, depth, each.name, "there" if there else "null")
            if there:
                yield from self.fields(each.children, depth + 1)
        elif each.type == "tags":
            count = self._unsigned()
            yield from self._lines(start, depth, each.name, str(count))
            for _ in range(count):
                yield from self._tag(depth + 1)
        else:
            yield from self._lines(start, depth, each.name, self._value(each.type))

    def _tag(self, depth: int) -> Iterator[str]:
        """Yield the lines of a tag of Headrace, as the section on stopping shows it."""
        start = self.position
        tag = self._unsigned()
        yield from self._lines(start, depth, "tag", str(tag))
        start = self.position
        size = self._unsigned()
        yield from self._lines(start, depth, "length", str(size))
        end = self.position + size
        yield from self.fields(STOP[size == 1], depth + 1)
        assert self.position == end, "the tag has another length"

    def _value(self, kind: str) -> str:
        if kind in NUMBERS or kind == "string?":
            return super()._value(kind)
        if kind == "uuid":
            return self._take(16).hex()
        length = self._unsigned() - 1
        if length < 0:
            assert kind == "cstring?", f"null where {kind} is not nullable"
            return "null"
        return json.dumps(self._take(length).decode())

    def _take(self, length: int) -> bytes:
        taken = self.data[self.position : self.position + length]
        assert len(taken) == length, "the bytes end inside a field"
        self.position += length
        return taken

    def _unsigned(self) -> int:
        zigzag = self._zigzag()
        return zigzag * 2 if zigzag >= 0 else -zigzag * 2 - 1


def _message_layout(api: str, kind: str) -> tuple[list[Field], int, int]:
    [title] = [title for title in LAYOUTS if title.startswith(f"{api} {kind}, ")]
    match = TITLE.fullmatch(title)
    assert match is not None, title
    header = LAYOUTS[f"{kind.title()} header, flexible"]
    return [*header, *LAYOUTS[title]], int(match[3]), int(match[4])


def expected(title: str) -> str:
    """Return the block under a title."""
    layout, key, version = _message_layout(*title.split()[:2])
    header = RequestHeader(key, version, 7, "billing-1")
    encode = encode_request if " request" in title else encode_response
    data = b"".join(encode(header, MESSAGES[title]))  # type: ignore[arg-type]  # no file ranges here
    walk = FlexibleWalk(data)
    text = "".join(line + "\n" for line in walk.fields(layout))
    assert walk.position == len(data)
    return text


def described(each: FieldSchema, version: int) -> Field:
    """Return a field of a schema as the page shows it."""
    null = "?" if version in each.nullable else ""
    if each.struct is None and each.is_array:
        return Field(each.name, f"carray{null} of {each.type.replace('string', 'cstring')}")
    if each.struct is None:
        return Field(each.name, each.type.replace("string", "cstring") + null)
    kind = "carray" if each.is_array else "struct"
    children = [described(one, version) for one in each.struct.fields if version in one.versions]
    return Field(each.name, kind + null, [*children, Field("tags", "tags")])


def test_this_file_checks_every_example() -> None:
    assert EXAMPLES.keys() == MESSAGES.keys()


@pytest.mark.parametrize("title", MESSAGES)
def test_the_codec_writes_and_reads_each_example(title: str) -> None:
    assert EXAMPLES[title] == expected(title)
    data = bytes.fromhex("".join(line[:48] for line in EXAMPLES[title].splitlines()))
    _, key, version = _message_layout(*title.split()[:2])
    frame = memoryview(data)[4:]
    if " request" in title:
        assert decode_request(frame)[1] == MESSAGES[title]
    else:
        cls = response_class(key)
        assert cls is not None
        assert decode_response(frame, cls, version) == (7, MESSAGES[title])


@pytest.mark.parametrize("title", [title for title in LAYOUTS if TITLE.fullmatch(title)])
def test_each_layout_equals_its_schema(title: str) -> None:
    match = TITLE.fullmatch(title)
    assert match is not None
    api, kind, key, version = match[1], match[2], int(match[3]), int(match[4])
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    schemas = parse_schema(ROOT / "tools" / "schemas" / f"{name}.txt")
    [schema] = [each for each in schemas if each.kind == kind]
    assert schema.api_key == key
    assert version >= schema.first_flexible
    fields = [
        described(each, version)
        for each in schema.fields
        if version in each.versions and each.tag is None
    ]
    assert LAYOUTS[title] == [*fields, Field("tags", "tags")]


@pytest.mark.parametrize(
    ("api", "kind", "layout"),
    [
        ("heartbeat", "response", STOP[True]),
        ("consumer_group_heartbeat", "response", STOP[True]),
        ("leave_group", "request", STOP[False]),
    ],
)
def test_the_layout_of_the_tag_equals_its_schema(api: str, kind: str, layout: list[Field]) -> None:
    schemas = parse_schema(ROOT / "tools" / "schemas" / f"{api}.txt")
    [schema] = [each for each in schemas if each.kind == kind]
    [field] = [each for each in schema.fields if each.tag == 26738]
    if field.struct is None:
        assert layout == [Field("stop", described(field, 5).type)]
    else:
        assert described(field, 5).children == layout
