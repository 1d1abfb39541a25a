"""DeleteGroups and OffsetDelete in the broker. The tests of the coordinator have the rest."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.fixtures.broker_harness import BrokerHarness


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness(offsets_topic_num_partitions=3)
    made.create_topic("t", partitions=2)
    made.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=5) for index in (0, 1)
    ]
    for group in ("g", "h"):
        made.call(
            OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=-1,
                topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
            )
        )
    return made


def committed(harness, group: str = "g") -> list[int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    (found,) = harness.call(request).groups
    return [part.partition_index for topic in found.topics for part in topic.partitions]


def delete_offsets(harness, *wanted: tuple[str, int], group: str = "g"):
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
        )
        for name, index in wanted
    ]
    return harness.call(OffsetDeleteRequest(group_id=group, topics=topics))


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("again", ["restart", "crash"])
def test_groups_are_durably_deleted_before_the_response(harness, version, again):
    pending = harness.send(DeleteGroupsRequest(groups_names=["g", "none", "g"]), version)
    assert not pending.done, "not durable yet"
    harness.sync()
    assert [(r.group_id, r.error_code) for r in pending.response.results] == [
        ("g", 0),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    getattr(harness, again)()
    assert (committed(harness), committed(harness, "h")) == ([], [0, 1])


def test_offsets_are_durably_deleted_before_the_response(harness):
    response = delete_offsets(harness, ("t", 0), ("none", 3), ("t", 9))
    assert response.error_code == 0
    assert {
        (t.name, p.partition_index, ErrorCode(p.error_code))
        for t in response.topics
        for p in t.partitions
    } == {
        ("t", 0, ErrorCode.NONE),
        ("t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
    harness.crash()
    assert committed(harness) == [1]


def test_a_topic_that_occurs_twice_has_one_result(harness):
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (9, 0, -1)]
    topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions)]
    (topic,) = harness.call(OffsetDeleteRequest(group_id="g", topics=topics)).topics
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {p.partition_index: p.error_code for p in topic.partitions} == {
        0: ErrorCode.NONE,
        9: unknown,
        -1: unknown,
    }
    assert committed(harness) == [1]


def test_no_group_has_an_empty_name(harness):
    response = delete_offsets(harness, ("t", 0), ("t", 9), group="")
    assert (response.error_code, response.topics) == (ErrorCode.INVALID_GROUP_ID, [])


def test_offsets_of_an_unknown_group(harness):
    response = delete_offsets(harness, ("t", 0), ("none", 0), group="none")
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_group_requests_before_the_first_group_get_an_error():
    harness = BrokerHarness()
    (result,) = harness.call(DeleteGroupsRequest(groups_names=["g"])).results
    assert result.error_code == ErrorCode.NOT_COORDINATOR
    assert delete_offsets(harness, ("t", 0)).error_code == ErrorCode.NOT_COORDINATOR
