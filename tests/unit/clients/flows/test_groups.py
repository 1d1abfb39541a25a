"""Coordinators, offsets and membership against scripted answers."""

from __future__ import annotations

import pytest

from headrace.clients.flows.classic_group import (
    JOIN_CHANNEL,
    ClassicMemberSettings,
    Membership,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    heartbeat,
    leave,
)
from headrace.clients.flows.effects import GROUP_CHANNEL, ClientState
from headrace.clients.flows.groups import describe_groups, list_groups
from headrace.clients.flows.offsets import OffsetAndMetadata, commit_offsets, committed_offsets
from headrace.errors import ApiError, ErrorCode, ProtocolError, TransportError
from headrace.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeResponse,
    TopicPartitions,
)
from headrace.protocol.messages.consumer_group_describe import DescribedGroup as ConsumerGroup
from headrace.protocol.messages.consumer_group_describe import Member as ConsumerMember
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.types import TopicPartition
from tests.unit.clients.scripted import ScriptedDriver, known_state, metadata_response

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = ClassicMemberSettings(group_id="g")

NOT_OF_THE_OTHER_KIND = ConsumerGroupDescribeResponse(
    groups=[ConsumerGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)]
)


def coordinated(answer, nodes=(1,)):
    """Answer FindCoordinator with one node after the other (the last for ever), the rest by `answer`."""
    left = list(nodes)

    def reply(call):
        if isinstance(call.request, MetadataRequest):
            return metadata_response({"t": {0: 1, 1: 2}})
        if isinstance(call.request, FindCoordinatorRequest):
            node = left.pop(0) if len(left) > 1 else left[0]
            found = Coordinator(key="g", node_id=node, host=f"b{node}", port=9000 + node)
            return FindCoordinatorResponse(coordinators=[found])
        assert call.channel in {GROUP_CHANNEL, JOIN_CHANNEL}
        return answer(call)

    return reply


def committed_response(code: int) -> OffsetCommitResponse:
    part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])


def test_a_commit_follows_the_coordinator() -> None:
    def answer(call):
        return committed_response(ErrorCode.NOT_COORDINATOR if call.node == 1 else 0)

    driver = ScriptedDriver(coordinated(answer, nodes=(1, 2)))
    state = known_state({})
    driver.run(commit_offsets(state, "g", {T0: OffsetAndMetadata(5)}))
    assert state.coordinators == {"g": 2}
    assert [
        call.node for call in driver.calls if isinstance(call.request, OffsetCommitRequest)
    ] == [1, 2]


def test_a_coordinator_that_cannot_be_reached_is_looked_for_again() -> None:
    def answer(call):
        if call.node == 1:
            raise TransportError("reset")
        return committed_response(0)

    driver = ScriptedDriver(coordinated(answer, nodes=(1, 2)))
    driver.run(commit_offsets(known_state({}), "g", {T0: OffsetAndMetadata(5)}))


def test_an_old_brokers_answer_to_find_coordinator_is_read_too() -> None:
    def answer(call):
        if isinstance(call.request, FindCoordinatorRequest):
            return FindCoordinatorResponse(node_id=7, host="h", port=1)
        if isinstance(call.request, MetadataRequest):
            return metadata_response({})
        return committed_response(0)

    state = ClientState()
    ScriptedDriver(answer).run(commit_offsets(state, "g", {T0: OffsetAndMetadata(5)}))
    assert state.metadata.brokers[7].host == "h"


def test_a_loading_coordinator_is_waited_for() -> None:
    codes = iter([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE])
    driver = ScriptedDriver(coordinated(lambda _call: committed_response(next(codes))))
    driver.run(commit_offsets(known_state({}), "g", {T0: OffsetAndMetadata(5)}))
    assert len(driver.sleeps) == 1


def test_a_refused_commit_is_raised() -> None:
    driver = ScriptedDriver(
        coordinated(lambda _call: committed_response(ErrorCode.ILLEGAL_GENERATION))
    )
    with pytest.raises(ApiError) as raised:
        driver.run(commit_offsets(known_state({}), "g", {T0: OffsetAndMetadata(5)}))
    assert raised.value.code == ErrorCode.ILLEGAL_GENERATION


def test_committed_offsets_in_both_forms_of_the_answer() -> None:
    new = OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                group_id="g",
                topics=[
                    OffsetFetchResponseTopics(
                        name="t",
                        partitions=[
                            OffsetFetchResponsePartitions(
                                partition_index=0, committed_offset=5, metadata="m"
                            ),
                            OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1),
                        ],
                    )
                ],
            )
        ]
    )
    old = OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name="t",
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=0, committed_offset=5, metadata="m"
                    )
                ],
            )
        ]
    )
    for response in (new, old):
        driver = ScriptedDriver(coordinated(lambda _call, response=response: response))
        found = driver.run(committed_offsets(known_state({}), "g", [T0, T1]))
        assert found == {T0: OffsetAndMetadata(5, "m")}
        [request] = driver.requests(OffsetFetchRequest)
        assert request.groups[0].topics[0].partition_indexes == [0, 1]
        assert request.topics[0].partition_indexes == [0, 1]


def test_offsets_that_a_transaction_may_change_are_waited_for() -> None:
    codes = iter([ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE])

    def answer(_call):
        part = OffsetFetchResponsePartitions(
            partition_index=0, committed_offset=5, error_code=next(codes)
        )
        topic = OffsetFetchResponseTopics(name="t", partitions=[part])
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    driver = ScriptedDriver(coordinated(answer))
    assert driver.run(committed_offsets(known_state({}), "g", None)) == {T0: OffsetAndMetadata(5)}


def test_a_heartbeat_returns_the_error_code() -> None:
    member = Membership("m", 3)
    driver = ScriptedDriver(
        coordinated(lambda _call: HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    )
    response = driver.run(heartbeat(known_state({}), SETTINGS, member))
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_leaving_is_tried_once() -> None:
    member = Membership("m", 3)
    driver = ScriptedDriver(coordinated(lambda _call: LeaveGroupResponse()))
    driver.run(leave(known_state({}), SETTINGS, member))
    [request] = driver.requests(LeaveGroupRequest)
    assert request.member_id == "m"
    assert [identity.member_id for identity in request.members] == ["m"]

    def lost(_call):
        raise TransportError("reset")

    driver = ScriptedDriver(coordinated(lost))
    with pytest.raises(TransportError):
        driver.run(leave(known_state({}), SETTINGS, member))
    assert driver.sleeps == []


def test_subscriptions_of_other_clients_versions_are_read() -> None:
    assert decode_subscription(encode_subscription(frozenset({"a", "b"}))) == {"a", "b"}
    # Version 0 from the wire: version, one topic, no user data.
    assert decode_subscription(b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff") == {"t"}
    newer = b"\x00\x63" + encode_subscription(frozenset({"t"}))[2:] + b"\xff" * 12
    assert decode_subscription(newer) == {"t"}
    with pytest.raises(ProtocolError):
        decode_subscription(b"\x00")
    assert decode_assignment(b"") == []


def test_groups_of_all_brokers_are_listed() -> None:
    def answer(call):
        if isinstance(call.request, MetadataRequest):
            return metadata_response({})
        entry = ListedGroup(
            group_id=f"g{3 - call.node}", protocol_type="consumer", group_state="Stable"
        )
        return ListGroupsResponse(groups=[entry])

    listings = ScriptedDriver(answer).run(list_groups(ClientState()))
    assert [(group.group_id, group.coordinator) for group in listings] == [("g1", 2), ("g2", 1)]


@pytest.mark.parametrize("assignment", [b"x", b"\x00\x01\xff\xff", b"\x00\x00\x00\x00\x00\x09"])
def test_an_unreadable_member_assignment_does_not_prevent_describing_the_group(
    assignment: bytes,
) -> None:
    member = DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_assignment=assignment
    )
    described = DescribedGroup(group_id="g", protocol_type="consumer", members=[member])
    driver = ScriptedDriver(coordinated(lambda _call: DescribeGroupsResponse(groups=[described])))
    group = driver.run(describe_groups(known_state({}), ["g"]))["g"]
    assert group.members[0].assignment == ()


def test_a_described_group_contains_the_assignment_of_each_member() -> None:
    member = DescribedGroupMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        member_assignment=encode_assignment([T0, T1]),
    )
    described = DescribedGroup(
        group_id="g",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=[member],
    )
    driver = ScriptedDriver(coordinated(lambda _call: DescribeGroupsResponse(groups=[described])))
    group = driver.run(describe_groups(known_state({}), ["g"]))["g"]
    assert (group.state, group.protocol, group.coordinator) == ("Stable", "range", 1)
    assert group.members[0].assignment == (T0, T1)


def test_a_group_that_does_not_exist_is_dead_in_every_version() -> None:
    for described in (
        DescribedGroup(group_id="g", group_state="Dead"),
        DescribedGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND),
    ):
        answers = [DescribeGroupsResponse(groups=[described]), NOT_OF_THE_OTHER_KIND]
        driver = ScriptedDriver(coordinated(lambda _call, answers=answers: answers.pop(0)))
        assert driver.run(describe_groups(known_state({}), ["g"]))["g"].state == "Dead"


def test_a_group_of_the_protocol_consumer_is_described_too() -> None:
    reads = [TopicPartitions(topic_id=bytes(16), topic_name="t", partitions=[0, 1])]
    member = ConsumerMember(
        member_id="m", client_id="c", client_host="h", assignment=Assignment(topic_partitions=reads)
    )
    found = ConsumerGroup(group_id="g", group_state="Stable", assignor_name="uniform")
    found.members = [member]
    answers = [
        DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state="Dead")]),
        ConsumerGroupDescribeResponse(groups=[found]),
    ]
    driver = ScriptedDriver(coordinated(lambda _call: answers.pop(0)))
    group = driver.run(describe_groups(known_state({}), ["g"]))["g"]
    assert (group.state, group.protocol, group.coordinator) == ("Stable", "uniform", 1)
    assert group.members[0].assignment == (T0, T1)


def test_a_broker_without_the_protocol_consumer_describes_classic_groups() -> None:
    answers = [
        DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state="Empty")]),
        ApiError.for_code(ErrorCode.UNSUPPORTED_VERSION, "not offered"),
    ]
    driver = ScriptedDriver(coordinated(lambda _call: answers.pop(0)))
    assert driver.run(describe_groups(known_state({}), ["g"]))["g"].state == "Empty"
