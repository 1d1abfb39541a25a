"""The group APIs through the broker, in every version, as bytes: from FindCoordinator to a durable commit."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.coordinator.state.records import GenerationRecord, OffsetCommit, decode_records
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.group_harness import subscription


class Groups(BrokerHarness):
    """A broker with a topic t of two partitions and its group coordinator."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("group_initial_rebalance_delay_ms", 0)
        options.setdefault("offsets_topic_num_partitions", 4)
        super().__init__(**options)
        self.create_topic("t", 2)
        self.call(FindCoordinatorRequest(coordinator_keys=["g"]))

    def join(self, member: str = "", version: int = 9, **fields: Any) -> Any:
        fields.setdefault("protocol_type", "consumer")
        fields.setdefault(
            "protocols", [JoinGroupRequestProtocol(name="range", metadata=subscription("t"))]
        )
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member,
            **fields,
        )
        return self.call(request, version)

    def joined(self, version: int = 9) -> Any:
        response = self.join(version=version)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            response = self.join(response.member_id, version)
        assert response.error_code == ErrorCode.NONE
        return response

    def synced(self, joined: Any, version: int = 5, **fields: Any) -> Any:
        fields.setdefault("protocol_type", "consumer")
        fields.setdefault("protocol_name", "range")
        request = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"yours")
            ],
            **fields,
        )
        return self.call(request, version)

    def commit(
        self, offsets: dict[tuple[str, int], int], version: int = 8, **fields: Any
    ) -> dict[tuple[str, int], int]:
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (name, index), offset in offsets.items():
            topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name, partitions=[]))
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata="m"
                )
            )
        request = OffsetCommitRequest(group_id="g", topics=list(topics.values()), **fields)
        response = self.call(request, version)
        return {
            (topic.name, partition.partition_index): partition.error_code
            for topic in response.topics
            for partition in topic.partitions
        }

    def committed(self) -> dict[tuple[str, int], int]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (group,) = self.call(request, 8).groups
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in group.topics
            for partition in topic.partitions
        }


@pytest.fixture
def broker() -> Groups:
    return Groups()


# --- FindCoordinator ---


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_coordinator_is_this_broker_at_the_address_that_the_client_used(version):
    harness = BrokerHarness(broker_id=3)
    request = FindCoordinatorRequest(key="g")
    response = harness.call(request, version, listener=("10.0.0.7", 1234))
    assert (response.error_code, response.node_id) == (ErrorCode.NONE, 3)
    assert (response.host, response.port) == ("10.0.0.7", 1234)
    assert harness.broker.services.topics.require("__consumer_offsets").partitions_count == 50


def test_several_coordinators_are_found_at_once(broker):
    request = FindCoordinatorRequest(coordinator_keys=["a", "b"])
    found = broker.call(request, 4).coordinators
    assert [(entry.key, entry.error_code, entry.port) for entry in found] == [
        ("a", ErrorCode.NONE, 9092),
        ("b", ErrorCode.NONE, 9092),
    ]


@pytest.mark.parametrize("key_type", [2, 9])
def test_coordinators_of_other_things_are_refused_for_good(broker, key_type):
    old = broker.call(FindCoordinatorRequest(key="x", key_type=key_type), 3)
    (new,) = broker.call(
        FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type), 4
    ).coordinators
    assert old.error_code == new.error_code == ErrorCode.INVALID_REQUEST
    assert str(key_type) in new.error_message
    assert (new.node_id, new.port) == (-1, -1)


# --- the group protocol in every version ---


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_in_every_version(broker, version):
    response = broker.joined(version)
    assert (response.generation_id, response.protocol_name) == (1, "range")
    assert response.leader == response.member_id
    assert [bytes(member.metadata) for member in response.members] == [subscription("t")]


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_has_an_error_in_every_version(broker, version):
    response = broker.join("stranger", version)
    assert (response.error_code, response.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "stranger")
    assert response.members == []


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None), (9, None)])
def test_a_refused_join_names_no_protocol(broker, version, name):
    assert broker.join("stranger", version).protocol_name == name


def test_a_described_group_has_all_authorized_operations_if_requested(broker):
    broker.joined()
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    assert broker.call(request, 5).groups[0].authorized_operations == 3400
    request = DescribeGroupsRequest(groups=["g"])
    assert broker.call(request, 5).groups[0].authorized_operations == -2147483648


@pytest.mark.parametrize("version", range(6))
def test_a_member_syncs_in_every_version(broker, version):
    response = broker.synced(broker.joined(), version)
    assert (response.error_code, bytes(response.assignment)) == (ErrorCode.NONE, b"yours")


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_from_version_5_a_sync_must_name_its_protocol(broker, missing):
    response = broker.synced(broker.joined(), 5, **{missing: None})
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
def test_a_member_sends_heartbeats_in_every_version(broker, version):
    joined = broker.joined()
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert broker.call(request, version).error_code == ErrorCode.NONE
    request = HeartbeatRequest(group_id="g", generation_id=2, member_id=joined.member_id)
    assert broker.call(request, version).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves_in_every_version(broker, version):
    joined = broker.joined()
    request = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
    if version >= 3:
        request.members = [MemberIdentity(member_id=joined.member_id)]
    response, again = broker.call(request, version), broker.call(request, version)
    assert response.error_code == ErrorCode.NONE
    if version < 3:
        assert response.members == []
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        assert [member.error_code for member in response.members] == [ErrorCode.NONE]
        assert again.error_code == ErrorCode.NONE
        assert [member.error_code for member in again.members] == [ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", range(6))
def test_groups_are_described_in_every_version(broker, version):
    broker.synced(broker.joined())
    stable, dead = broker.call(DescribeGroupsRequest(groups=["g", "x"]), version).groups
    assert (stable.group_state, stable.protocol_type) == ("Stable", "consumer")
    (member,) = stable.members
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
    assert bytes(member.member_assignment) == b"yours"
    assert (dead.group_state, dead.error_code) == ("Dead", ErrorCode.NONE)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(broker, version):
    broker.synced(broker.joined())
    response = broker.call(ListGroupsRequest(), version)
    (group,) = response.groups
    assert (group.group_id, group.protocol_type) == ("g", "consumer")
    assert group.group_state == ("Stable" if version >= 4 else "")
    assert group.group_type == ("classic" if version >= 5 else "")


# --- offsets in every version ---


@pytest.mark.parametrize("version", range(2, 9))
def test_offsets_are_committed_in_every_version(broker, version):
    assert broker.commit({("t", 0): 5, ("t", 1): 6}, version) == {("t", 0): 0, ("t", 1): 0}
    assert broker.committed() == {("t", 0): 5, ("t", 1): 6}


def test_a_commit_for_a_missing_partition_is_refused_for_that_partition_only(broker):
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.commit({("t", 0): 5, ("t", 2): 6, ("u", 0): 7, ("t", -1): 8}) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 2): missing,
        ("t", -1): missing,
        ("u", 0): missing,
    }
    assert broker.commit({("u", 0): 7}) == {("u", 0): missing}
    assert broker.committed() == {("t", 0): 5}


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_of_one_group_are_fetched_in_every_version(broker, version):
    broker.commit({("t", 0): 5})
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    response = broker.call(OffsetFetchRequest(group_id="g", topics=topics), version)
    assert response.error_code == ErrorCode.NONE
    assert [
        (entry.committed_offset, entry.metadata, entry.error_code)
        for entry in response.topics[0].partitions
    ] == [(5, "m", 0), (-1, "", 0)]


@pytest.mark.parametrize("version", range(2, 8))
def test_null_topics_ask_for_all(broker, version):
    broker.commit({("t", 0): 5})
    response = broker.call(OffsetFetchRequest(group_id="g", topics=None), version)
    assert [entry.committed_offset for entry in response.topics[0].partitions] == [5]
    assert broker.call(OffsetFetchRequest(group_id="g", topics=[]), version).topics == []


def test_offsets_of_several_groups_are_fetched_at_once(broker):
    broker.commit({("t", 0): 5})
    wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id="g", topics=wanted),
            OffsetFetchRequestGroup(group_id="other", topics=wanted),
        ],
        require_stable=True,
    )
    assert [
        (group.group_id, group.topics[0].partitions[0].committed_offset)
        for group in broker.call(request, 8).groups
    ] == [("g", 5), ("other", -1)]


@pytest.mark.parametrize("version", [1, 2, 7, 8])
def test_offset_fetch_before_the_coordinator_exists_answers_not_coordinator(version):
    harness = BrokerHarness()
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    )
    if version == 8:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    response = harness.call(request, version)
    expected = ErrorCode.NOT_COORDINATOR
    if version == 1:
        (entry,) = response.topics[0].partitions
        assert (entry.error_code, entry.committed_offset) == (expected, -1)
    elif version == 8:
        assert response.groups[0].error_code == expected
    else:
        assert (response.error_code, response.topics) == (expected, [])


# --- the whole ---


def test_group_and_offsets_survive_a_restart_and_a_crash(broker):
    joined = broker.joined()
    broker.synced(joined)
    fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    assert broker.commit({("t", 0): 5}, **fields) == {("t", 0): 0}
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    for again in (broker.restart, broker.crash):
        again()
        assert broker.call(heartbeat).error_code == ErrorCode.NONE
        assert broker.committed() == {("t", 0): 5}
        assert broker.synced(joined).error_code == ErrorCode.NONE


def test_a_commit_is_answered_after_the_sync_not_before(broker):
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)],
            )
        ],
    )
    pending = broker.send(request)
    assert not pending.done
    assert broker.sync()
    assert pending.done


def test_an_expired_member_is_removed_by_the_broker_s_clock(broker):
    broker.synced(broker.joined())
    broker.advance(10_000)
    (group,) = broker.call(ListGroupsRequest()).groups
    assert group.group_state == "Empty"


def test_deleting_a_topic_deletes_its_committed_offsets(broker):
    broker.create_topic("u", 1)
    broker.commit({("t", 0): 5, ("u", 0): 6})
    broker.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6)
    assert broker.committed() == {("u", 0): 6}
    broker.restart()
    assert broker.committed() == {("u", 0): 6}


def test_a_consumer_can_read_the_records_of_the_offsets_topic(broker):
    joined = broker.joined()
    broker.synced(joined)
    broker.commit({("t", 0): 5}, generation_id_or_member_epoch=1, member_id=joined.member_id)
    partition = broker.broker.services.groups.partition_for("g")
    fetched = broker.fetch("__consumer_offsets", 0, partition)
    records = [record for _, record in decode_records(bytes(fetched.records))]
    assert [type(record) for record in records] == [
        GenerationRecord,
        GenerationRecord,
        OffsetCommit,
    ]
