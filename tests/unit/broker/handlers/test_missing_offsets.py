"""Responses have -1 if there is no offset: a default of 0 would make a consumer read from the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.codec import Message, Structure
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.fixtures.broker_harness import BrokerHarness, batch, fetch_request, produce_request

GONE = 7
"""The number of a partition that the topic does not have."""
NAMES = ("offset", "watermark")


def offsets_in(value: Any) -> Iterator[tuple[str, int]]:
    """Yield the name and the value of every field that is an offset."""
    if isinstance(value, list):
        for item in value:
            yield from offsets_in(item)
    elif isinstance(value, Structure):
        for name in value.__slots__:
            field = getattr(value, name)
            if isinstance(field, int) and name.endswith(NAMES):
                yield name, field
            else:
                yield from offsets_in(field)


def errors_in(value: Any) -> set[int]:
    """Return the error codes of all partitions."""
    if isinstance(value, list):
        return set().union(*map(errors_in, value))
    if not isinstance(value, Structure):
        return set()
    own = {getattr(value, "error_code", 0)}
    return own.union(*(errors_in(getattr(value, name)) for name in value.__slots__))


REQUESTS: dict[str, Message] = {
    "produce": produce_request("a", GONE, batch(b"x")),
    "fetch": fetch_request(("a", GONE, 0), max_wait_ms=0),
    "list_offsets": ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name="a", partitions=[ListOffsetsPartition(partition_index=GONE, timestamp=-1)]
            )
        ]
    ),
    "offset_for_leader_epoch": OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="a", partitions=[OffsetForLeaderPartition(partition=GONE, leader_epoch=0)]
            )
        ]
    ),
    "delete_records": DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name="a", partitions=[DeleteRecordsPartition(partition_index=GONE, offset=0)]
            )
        ]
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_an_error_carries_no_offset(name: str) -> None:
    harness = BrokerHarness()
    harness.create_topic("a")
    harness.produce("a", b"x")
    response = harness.call(REQUESTS[name])
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in errors_in(response)
    found = dict(offsets_in(response))
    assert found
    assert set(found.values()) == {-1}, found


def test_a_time_without_records_has_no_offset() -> None:
    harness = BrokerHarness()
    harness.create_topic("a")
    wanted = ListOffsetsPartition(partition_index=0, timestamp=1)
    response = harness.call(
        ListOffsetsRequest(topics=[ListOffsetsTopic(name="a", partitions=[wanted])])
    )
    assert dict(offsets_in(response)) == {"offset": -1}


def test_a_partition_without_a_commit_has_no_offset() -> None:
    harness = BrokerHarness(offsets_topic_num_partitions=1)
    harness.create_topic("a")
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    topic = OffsetFetchRequestTopics(name="a", partition_indexes=[0, GONE])
    group = OffsetFetchRequestGroup(group_id="g", topics=[topic])
    response = harness.call(OffsetFetchRequest(groups=[group]))
    assert list(offsets_in(response)) == [("committed_offset", -1)] * 2
