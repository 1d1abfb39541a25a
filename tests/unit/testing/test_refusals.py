"""The refusal of a request of any API can be decoded by clients, and the broker changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.context import RequestContext
from headrace.broker.dispatch import APIS
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import RequestHeader, encode_response, request_class, response_class
from headrace.protocol.messages import (
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    heartbeat,
    incremental_alter_configs,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
)
from headrace.testing import Broker, ManualClock, error
from headrace.testing.interception import Exchange
from tests.fixtures.broker_harness import batch, fetch_request, produce_request

CODE = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

REQUESTS = [
    produce_request("there", 0, batch(b"a")),
    fetch_request(("there", 0, 0), max_wait_ms=0),
    list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name="there", partitions=[list_offsets.ListOffsetsPartition()])]
    ),
    metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="there")]),
    offset_commit.OffsetCommitRequest(
        group_id="g",
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name="there", partitions=[offset_commit.OffsetCommitRequestPartition(committed_offset=1)]
            )
        ],
    ),
    offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group_id="g")]),
    join_group.JoinGroupRequest(group_id="g", member_id="m", protocol_type="consumer"),
    heartbeat.HeartbeatRequest(group_id="g", member_id="m"),
    leave_group.LeaveGroupRequest(group_id="g", members=[leave_group.MemberIdentity(member_id="m")]),
    create_topics.CreateTopicsRequest(
        topics=[create_topics.CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    ),
    delete_topics.DeleteTopicsRequest(topics=[delete_topics.DeleteTopicState(name="there")]),
    delete_records.DeleteRecordsRequest(
        topics=[
            delete_records.DeleteRecordsTopic(
                name="there", partitions=[delete_records.DeleteRecordsPartition(offset=0)]
            )
        ]
    ),
    delete_groups.DeleteGroupsRequest(groups_names=["g"]),
    create_partitions.CreatePartitionsRequest(
        topics=[create_partitions.CreatePartitionsTopic(name="there", count=5)]
    ),
    incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name="there")
        ]
    ),
]  # fmt: skip


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(clock=ManualClock()) as opened:
        opened.create_topic("there")
        yield opened


def exchange(broker, request, version=None) -> Exchange:
    newest = max(api.served.max for api in APIS if api.key == request.API_KEY)
    header = RequestHeader(request.API_KEY, newest if version is None else version, 1, "test")
    context = RequestContext(broker.now_ms(), header, "127.0.0.1:5", "127.0.0.1", 9092)
    return Exchange(broker._core, context, request)


def refused(broker, request, version=None) -> Any:
    """The answer to a request that is refused."""
    with broker._runtime.condition:
        reply: Any = error(CODE.name)(exchange(broker, request, version))
        if isinstance(reply, Deferred):
            broker._runtime.pump()
            reply = reply.value
    return reply


def codes(message) -> list[int]:
    """All error codes of a response."""
    found = []
    for name in message.__slots__:
        value = getattr(message, name)
        if name == "error_code":
            found.append(value)
        for row in value if isinstance(value, list) else ():
            found += codes(row) if hasattr(row, "__slots__") and not isinstance(row, str) else []
    return found


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: ApiKey(each.API_KEY).name)
def test_a_refusal_has_the_requested_error_code(broker, request_) -> None:
    reply = refused(broker, request_)
    found = set(codes(reply))
    if request_.API_KEY == ApiKey.FETCH:
        found.discard(0)  # the whole fetch did not fail, all partitions did
    assert found == {CODE}
    rows = [value for name in reply.__slots__ if isinstance(value := getattr(reply, name), list)]
    assert request_.API_KEY == ApiKey.JOIN_GROUP or not rows or any(rows), (
        "no row names what was refused"
    )


def test_rows_have_the_names_of_the_requests(broker) -> None:
    found = {ApiKey(each.API_KEY): refused(broker, each) for each in REQUESTS}
    assert found[ApiKey.PRODUCE].responses[0].name == "there"
    assert found[ApiKey.PRODUCE].responses[0].partition_responses[0].index == 0
    assert found[ApiKey.FETCH].responses[0].topic == "there"
    assert found[ApiKey.CREATE_TOPICS].topics[0].name == "new"
    assert found[ApiKey.DELETE_TOPICS].responses[0].name == "there"
    assert found[ApiKey.DELETE_GROUPS].results[0].group_id == "g"
    assert found[ApiKey.CREATE_PARTITIONS].results[0].name == "there"
    assert found[ApiKey.LEAVE_GROUP].members[0].member_id == "m"
    assert found[ApiKey.INCREMENTAL_ALTER_CONFIGS].responses[0].resource_name == "there"
    older = refused(broker, delete_topics.DeleteTopicsRequest(topic_names=["there"]), version=5)
    assert [row.name for row in older.responses] == ["there"]


def test_a_refused_request_is_not_executed(broker) -> None:
    for request in REQUESTS:
        refused(broker, request)
    assert broker.topics() == ["there"]
    assert broker.messages("there") == []
    assert not broker.snapshot().groups


@pytest.mark.parametrize("api", APIS, ids=lambda api: ApiKey(api.key).name)
def test_refusals_of_empty_requests_can_be_sent_in_all_versions(broker, api) -> None:
    asked, answered = request_class(api.key), response_class(api.key)
    assert asked is not None
    assert answered is not None
    for version in range(api.served.min, api.served.max + 1):
        reply = refused(broker, asked(), version)
        header = RequestHeader(api.key, version, 1, None)
        if reply is None:
            assert api.key == ApiKey.PRODUCE  # its default is acks=0
            continue
        assert isinstance(reply, answered)
        assert encode_response(header, reply)


def test_writes_that_want_no_answer_get_none(broker) -> None:
    assert refused(broker, produce_request("there", 0, batch(b"a"), acks=0)) is None


def test_a_fetch_in_a_session_is_refused_for_the_partitions_that_the_session_remembers(
    broker,
) -> None:
    first: Any
    after: Any
    with broker._runtime.condition:
        first = exchange(
            broker, fetch_request(("there", 0, 0), max_wait_ms=0, session_epoch=0)
        ).proceed()
    assert first.session_id > 0
    session = {"session_id": first.session_id, "max_wait_ms": 0}
    reply = refused(broker, fetch_request(**session, session_epoch=1))
    assert [row.topic for row in reply.responses] == ["there"]
    assert codes(reply) == [0, CODE]
    with broker._runtime.condition:
        after = exchange(broker, fetch_request(**session, session_epoch=2)).proceed()
    assert after.error_code == 0
    assert [row.topic for row in after.responses] == ["there"], "that it is well again is news"


def test_the_broker_itself_answers_a_fetch_in_an_unknown_session(broker) -> None:
    reply = refused(broker, fetch_request(session_id=7, session_epoch=3))
    assert reply.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
