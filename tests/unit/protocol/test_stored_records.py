"""The records of `__consumer_offsets`, byte for byte as Apache Kafka 4.3 writes them.

The expected bytes were printed by Kafka's own classes (`MessageUtil.toVersionPrefixedByteBuffer` and
`toCoordinatorTypePrefixedByteBuffer`) for the values below.
"""

from __future__ import annotations

import struct

import pytest

from headrace.protocol.codec import Message
from headrace.protocol.messages.group_metadata_record import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from headrace.protocol.messages.offset_commit_record import OffsetCommitKey, OffsetCommitValue
from tests.fixtures.messages import joined

TIMESTAMP = 1_700_000_000_005
OFFSET_COMMITS = {
    0: "0000000000000000002a00046e6f74650000018bcfe56805",
    1: "0001000000000000002a00046e6f74650000018bcfe568050000018bcfe6eab8",
    2: "0002000000000000002a00046e6f74650000018bcfe56805",
    3: "0003000000000000002a0000000700046e6f74650000018bcfe56805",
    4: "0004000000000000002a00000007056e6f74650000018bcfe5680501001000000000000000010000000000000002",
}
GROUP_METADATA = {
    0: "00000008636f6e73756d657200000005000572616e6765ffff0000000100036d2d31000163000a2f3132372e302e302e31"
    "000027100000000201020000000103",
    1: "00010008636f6e73756d657200000005000572616e6765ffff0000000100036d2d31000163000a2f3132372e302e302e31"
    "0000ea60000027100000000201020000000103",
    2: "00020008636f6e73756d657200000005000572616e6765ffff0000018bcfe568050000000100036d2d31000163000a2f31"
    "32372e302e302e310000ea60000027100000000201020000000103",
    3: "00030008636f6e73756d657200000005000572616e6765ffff0000018bcfe568050000000100036d2d3100016900016300"
    "0a2f3132372e302e302e310000ea60000027100000000201020000000103",
    4: "000409636f6e73756d6572000000050672616e6765000000018bcfe5680502046d2d31026902630b2f3132372e302e302e"
    "310000ea600000271003010202030000",
}


def offset_commit(version: int) -> OffsetCommitValue:
    value = OffsetCommitValue(offset=42, metadata="note", commit_timestamp=TIMESTAMP)
    if version == 1:
        value.expire_timestamp = 1_700_000_099_000
    if version >= 3:
        value.leader_epoch = 7
    if version >= 4:
        value.topic_id = struct.pack(">qq", 1, 2)
    return value


def group_metadata(version: int) -> GroupMetadataValue:
    member = MemberMetadata(
        member_id="m-1",
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout=10_000,
        subscription=b"\x01\x02",
        assignment=b"\x03",
    )
    if version >= 1:
        member.rebalance_timeout = 60_000
    if version >= 3:
        member.group_instance_id = "i"
    value = GroupMetadataValue(
        protocol_type="consumer", generation=5, protocol="range", leader=None, members=[member]
    )
    if version >= 2:
        value.current_state_timestamp = TIMESTAMP
    return value


def assert_stored(message: Message, prefix: int, version: int, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert joined(message.encode(version, struct.pack(">h", prefix))) == data
    decoded, position = type(message).decode(memoryview(data), 2, version)
    assert position == len(data)
    assert decoded == message


@pytest.mark.parametrize("version", OFFSET_COMMITS)
def test_offset_commit_value(version: int) -> None:
    assert_stored(offset_commit(version), version, version, OFFSET_COMMITS[version])


@pytest.mark.parametrize("version", GROUP_METADATA)
def test_group_metadata_value(version: int) -> None:
    assert_stored(group_metadata(version), version, version, GROUP_METADATA[version])


def test_keys_carry_their_type() -> None:
    key = OffsetCommitKey(group="g", topic="flights", partition=3)
    assert_stored(key, OffsetCommitKey.API_KEY, 0, "00010001670007666c696768747300000003")
    assert_stored(GroupMetadataKey(group="g"), GroupMetadataKey.API_KEY, 0, "0002000167")
