"""A group whose state is larger than a segment of its topic."""

from __future__ import annotations

from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.sync_group import SyncGroupRequest
from tests.fixtures.broker_harness import BrokerHarness


def test_a_group_with_a_record_larger_than_a_segment_survives_a_crash():
    harness = BrokerHarness(
        offsets_topic_segment_bytes=1024,
        offsets_topic_num_partitions=1,
        group_initial_rebalance_delay_ms=0,
    )
    harness.call(FindCoordinatorRequest(coordinator_keys=["g"]))
    subscription = b"x" * 2000
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
    )
    request.member_id = harness.call(request).member_id
    joined = harness.call(request)
    assert joined.error_code == ErrorCode.NONE
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
    )
    assert harness.call(sync).error_code == ErrorCode.NONE
    harness.crash()
    (group,) = harness.call(DescribeGroupsRequest(groups=["g"])).groups
    assert group.group_state == "Stable"
    assert [member.member_metadata for member in group.members] == [subscription]
