"""Long requests: their result in steps is the same, and no step does more work than allowed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.bounds.request_pieces import OFFSETS_A_PIECE, in_pieces, joined
from headrace.broker.handlers.delete_acls import ACLS_AN_ANSWER
from headrace.broker.session import Session
from headrace.broker.waiting.steps import Work, finished
from headrace.errors import ErrorCode
from headrace.protocol.codec import Message
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
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
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.security.acls import Operation, PatternType, Permission, ResourceType
from tests.fixtures.broker_harness import BrokerHarness

MANY = 3_500


@pytest.fixture(scope="module")
def broad() -> BrokerHarness:
    harness = BrokerHarness(max_partitions=20_000, offsets_topic_num_partitions=1)
    harness.create_offsets_topic()
    harness.create_topic("t", partitions=MANY)
    return harness


def answered(harness: BrokerHarness, request: Message, version: int | None = None) -> Any:
    """Return the response to a request that takes several steps."""
    session = Session()
    pending = harness.send(request, version, session=session)
    steps = 0
    while harness.step():
        steps += 1
    assert steps
    while not pending.done:
        assert harness.sync()
    return pending.response


def commit(partitions: int) -> OffsetCommitRequest:
    wanted = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index)
        for index in range(partitions)
    ]
    topics = [
        OffsetCommitRequestTopic(name="none", partitions=wanted[:2]),
        OffsetCommitRequestTopic(name="t", partitions=wanted),
    ]
    return OffsetCommitRequest(group_id="g", topics=topics)


def test_offsets_of_many_partitions_are_committed_and_deleted_in_pieces(broad: BrokerHarness):
    none, topic = answered(broad, commit(MANY), 9).topics
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(p.partition_index, p.error_code) for p in none.partitions] == [
        (0, unknown),
        (1, unknown),
    ]
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
        (index, 0) for index in range(MANY)
    ]
    assert broad.broker.services.groups.offsets_count("g") == MANY
    indexes = [OffsetDeleteRequestPartition(partition_index=index) for index in range(1, MANY + 1)]
    request = OffsetDeleteRequest(
        group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=indexes)]
    )
    response = answered(broad, request)
    (topic,) = response.topics
    assert response.error_code == 0
    codes = {p.partition_index: p.error_code for p in topic.partitions}
    assert codes == dict.fromkeys(range(1, MANY), 0) | {MANY: unknown}
    assert broad.broker.services.groups.offsets_count("g") == 1
    (result,) = broad.call(DeleteGroupsRequest(groups_names=["g", "g"])).results
    assert result.error_code == 0


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 3], [999, 5], [1_000], [2_500, 0, 700, 1]])
def test_pieces_hold_everything_in_order(sizes: list[int]):
    topics = [
        OffsetCommitRequestTopic(
            name=f"t{number}",
            partitions=[OffsetCommitRequestPartition(partition_index=i) for i in range(size)],
        )
        for number, size in enumerate(sizes)
    ]
    pieces = list(in_pieces(topics))
    assert all(sum(len(t.partitions) for t in piece) <= OFFSETS_A_PIECE for piece in pieces)
    whole: list[OffsetCommitRequestTopic] = []
    for piece in pieces:
        whole = joined(whole, piece)
    assert whole == topics


def test_markers_without_permission_are_refused_one_by_one(broad: BrokerHarness):
    indexes = list(range(MANY)) * 2
    marker = WritableTxnMarker(
        producer_id=1, topics=[WritableTxnMarkerTopic(name="no", partition_indexes=indexes)]
    )
    (result,) = answered(broad, WriteTxnMarkersRequest(markers=[marker])).markers
    codes = [partition.error_code for partition in result.topics[0].partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2 * MANY


def test_many_markers_are_written_in_steps(broad: BrokerHarness):
    topics = [WritableTxnMarkerTopic(name="t", partition_indexes=list(range(MANY)))]
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, coordinator_epoch=0, topics=topics)
    (result,) = answered(broad, WriteTxnMarkersRequest(markers=[marker])).markers
    codes = [partition.error_code for partition in result.topics[0].partitions]
    assert codes == [0] * MANY


def test_a_marker_of_a_topic_that_is_deleted_meanwhile_is_not_waited_for(broad: BrokerHarness):
    broad.create_topic("gone")
    marker = WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        topics=[
            WritableTxnMarkerTopic(name="gone", partition_indexes=[0]),
            WritableTxnMarkerTopic(name="none", partition_indexes=list(range(MANY))),
        ],
    )
    pending = broad.send(WriteTxnMarkersRequest(markers=[marker]), session=Session())
    assert not pending.done
    broad.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")]))
    while broad.step() or broad.sync():
        pass
    (result,) = pending.response.markers
    assert result.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_partitions_that_do_not_exist_are_not_added_to_a_transaction(broad: BrokerHarness):
    topic = AddPartitionsToTxnTopic(name="t", partitions=list(range(MANY + 1)))
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="a", v3_and_below_topics=[topic]
    )
    (result,) = answered(broad, request, 3).results_by_topic_v3_and_below
    codes = [partition.partition_error_code for partition in result.results_by_partition]
    not_attempted = [ErrorCode.OPERATION_NOT_ATTEMPTED] * MANY
    assert codes == [*not_attempted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_epochs_and_coordinators_are_looked_up_in_steps(broad: BrokerHarness):
    wanted = [OffsetForLeaderPartition(partition=index) for index in range(MANY)]
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic="t", partitions=wanted)]
    )
    (topic,) = answered(broad, request).topics
    assert [p.partition for p in topic.partitions] == list(range(MANY))
    keys = [f"g{number}" for number in range(MANY)]
    found = answered(broad, FindCoordinatorRequest(coordinator_keys=keys)).coordinators
    assert [coordinator.key for coordinator in found] == keys


def test_records_of_many_partitions_are_deleted_in_steps(broad: BrokerHarness):
    wanted = [DeleteRecordsPartition(partition_index=i, offset=-1) for i in [*range(120), 7]]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)])
    (topic,) = answered(broad, request).topics
    assert [p.error_code for p in topic.partitions] == [*[0] * 120, ErrorCode.INVALID_REQUEST]


def test_topics_are_created_and_deleted_in_steps():
    harness = BrokerHarness()
    names = [f"t{number}" for number in range(60)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    seen = []
    session = Session()
    pending = harness.send(CreateTopicsRequest(topics=topics), session=session)
    while not pending.done:
        seen.append(len(harness.broker.services.topics))
        assert harness.step()
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) < 20
    assert [topic.error_code for topic in pending.response.topics] == [0] * 60
    states = [DeleteTopicState(name=name) for name in names]
    deleted = answered(harness, DeleteTopicsRequest(topics=states))
    assert [topic.error_code for topic in deleted.responses] == [0] * 60
    assert len(harness.broker.services.topics) == 0


def nothing() -> Work[None]:
    yield 0


@pytest.mark.slow
def test_offsets_of_a_deleted_topic_are_deleted_but_not_those_of_its_successor():
    harness = BrokerHarness(max_partitions=20_000, offsets_topic_num_partitions=1)
    harness.create_offsets_topic()
    harness.create_topic("t", partitions=MANY)
    for group in "abc":
        request = commit(MANY)
        request.group_id = group
        answered(harness, request, 9)
    groups = harness.broker.services.groups
    services = harness.broker.services
    deletion = services.topics.on_deleted("t")
    services.topics.on_deleted = lambda _: nothing()
    harness.delete_topic("t")
    next(deletion)
    counts = [groups.offsets_count(group) for group in "abc"]
    assert counts == [0, MANY, MANY]
    harness.now_ms += 1
    harness.create_topic("t", partitions=3)
    later = OffsetCommitRequestPartition(partition_index=2, committed_offset=7)
    harness.call(
        OffsetCommitRequest(
            group_id="c",
            topics=[OffsetCommitRequestTopic(name="t", partitions=[later])],
        )
    )
    finished(deletion)
    assert [groups.offsets_count(group) for group in "abc"] == [0, 0, 1]


@pytest.mark.slow
def test_acls_are_created_and_deleted_in_steps():
    harness = BrokerHarness(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
    )
    wanted = [
        AclCreation(
            resource_type=ResourceType.TOPIC,
            resource_name=f"t{number}",
            resource_pattern_type=PatternType.LITERAL,
            principal="User:a",
            host="*",
            operation=Operation.READ,
            permission_type=Permission.ALLOW,
        )
        for number in range(MANY)
    ]
    results = answered(harness, CreateAclsRequest(creations=wanted)).results
    assert [result.error_code for result in results] == [0] * MANY
    assert len(harness.broker.services.authorizer) == MANY
    every = DeleteAclsFilter(
        resource_type_filter=ResourceType.TOPIC,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        pattern_type_filter=PatternType.LITERAL,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    described = answered(
        harness,
        DescribeAclsRequest(
            resource_type_filter=ResourceType.TOPIC,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            pattern_type_filter=PatternType.LITERAL,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        ),
    ).resources
    assert {each.resource_name for each in described} == {f"t{number}" for number in range(MANY)}
    found = answered(harness, DeleteAclsRequest(filters=[every] * 40)).filter_results
    named = [len(result.matching_acls) for result in found]
    full = -(-ACLS_AN_ANSWER // MANY)
    assert named == [MANY] * full + [0] * (40 - full)
    codes = [result.error_code for result in found]
    assert codes == [0] * full + [ErrorCode.POLICY_VIOLATION] * (40 - full)
    assert len(harness.broker.services.authorizer) == 0


def test_all_users_are_described_in_steps() -> None:
    harness = BrokerHarness()
    users = [f"u{number:04}" for number in range(MANY)]
    upsertions = [
        ScramCredentialUpsertion(
            name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
        )
        for name in users
    ]
    for start in range(0, MANY, 100):
        request = AlterUserScramCredentialsRequest(upsertions=upsertions[start : start + 100])
        altered = harness.call(request, session=Session())
        assert {each.error_code for each in altered.results} == {0}
    described = answered(harness, DescribeUserScramCredentialsRequest(users=None))
    assert [each.user for each in described.results] == users


def test_all_transactions_are_listed_in_steps() -> None:
    harness = BrokerHarness(transaction_state_log_num_partitions=2)
    names = {f"t{number}" for number in range(MANY)}
    for name in names:
        harness.send(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000))
        if harness.broker.sync_due:
            harness.sync()
    while harness.sync():
        pass
    for _ in range(3):  # the first one creates the topic
        for name in names - {
            each.transactional_id
            for each in harness.call(ListTransactionsRequest()).transaction_states
        }:
            harness.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000))
    listed = answered(harness, ListTransactionsRequest())
    assert {each.transactional_id for each in listed.transaction_states} == names
    nobody = ListTransactionsRequest(producer_id_filters=[-5])
    assert harness.call(nobody).transaction_states == []
