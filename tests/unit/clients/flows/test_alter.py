"""Changing topics, configs, records, groups and offsets, against scripted answers."""

from __future__ import annotations

import pytest

from headrace.clients.flows.alter import (
    HIGH_WATERMARK,
    ConfigAlteration,
    alter_configs,
    create_partitions,
    delete_groups,
    delete_offsets,
    delete_records,
)
from headrace.clients.flows.effects import GROUP_CHANNEL
from headrace.config.resources import ConfigResourceType
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.config_operation import ConfigOperation
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from headrace.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace.types import TopicPartition
from tests.unit.clients.scripted import ScriptedDriver, known_state, metadata_response

LAYOUT = {"t": {0: 1, 1: 2}}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def scripted(**answers) -> ScriptedDriver:
    """Answers by the name of the request's class; a list is answered one after the other."""

    def answer(call):
        if isinstance(call.request, MetadataRequest):
            return metadata_response(LAYOUT)
        if isinstance(call.request, FindCoordinatorRequest):
            key = call.request.key
            return FindCoordinatorResponse(
                coordinators=[Coordinator(key=key, node_id=2, host="b2", port=9002)]
            )
        found = answers[type(call.request).__name__]
        return found.pop(0) if isinstance(found, list) else found

    return ScriptedDriver(answer)


def test_partitions_are_asked_of_the_controller_and_the_topic_is_looked_at_again():
    results = [
        CreatePartitionsTopicResult(name="t"),
        CreatePartitionsTopicResult(name="u", error_code=ErrorCode.INVALID_PARTITIONS),
    ]
    driver = scripted(CreatePartitionsRequest=CreatePartitionsResponse(results=results))
    state = known_state(LAYOUT)
    outcomes = driver.run(create_partitions(state, {"t": 4, "u": 1}, validate_only=True))
    assert outcomes["t"] is None
    assert outcomes["u"].code == ErrorCode.INVALID_PARTITIONS
    assert "u" in outcomes["u"].message
    (request,) = driver.requests(CreatePartitionsRequest)
    assert [(t.name, t.count, t.assignments) for t in request.topics] == [
        ("t", 4, None),
        ("u", 1, None),
    ]
    assert request.validate_only
    assert driver.calls[-1].node == state.metadata.controller_id
    assert "t" in state.stale_topics


def test_a_moved_controller_is_looked_up():
    moved = [CreatePartitionsTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER)]
    done = [CreatePartitionsTopicResult(name="t")]
    answers = [CreatePartitionsResponse(results=moved), CreatePartitionsResponse(results=done)]
    driver = scripted(CreatePartitionsRequest=answers)
    assert driver.run(create_partitions(known_state(LAYOUT), {"t": 4})) == {"t": None}
    assert len(driver.sleeps) == 1


def test_configs_are_changed_one_resource_a_request():
    def answered(name, kind, code=0, message=None):
        response = AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )
        return IncrementalAlterConfigsResponse(responses=[response])

    bad = answered("u", 2, ErrorCode.INVALID_CONFIG, "no")
    driver = scripted(IncrementalAlterConfigsRequest=[answered("t", 2), bad])
    changes = [
        ConfigAlteration("retention.ms", "5"),
        ConfigAlteration("segment.bytes", None, ConfigOperation.DELETE),
    ]
    flow = alter_configs(
        known_state(LAYOUT),
        ConfigResourceType.TOPIC,
        {"t": changes, "u": changes},
        validate_only=True,
    )
    outcomes = driver.run(flow)
    assert outcomes["t"] is None
    assert str(outcomes["u"]) == "INVALID_CONFIG: topic 'u': no"
    first, _ = driver.requests(IncrementalAlterConfigsRequest)
    assert [(c.name, c.value, c.config_operation) for c in first.resources[0].configs] == [
        ("retention.ms", "5", 0),
        ("segment.bytes", None, 1),
    ]
    assert first.validate_only


@pytest.mark.parametrize(("name", "node"), [("2", 2), ("", -1)])
def test_a_brokers_configs_are_changed_by_itself(name, node):
    response = AlterConfigsResourceResponse(error_message=None, resource_type=4, resource_name=name)
    answer = IncrementalAlterConfigsResponse(responses=[response])
    driver = scripted(IncrementalAlterConfigsRequest=answer)
    changes = {name: [ConfigAlteration("log.retention.ms", "5")]}
    flow = alter_configs(known_state(LAYOUT), ConfigResourceType.BROKER, changes)
    assert driver.run(flow) == {name: None}
    assert driver.calls[-1].node == node


def deleted(*parts: tuple[int, int, int]) -> DeleteRecordsResponse:
    partitions = [
        DeleteRecordsPartitionResult(partition_index=index, error_code=code, low_watermark=low)
        for index, code, low in parts
    ]
    return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=partitions)])


def test_records_are_deleted_by_the_leaders():
    driver = scripted(DeleteRecordsRequest=[deleted((0, 0, 7)), deleted((1, 0, 3))])
    flow = delete_records(known_state(LAYOUT), {T0: 7, T1: HIGH_WATERMARK})
    assert driver.run(flow) == {T0: 7, T1: 3}
    assert [call.node for call in driver.calls] == [1, 2]
    offsets = [r.topics[0].partitions[0].offset for r in driver.requests(DeleteRecordsRequest)]
    assert offsets == [7, -1]


def test_a_refused_deletion_names_the_partition_and_a_moved_leader_is_followed():
    moved, done = deleted((0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)), deleted((0, 0, 7))
    driver = scripted(DeleteRecordsRequest=[moved, done])
    assert driver.run(delete_records(known_state(LAYOUT), {T0: 7})) == {T0: 7}
    driver = scripted(DeleteRecordsRequest=deleted((0, ErrorCode.OFFSET_OUT_OF_RANGE, -1)))
    with pytest.raises(ApiError, match="t-0") as raised:
        driver.run(delete_records(known_state(LAYOUT), {T0: 7}))
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_groups_are_deleted_by_their_coordinators():
    def answered(name, code=0):
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=name, error_code=code)])

    answers = [
        answered("g", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        answered("g"),
        answered("h", ErrorCode.NON_EMPTY_GROUP),
    ]
    driver = scripted(DeleteGroupsRequest=answers)
    outcomes = driver.run(delete_groups(known_state(LAYOUT), ["g", "h"]))
    assert outcomes["g"] is None
    assert outcomes["h"].code == ErrorCode.NON_EMPTY_GROUP
    asked = [call for call in driver.calls if isinstance(call.request, DeleteGroupsRequest)]
    assert {(call.node, call.channel) for call in asked} == {(2, GROUP_CHANNEL)}


def test_a_group_that_the_coordinator_leaves_out_is_an_error():
    driver = scripted(DeleteGroupsRequest=DeleteGroupsResponse())
    with pytest.raises(ProtocolError):
        driver.run(delete_groups(known_state(LAYOUT), ["g"]))


def test_offsets_are_deleted_partition_by_partition():
    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    partitions = [
        OffsetDeleteResponsePartition(partition_index=0),
        OffsetDeleteResponsePartition(partition_index=1, error_code=code),
    ]
    topics = [OffsetDeleteResponseTopic(name="t", partitions=partitions)]
    driver = scripted(OffsetDeleteRequest=OffsetDeleteResponse(topics=topics))
    outcomes = driver.run(delete_offsets(known_state(LAYOUT), "g", [T0, T1]))
    assert outcomes[T0] is None
    assert outcomes[T1].code == code
    (request,) = driver.requests(OffsetDeleteRequest)
    assert [p.partition_index for p in request.topics[0].partitions] == [0, 1]


def test_a_group_that_refuses_as_a_whole_is_an_error():
    response = OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    driver = scripted(OffsetDeleteRequest=response)
    with pytest.raises(ApiError, match="'g'"):
        driver.run(delete_offsets(known_state(LAYOUT), "g", [T0]))
