"""Members under the protocol `consumer` (KIP-848), in virtual time: their requests, and their handling of responses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace.clients.consumer.kip848 import NOT_SPOKEN, UNRELEASED_PATIENCE_MS
from headrace.clients.consumer.subscription import regex_for_broker
from headrace.errors import (
    ApiError,
    ErrorCode,
    FencedInstanceIdError,
    RebalanceInProgressError,
    TransportError,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program, rebalance
from tests.unit.clients.consumer.test_groups import SERVER_SIDE, Listener, make_simulation, numbers
from tests.unit.clients.consumer.test_groups import member as any_member

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def member(simulation: ConsumerSimulation, **options: Any) -> Program:
    return any_member(simulation, SERVER_SIDE, **options)


def beats(program: Program) -> list[ConsumerGroupHeartbeatRequest]:
    return program.requests(ConsumerGroupHeartbeatRequest)


def answering(kind: type, outcome: Any, times: int = 1, program: Program | None = None) -> Any:
    """Return a fault: a number of requests of a kind have another outcome."""
    left = [times]

    def hook(who: Program, call: Any) -> Any:
        if not isinstance(call.request, kind) or program not in {None, who} or not left[0]:
            return None
        left[0] -= 1
        return outcome

    return hook


def refusal(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)


# Requests


def test_later_heartbeats_omit_unchanged_fields() -> None:
    simulation = make_simulation()
    first = member(simulation, client_rack="r", group_remote_assignor="range")
    rebalance(first)
    join, taken, *others = beats(first)
    assert (join.member_id, join.member_epoch, join.rack_id) == ("member-1", 0, "r")
    assert (join.server_assignor, join.rebalance_timeout_ms) == ("range", 300_000)
    assert (join.subscribed_topic_names, join.topic_partitions) == (["t"], [])
    assert [topic.partitions for topic in taken.topic_partitions or []] == [list(range(6))]
    assert taken.subscribed_topic_names is None
    assert others
    for bare in others:
        said = (bare.topic_partitions, bare.subscribed_topic_names, bare.server_assignor)
        assert said == (None, None, None)
        assert bare.member_epoch > 0


def test_the_coordinator_determines_the_heartbeat_interval() -> None:
    simulation = ConsumerSimulation(group_consumer_heartbeat_interval_ms=700)
    simulation.broker.create_topic("t")
    first = member(simulation)
    rebalance(first)
    before = len(beats(first))
    simulation.advance(7_000)
    assert len(beats(first)) - before == 10


def test_a_short_interval_does_not_make_answers_late() -> None:
    simulation = ConsumerSimulation(group_consumer_heartbeat_interval_ms=10)
    simulation.broker.create_topic("t")
    first = member(simulation)
    rebalance(first, rounds=2)
    calls = [call for call in first.calls if isinstance(call.request, type(beats(first)[0]))]
    assert min(call.timeout_ms or 0 for call in calls) >= 1_000
    assert first.core.joined


def test_revoked_partitions_are_reported_at_once() -> None:
    simulation = make_simulation()
    first = member(simulation)
    rebalance(first)
    second = member(simulation)
    second.poll(10)
    simulation.advance(3_000)  # the heartbeat whose answer has it
    before = len(beats(first))
    first.poll(0)
    assert numbers(first) == [0, 1, 2]
    assert len(beats(first)) == before + 1
    [owned] = beats(first)[-1].topic_partitions or []
    assert owned.partitions == [0, 1, 2]


def test_the_heartbeat_after_a_lost_response_contains_all_fields() -> None:
    simulation = make_simulation()
    first, second = member(simulation), member(simulation)
    rebalance(first, second)
    third = member(simulation)
    simulation.lost = answering(
        ConsumerGroupHeartbeatRequest, TransportError("reset"), program=second, times=2
    )
    third.poll(10)
    rebalance(first, second, third, rounds=30)
    full = [beat for beat in beats(second) if beat.member_epoch and beat.subscribed_topic_names]
    assert full
    assert full[0].topic_partitions is not None
    assert sorted(numbers(first) + numbers(second) + numbers(third)) == list(range(6))
    assert second.core._member is not None
    assert "lost" not in str(second.warnings)


def test_a_new_subscription_and_the_end_of_a_pattern_are_sent() -> None:
    simulation = make_simulation()
    simulation.broker.create_topic("u")
    first = simulation.consumer(group="g", group_protocol="consumer")
    first.subscribe(pattern="t|v")
    rebalance(first)
    assert beats(first)[0].subscribed_topic_regex == "t|v"
    assert first.core.subscription() == {"t"}
    first.run(first.core.unsubscribe(1_000))
    first.subscribe(["u"])
    rebalance(first)
    assert first.assignment() == [TopicPartition("u", 0)]


def test_leaving_is_epoch_minus_one_and_for_static_members_minus_two() -> None:
    simulation = make_simulation()
    listener = Listener()
    first = member(simulation, listener=listener)
    static = member(simulation, group_instance_id="a")
    rebalance(first, static)
    first.close()
    static.close()
    assert beats(first)[-1].member_epoch == -1
    assert beats(static)[-1].member_epoch == -2
    assert listener.told[-1][0] == "revoked"


def test_a_static_member_that_restarts_gets_its_partitions_back() -> None:
    simulation = make_simulation()
    other = member(simulation, group_instance_id="b")
    first = member(simulation, group_instance_id="a")
    rebalance(first, other, rounds=30)
    held, told = numbers(first), len(beats(other))
    first.close()
    again = member(simulation, group_instance_id="a")
    rebalance(again, other)
    assert numbers(again) == held
    assert all(beat.topic_partitions is None for beat in beats(other)[told:]), "it was left alone"


# Error responses


def test_a_static_member_waits_for_the_end_of_the_session_that_a_crash_left_behind() -> None:
    simulation = make_simulation()
    first = member(simulation, group_instance_id="a")
    rebalance(first)
    first.die()
    again = member(simulation, group_instance_id="a")
    rebalance(again, rounds=100)
    assert numbers(again) == list(range(6))
    assert len(again.warnings) == 1
    assert "'a' still belongs to a member" in again.warnings[0]


def test_a_second_member_of_one_instance_id_is_refused() -> None:
    simulation = make_simulation()
    first = member(simulation, group_instance_id="a")
    rebalance(first)
    second = member(simulation, group_instance_id="a")
    rebalance(first, second, rounds=UNRELEASED_PATIENCE_MS // 600)
    assert "still belongs to a member" in second.warnings[0]
    simulation.advance(20_000)
    with pytest.raises(ApiError, match="UNRELEASED_INSTANCE_ID"):
        second.poll(0)
    first.poll(0)
    assert numbers(first) == list(range(6))


def test_a_member_whose_instance_id_another_has_taken_over_stops_for_good() -> None:
    simulation = make_simulation()
    first = member(simulation, group_instance_id="a")
    rebalance(first)
    simulation.fault = answering(
        ConsumerGroupHeartbeatRequest, refusal(ErrorCode.FENCED_INSTANCE_ID)
    )
    simulation.advance(4_000)
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            first.poll(0)
    sent = len(beats(first))
    simulation.advance(60_000)
    assert len(beats(first)) == sent


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ],
)
def test_a_member_that_is_none_any_more_has_lost_its_partitions_and_joins_again(code) -> None:
    simulation = make_simulation()
    listener = Listener()
    first = member(simulation, listener=listener)
    rebalance(first)
    simulation.fault = answering(ConsumerGroupHeartbeatRequest, refusal(code))
    simulation.advance(4_000)
    assert first.core._member is not None
    assert first.core._member.lost is not None
    assert first.core.take() == []
    rebalance(first)
    everything = list(range(6))
    assert listener.told[-2:] == [("lost", everything), ("assigned", everything)]
    assert [beat.member_id for beat in beats(first)] == ["member-1"] * len(beats(first))
    assert [beat.member_epoch for beat in beats(first)].count(0) == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "group.remote.assignor"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "cannot join group 'g'"),
        (ErrorCode.GROUP_ID_NOT_FOUND, "group_protocol='classic'"),
        (ErrorCode.UNSUPPORTED_VERSION, "group_protocol='classic'"),
        (ErrorCode.INVALID_REQUEST, "cannot join group 'g'"),
    ],
)
def test_a_refused_heartbeat_raises_the_reason_and_is_retried(code, says) -> None:
    simulation = make_simulation()
    first = member(simulation)
    simulation.fault = answering(ConsumerGroupHeartbeatRequest, refusal(code, "a reason."))
    with pytest.raises(ApiError, match=re.escape(says)) as raised:
        first.poll(1_000)
    assert raised.value.code == code
    rebalance(first)
    assert numbers(first) == list(range(6))


def test_a_broker_without_the_protocol_is_named_as_such() -> None:
    simulation = make_simulation()
    first = member(simulation)
    absent = ApiError.for_code(ErrorCode.UNSUPPORTED_VERSION, "does not offer it")
    simulation.fault = answering(ConsumerGroupHeartbeatRequest, absent, times=100)
    with pytest.raises(ApiError, match=re.escape(NOT_SPOKEN)):
        first.poll(1_000)


def test_an_assignor_that_the_coordinator_does_not_have() -> None:
    simulation = make_simulation()
    first = member(simulation, group_remote_assignor="stikky")
    with pytest.raises(ApiError, match=r"UNSUPPORTED_ASSIGNOR.*stikky.*uniform, range"):
        first.poll(1_000)


@pytest.mark.parametrize("assignor", ["range", "equal"])
def test_members_of_both_protocols_share_a_group(assignor: str) -> None:
    simulation = make_simulation(records=5)
    classic = any_member(simulation, assignor)
    rebalance(classic)
    first = member(simulation)
    rebalance(classic, first, rounds=40)
    assert sorted(numbers(classic) + numbers(first)) == list(range(6))
    assert len(numbers(classic)) == 3
    first.close()
    rebalance(classic, rounds=40)
    assert numbers(classic) == list(range(6))


def test_joining_a_classic_group_raises_an_error_that_names_the_setting() -> None:
    simulation = ConsumerSimulation(group_consumer_migration_policy="disabled")
    simulation.broker.create_topic("t", partitions=6)
    classic = any_member(simulation)
    rebalance(classic)
    first = member(simulation)
    with pytest.raises(ApiError, match="group_protocol='classic'"):
        first.poll(1_000)


# Commits and positions


def test_commits_and_positions_carry_the_member_and_its_epoch() -> None:
    simulation = make_simulation(partitions=2, records=3)
    first = member(simulation)
    assert first.poll(1_000)
    first.commit()
    own = first.core._member
    assert own is not None
    [commit] = first.requests(OffsetCommitRequest)
    [fetch] = first.requests(OffsetFetchRequest)
    assert (commit.member_id, commit.generation_id_or_member_epoch) == (
        "member-1",
        own.generation,
    )
    assert (fetch.groups[0].member_id, fetch.groups[0].member_epoch) == (
        "member-1",
        own.generation,
    )


def test_a_commit_of_an_older_epoch_is_sent_again_in_the_newer_one() -> None:
    simulation = make_simulation(partitions=2, records=3)
    simulation.broker.create_topic("u")
    first = member(simulation, enable_auto_commit=False)
    assert first.poll(1_000)
    own = first.core._member
    assert own is not None
    old = own.generation
    member(simulation, topics=["u"]).poll(10)  # a new epoch, in which the first keeps what it has

    def lose(program: Program, call: Any) -> Any:
        if isinstance(call.request, OffsetCommitRequest):
            simulation.lost = None
        elif program is first and isinstance(call.request, ConsumerGroupHeartbeatRequest):
            return TransportError("reset")
        return None

    simulation.lost = lose
    simulation.advance(4_000)
    assert own.generation == old, "the coordinator is ahead, and the member does not know"
    first.commit()
    epochs = [one.generation_id_or_member_epoch for one in first.requests(OffsetCommitRequest)]
    assert epochs[0] == old
    assert epochs[-1] == own.generation > old
    assert all(first.committed(T0, T1).values())


def test_a_commit_is_not_sent_again_for_a_partition_that_went() -> None:
    """(1) A commit in epoch 5 fails. (2) Another member gets the partition and commits. (3) A retry would undo that."""
    simulation = make_simulation(partitions=2, records=3)
    first = member(simulation, enable_auto_commit=False)
    assert first.poll(1_000)

    def refuse(_program: Program, call: Any) -> Any:
        if not isinstance(call.request, OffsetCommitRequest):
            return None
        first.core.assigned.pop(T0, None)
        response = type(simulation.broker.call(call.request))
        answer = simulation.broker.call(call.request)
        for topic in answer.topics:
            for part in topic.partitions:
                part.error_code = ErrorCode.STALE_MEMBER_EPOCH
        assert isinstance(answer, response)
        return answer

    simulation.fault = refuse
    with pytest.raises(RebalanceInProgressError, match="commit again after the next poll"):
        first.commit({T0: 1, T1: 1})
    assert len(first.requests(OffsetCommitRequest)) == 1


def test_a_commit_of_a_former_membership_is_not_sent_again_in_the_next_one() -> None:
    simulation = make_simulation(partitions=2, records=3)
    first = member(simulation, enable_auto_commit=False)
    assert first.poll(1_000)
    own = first.core._member
    assert own is not None
    before = own.identity()
    own.lose("for a test")
    rebalance(first)
    assert own.identity().member_id == before.member_id
    assert own.identity().joined == before.joined + 1


def test_a_member_whose_epoch_stays_behind_for_long_goes_on_asking_for_its_positions() -> None:
    simulation = make_simulation(partitions=2, records=3)
    first = member(simulation)
    stale = OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.STALE_MEMBER_EPOCH)
    simulation.fault = answering(OffsetFetchRequest, OffsetFetchResponse(groups=[stale]), 1_000)
    for _ in range(40):
        assert first.poll(1_000) == [], "and nothing is raised"
    simulation.fault = None
    assert first.poll(10_000)


# Names of topics


def test_a_topic_whose_name_is_not_known_yet_is_asked_for_by_its_id() -> None:
    simulation = make_simulation()
    first = member(simulation, topics=["later"])
    rebalance(first)
    simulation.broker.create_topic("later", partitions=2)
    answers: list[MetadataRequest] = []

    def unknown(_program: Program, call: Any) -> Any:
        if isinstance(call.request, MetadataRequest) and len(answers) < 3:
            answers.append(call.request)
            return MetadataResponse(brokers=[], topics=[])
        return None

    simulation.fault = unknown
    rebalance(first, rounds=30)
    assert numbers(first) == [0, 1]
    assert any(topic.name is None for request in answers for topic in request.topics or [])


# Patterns


@pytest.mark.parametrize(
    ("pattern", "regex"),
    [
        ("orders-.*", "orders-.*"),
        (r"^(eu|us)\.[a-z]{2,5}_\d+?$", r"^(eu|us)\.[a-z]{2,5}_\d+?$"),
        (r"(?P<a>x)(?:y|z)*[^\w-]", r"(?P<a>x)(?:y|z)*[^\w-]"),
        (re.compile("Orders", re.IGNORECASE), "(?i)Orders"),
        (r"(a)\1", None),
        ("(?=a)a", None),
        ("(?i)a", None),
        ("(?x) a", None),
        ("(?>a)b", None),
        ("a{,3}", None),
        (r"\Za", None),
        (r"[a\]b]", r"[a\]b]"),
        ("ü.*", None),
        (re.compile("a b", re.VERBOSE), None),
        ("", None),
    ],
)
def test_a_pattern_is_the_brokers_where_both_read_it_alike(pattern, regex) -> None:
    assert regex_for_broker(re.compile(pattern)) == regex


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "orders-(?!test).*"},
        {"pattern": "orders-.*", "exclude": ["orders-test"]},
        {"pattern": "orders-[^t].*"},
    ],
)
def test_topics_that_match_are_the_same_on_client_and_broker(options: dict[str, Any]) -> None:
    simulation = make_simulation()
    simulation.broker.create_topic("orders-eu")
    simulation.broker.create_topic("orders-test")
    first = simulation.consumer(group="g", group_protocol="consumer")
    first.subscribe(**options)
    rebalance(first)
    assert {topic for topic, _ in first.assignment()} == {"orders-eu"}
    simulation.broker.create_topic("orders-us")
    rebalance(first, rounds=40)
    assert first.core.subscription() == {"orders-eu", "orders-us"}
    assert {topic for topic, _ in first.assignment()} == {"orders-eu", "orders-us"}


def test_a_pattern_that_the_broker_does_not_take_is_matched_here() -> None:
    simulation = make_simulation()
    first = simulation.consumer(group="g", group_protocol="consumer")
    simulation.fault = answering(
        ConsumerGroupHeartbeatRequest,
        refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, "this broker cannot"),
    )
    first.subscribe(pattern="t")
    rebalance(first)
    assert numbers(first) == list(range(6))
    assert first.core.subscription() == {"t"}
    assert "this broker cannot" in first.warnings[0]


# A suspended process


def test_a_process_that_slept_hands_out_nothing_before_the_coordinator_has_answered() -> None:
    simulation = make_simulation(partitions=1, records=10)
    first = member(simulation, enable_auto_commit=False)
    assert len(first.poll(1_000, 3)) == 3
    simulation.programs.remove(first)
    simulation.advance(10_000)  # more than three intervals, far from a session
    simulation.programs.append(first)
    first.engine.advance(simulation.now_ms)
    assert first.core.take_one() is None
    assert first.core.take(5) == []
    assert len(first.poll(1_000, 3)) == 3


# The choice of the protocol


def test_auto_takes_the_protocol_that_the_broker_offers() -> None:
    simulation = make_simulation()
    first = simulation.consumer(group="g", group_protocol="auto")
    first.subscribe(["t"])
    rebalance(first)
    assert numbers(first) == list(range(6))
    assert beats(first)
    assert not first.requests(JoinGroupRequest)


def without_feature(_program: Program, call: Any) -> ApiVersionsResponse | None:
    return ApiVersionsResponse() if isinstance(call.request, ApiVersionsRequest) else None


def test_auto_takes_the_classic_protocol_where_the_broker_lacks_the_feature() -> None:
    simulation = make_simulation()
    simulation.fault = without_feature
    first = simulation.consumer(group="g", group_protocol="auto")
    first.subscribe(["t"])
    rebalance(first)
    assert numbers(first) == list(range(6))
    assert not beats(first)


def test_auto_uses_the_classic_protocol_in_a_group_with_classic_members() -> None:
    simulation = ConsumerSimulation(group_consumer_migration_policy="disabled")
    simulation.broker.create_topic("t", partitions=6)
    listener = Listener()
    classic = any_member(simulation, "range")
    rebalance(classic)
    first = simulation.consumer(group="g", group_protocol="auto")
    first.subscribe(["t"], listener=listener)
    rebalance(classic, first, rounds=30)
    assert sorted(numbers(classic) + numbers(first)) == list(range(6))
    assert listener.told == [("assigned", numbers(first))]


@pytest.mark.parametrize(
    "options",
    [
        {"session_timeout_ms": 10_000},
        {"heartbeat_interval_ms": 1_000},
        {"partition_assignment_strategy": "range"},
        {"group_instance_id": "a"},
    ],
)
def test_auto_is_classic_where_something_is_set_that_only_classic_knows(options) -> None:
    simulation = make_simulation()
    first = simulation.consumer(group="g", **options)
    assert first.config.group_protocol == "classic"
    second = simulation.consumer(group="g", group_protocol="auto", group_remote_assignor="range")
    assert second.config.group_protocol == "consumer"


def test_auto_waits_for_a_broker_to_be_asked_and_forgets_the_question_with_the_subscription() -> (
    None
):
    simulation = make_simulation()
    first = simulation.consumer(group="g", group_protocol="auto")
    gone = answering(ApiVersionsRequest, TransportError("away"), times=5)
    simulation.fault = gone
    first.subscribe(["t"])
    assert first.core.needs_background
    assert not first.core.joined
    assert first.core.group_metadata().generation_id == -1
    first.run(first.core.unsubscribe(1_000))
    simulation.advance(5_000)
    assert first.core._member is None
    first.subscribe(["t"])
    assert first.run(first.core.assignment(30_000)) == [TopicPartition("t", n) for n in range(6)]


def test_a_member_that_is_made_inside_a_poll_counts_that_poll() -> None:
    simulation = make_simulation()
    first = simulation.consumer(group="g", group_protocol="auto", max_poll_interval_ms=10_000)
    first.subscribe(["t"])
    first.poll(60_000)
    assert first.warnings == []
    assert numbers(first) == list(range(6))
