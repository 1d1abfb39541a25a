"""Metadata, routing, offsets, fetch and produce flows against scripted answers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.flows import metadata
from headrace.clients.flows.admin import NewTopic, create_topics, describe_cluster
from headrace.clients.flows.cluster import (
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
    TopicSettings,
)
from headrace.clients.flows.effects import Backoff, ClientState
from headrace.clients.flows.fetch import FetchedPartition, FetchLimits, FetchPosition, fetch
from headrace.clients.flows.list_offsets import EARLIEST, LATEST, list_offsets
from headrace.clients.flows.produce import init_producer_id, produce
from headrace.clients.flows.topic_settings import topic_settings
from headrace.errors import ApiError, ErrorCode, ProtocolError, TransportError
from headrace.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from headrace.protocol.messages.describe_configs import DescribeConfigsResponse
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.types import TopicPartition
from tests.unit.clients.scripted import ScriptedDriver, known_state, metadata_response

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def offsets_answer(request: Any, answers: dict[int, tuple[int, int]]):
    """Partition number to (error code, offset)."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=answers[part.partition_index][0],
                        offset=answers[part.partition_index][1],
                    )
                    for part in topic.partitions
                    if part.partition_index in answers
                ],
            )
            for topic in request.topics
        ]
    )


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(100, 1000)
    cause = TransportError("x")
    assert [backoff.after(cause).duration_ms for _ in range(6)] == [100, 200, 400, 800, 1000, 1000]


def test_a_topic_s_settings_are_asked_for_until_a_broker_answers() -> None:
    outcomes = iter([TransportError("down"), DescribeConfigsResponse(results=[])])
    driver = ScriptedDriver(lambda _call: next(outcomes))
    state = ClientState()
    assert driver.run(topic_settings(state, "t")) == TopicSettings()
    assert [sleep.duration_ms for sleep in driver.sleeps] == [100]
    assert "t" in state.topic_settings


def test_refresh_tries_again_when_a_broker_does_not_answer() -> None:
    outcomes = iter([TransportError("down"), metadata_response({"t": {0: 1}})])
    driver = ScriptedDriver(lambda _call: next(outcomes))
    state = ClientState()
    driver.run(metadata.refresh(state, None))
    assert state.metadata.leader(T0) == 1
    assert len(driver.sleeps) == 1


def test_a_full_refresh_forgets_topics_that_are_gone() -> None:
    state = known_state({"t": {0: 1}, "u": {0: 1}})
    ScriptedDriver(lambda _call: metadata_response({"u": {0: 1}})).run(
        metadata.refresh(state, None)
    )
    assert list(state.metadata.topics) == ["u"]


def test_a_response_with_an_older_leader_epoch_is_ignored() -> None:
    state = known_state({"t": {0: 2}}, epoch=5)
    metadata.learn(state, metadata_response({"t": {0: 1}}, epoch=4))
    assert state.metadata.leader(T0) == 2
    metadata.learn(state, metadata_response({"t": {0: 1}}, epoch=6))
    assert state.metadata.leader(T0) == 1
    metadata.learn(state, metadata_response({"t": {0: 2}}, epoch=0, topic_id=b"n" * 16))
    assert state.metadata.leader(T0) == 2, "a topic created anew begins with its own epochs"


def test_a_leader_that_is_no_known_broker_is_no_leader() -> None:
    state = known_state({"t": {0: 9}})
    assert state.metadata.leader(T0) == -1
    assert "t" in state.stale_topics


def test_ensure_waits_for_a_topic_that_is_being_created_but_not_for_ever() -> None:
    missing = metadata_response({}, errors={"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    outcomes = iter([missing, missing, metadata_response({"t": {0: 1}})])
    driver = ScriptedDriver(lambda _call: next(outcomes))
    driver.run(metadata.ensure(ClientState(), ["t"]))
    assert len(driver.sleeps) == 2

    driver = ScriptedDriver(lambda _call: missing)
    with pytest.raises(ApiError, match="no topic 't'") as raised:
        driver.run(metadata.ensure(ClientState(), ["t"]))
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(driver.sleeps) == metadata.UNKNOWN_TOPIC_ATTEMPTS - 1


def test_ensure_fails_at_once_where_waiting_is_of_no_use() -> None:
    refused = metadata_response({}, errors={"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    driver = ScriptedDriver(lambda _call: refused)
    with pytest.raises(ApiError) as raised:
        driver.run(metadata.ensure(ClientState(), ["t"]))
    assert raised.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert driver.sleeps == []


def test_work_goes_to_each_leader_and_comes_together() -> None:
    state = known_state({"t": {0: 1, 1: 2}})
    driver = ScriptedDriver(lambda call: offsets_answer(call.request, {0: (0, 10), 1: (0, 20)}))
    found = driver.run(list_offsets(state, {T0: LATEST, T1: EARLIEST}))
    assert {where: listed.offset for where, listed in found.items()} == {T0: 10, T1: 20}
    assert sorted(call.node for call in driver.calls) == [1, 2]


def test_only_failed_partitions_are_requested_again_after_the_leader_moved() -> None:
    state = known_state({"t": {0: 1, 1: 2}}, epoch=1)
    moved = False

    def answer(call):
        nonlocal moved
        if isinstance(call.request, MetadataRequest):
            moved = True
            return metadata_response({"t": {0: 1, 1: 1}}, epoch=2)
        if not moved and call.node == 2:
            return offsets_answer(call.request, {1: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)})
        return offsets_answer(call.request, {0: (0, 10), 1: (0, 20)})

    driver = ScriptedDriver(answer)
    found = driver.run(list_offsets(state, {T0: LATEST, T1: LATEST}))
    assert {where: listed.offset for where, listed in found.items()} == {T0: 10, T1: 20}
    last = driver.requests(ListOffsetsRequest)[-1]
    [topic] = last.topics
    assert [(part.partition_index, part.current_leader_epoch) for part in topic.partitions] == [
        (1, 2)
    ]
    assert driver.calls[-1].node == 1


def test_a_broker_that_leaves_a_partition_out_is_asked_again() -> None:
    state = known_state({"t": {0: 1, 1: 1}})
    partial = iter([{0: (0, 10)}, {1: (0, 20)}])
    driver = ScriptedDriver(
        lambda call: (
            metadata_response({"t": {0: 1, 1: 1}})
            if isinstance(call.request, MetadataRequest)
            else offsets_answer(call.request, next(partial))
        )
    )
    found = driver.run(list_offsets(state, {T0: LATEST, T1: LATEST}))
    assert len(found) == 2


def test_a_dead_leader_is_looked_up_again() -> None:
    state = known_state({"t": {0: 1}}, epoch=1)

    def answer(call):
        if isinstance(call.request, MetadataRequest):
            return metadata_response({"t": {0: 2}}, epoch=2)
        if call.node == 1:
            raise TransportError("reset")
        return offsets_answer(call.request, {0: (0, 7)})

    assert ScriptedDriver(answer).run(list_offsets(state, {T0: LATEST}))[T0].offset == 7


def test_an_error_that_will_not_pass_is_raised_with_the_partitions_name() -> None:
    state = known_state({"t": {0: 1}})
    driver = ScriptedDriver(
        lambda call: offsets_answer(call.request, {0: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)})
    )
    with pytest.raises(ApiError, match="t-0"):
        driver.run(list_offsets(state, {T0: LATEST}))


def test_a_partition_that_the_topic_lacks_is_requested_once_and_reported() -> None:
    state = known_state({"t": {0: 1}})
    driver = ScriptedDriver(lambda _call: metadata_response({"t": {0: 1}}), max_sleeps=0)
    with pytest.raises(ApiError, match="has 1 partitions, and no partition 5"):
        driver.run(list_offsets(state, {TopicPartition("t", 5): LATEST}))


def test_a_deadline_shows_the_last_error_of_a_leaderless_partition() -> None:
    state = known_state({"t": {0: -1}})
    driver = ScriptedDriver(lambda _call: metadata_response({"t": {0: -1}}), max_sleeps=3)
    with pytest.raises(ApiError, match="LEADER_NOT_AVAILABLE"):
        driver.run(list_offsets(state, {T0: LATEST}))


def test_fetch_returns_errors_by_partition_and_raises_none() -> None:
    state = known_state({"t": {0: 1, 1: 2, 2: -1}})
    state.stale_topics.clear()

    def answer(call):
        assert isinstance(call.request, FetchRequest)
        if call.node == 2:
            raise TransportError("reset")
        data = PartitionData(partition_index=0, high_watermark=5, records=memoryview(b"batch"))
        stranger = PartitionData(partition_index=8, high_watermark=1)
        return FetchResponse(
            responses=[FetchableTopicResponse(topic="t", partitions=[data, stranger])]
        )

    driver = ScriptedDriver(answer)
    positions = {TopicPartition("t", number): FetchPosition(0) for number in range(3)}
    fetched = driver.run(fetch(state, positions, FetchLimits()))
    assert bytes(fetched[T0].records) == b"batch"
    assert fetched[T0].high_watermark == 5
    assert fetched[T1].error == ErrorCode.NETWORK_EXCEPTION
    assert fetched[TopicPartition("t", 2)].error == ErrorCode.LEADER_NOT_AVAILABLE
    assert set(fetched) == set(positions), "what was not asked for is left out"
    assert state.stale_topics == {"t"}
    assert driver.sleeps == []


def test_a_fetch_answer_without_partitions_means_that_nothing_was_read() -> None:
    """A broker that throttles the client (KIP-219) answers a Fetch without any topic."""
    state = known_state({"t": {0: 1, 1: 1}})
    driver = ScriptedDriver(lambda call: FetchResponse(throttle_time_ms=500, responses=[]))
    positions = {T0: FetchPosition(0), T1: FetchPosition(7)}

    fetched = driver.run(fetch(state, positions, FetchLimits()))

    assert fetched == {T0: FetchedPartition(), T1: FetchedPartition()}


def produced(code: int, offset: int = -1, name: str = "t", message: str | None = None):
    part = PartitionProduceResponse(
        index=0, error_code=code, base_offset=offset, error_message=message
    )
    return ProduceResponse(responses=[TopicProduceResponse(name=name, partition_responses=[part])])


def test_produce_goes_on_until_the_leader_takes_the_batch() -> None:
    state = known_state({"t": {0: 1}})
    outcomes = iter(
        [TransportError("reset"), produced(ErrorCode.NOT_LEADER_OR_FOLLOWER), produced(0, 42)]
    )

    def answer(call):
        if isinstance(call.request, MetadataRequest):
            assert call.request.allow_auto_topic_creation
            return metadata_response({"t": {0: 1}})
        return next(outcomes)

    driver = ScriptedDriver(answer)
    assert driver.run(produce(state, T0, b"batch", -1, 1000)).base_offset == 42
    assert len(driver.requests(ProduceRequest)) == 3


def test_a_repeated_batch_counts_as_written() -> None:
    state = known_state({"t": {0: 1}})
    driver = ScriptedDriver(lambda _call: produced(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 5))
    assert driver.run(produce(state, T0, b"batch", -1, 1000)).base_offset == 5


def test_a_refused_batch_raises_the_error_of_the_broker() -> None:
    state = known_state({"t": {0: 1}})
    driver = ScriptedDriver(lambda _call: produced(ErrorCode.INVALID_RECORD, message="no key"))
    with pytest.raises(ApiError, match="t-0: no key"):
        driver.run(produce(state, T0, b"batch", -1, 1000))


def test_produce_without_acknowledgement_knows_no_offset() -> None:
    state = known_state({"t": {0: 1}})
    driver = ScriptedDriver(lambda _call: None)
    assert driver.run(produce(state, T0, b"batch", 0, 1000)).base_offset == -1
    assert not driver.calls[0].answered


def test_an_answer_of_the_wrong_kind_is_a_protocol_error() -> None:
    driver = ScriptedDriver(lambda _call: InitProducerIdResponse())
    with pytest.raises(ProtocolError, match="expected a MetadataResponse"):
        driver.run(metadata.refresh(ClientState(), None))


def test_a_producer_id_is_requested_until_the_coordinator_is_available() -> None:
    outcomes = iter(
        [
            InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
            TransportError("reset"),
            InitProducerIdResponse(producer_id=4, producer_epoch=1),
        ]
    )
    driver = ScriptedDriver(lambda _call: next(outcomes))
    identity = driver.run(init_producer_id(ClientState()))
    assert (identity.producer_id, identity.producer_epoch) == (4, 1)


def test_topics_are_created_by_the_controller_of_the_moment() -> None:
    state = known_state({}, controller=1)

    def answer(call):
        if isinstance(call.request, MetadataRequest):
            return metadata_response({}, controller=2)
        code = ErrorCode.NOT_CONTROLLER if call.node == 1 else 0
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=code)])

    driver = ScriptedDriver(answer)
    assert driver.run(create_topics(state, [NewTopic("t")])) == {"t": None}
    assert "t" in state.stale_topics
    assert driver.calls[-1].node == 2


def test_a_topic_that_cannot_be_created_does_not_hide_the_others() -> None:
    state = known_state({})
    results = [
        CreatableTopicResult(name="a"),
        CreatableTopicResult(name="b", error_code=ErrorCode.TOPIC_ALREADY_EXISTS),
    ]
    driver = ScriptedDriver(lambda _call: CreateTopicsResponse(topics=results))
    outcomes = driver.run(create_topics(state, [NewTopic("a"), NewTopic("b")]))
    assert outcomes["a"] is None
    assert outcomes["b"] is not None
    assert outcomes["b"].code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "'b'" in str(outcomes["b"])


def test_describe_cluster_falls_back_to_metadata() -> None:
    def answer(call):
        if isinstance(call.request, MetadataRequest):
            return metadata_response({})
        raise ApiError.for_code(ErrorCode.UNSUPPORTED_VERSION)

    described = ScriptedDriver(answer).run(describe_cluster(ClientState()))
    assert (described.cluster_id, described.controller_id) == ("c", 1)
    assert [broker.port for broker in described.brokers] == [9001, 9002]


def test_cluster_metadata_of_an_unknown_topic() -> None:
    cluster = ClusterMetadata()
    assert cluster.partitions("t") == []
    assert cluster.leader(T0) == -1
    assert cluster.leader_epoch(T0) == -1
    cluster.remember(TopicMetadata("t", partitions={0: PartitionMetadata(0, 3, 1)}))
    assert cluster.leader(T0) == -1, "broker 3 has no address"
    assert cluster.leader_epoch(T0) == 1
