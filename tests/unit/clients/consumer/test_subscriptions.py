"""Subscriptions: the topics that a member may read, and the reports on those that it may not."""

from __future__ import annotations

import pytest

from headrace.clients.assignors import choose_assignors, register_assignor
from headrace.clients.assignors.spread import RangeAssignor
from headrace.clients.config import ConsumerConfig, parse_config
from headrace.clients.consumer.classic import ClassicProtocolMember
from headrace.errors import (
    ApiError,
    ClosedError,
    ConcurrentPollError,
    ConfigError,
    ConflictingSubscriptionError,
    ErrorCode,
    InvalidTopicError,
    NoSubscriptionError,
    NotAssignedError,
    TransportError,
    UnknownAssignorError,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program, rebalance

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def make_simulation(topics: str = "t") -> ConsumerSimulation:
    simulation = ConsumerSimulation()
    for topic in topics:
        simulation.broker.create_topic(topic, partitions=2)
    return simulation


def test_poll_fails_without_a_subscription() -> None:
    reader = make_simulation().consumer(group="g")
    with pytest.raises(NoSubscriptionError, match="call subscribe or assign first"):
        reader.poll(0)
    reader.subscribe(["t"])
    reader.poll(100)
    reader.run(reader.core.unsubscribe(10_000))
    assert reader.assignment() == []
    with pytest.raises(NoSubscriptionError):
        reader.poll(0)


def test_subscriptions_of_different_kinds_exclude_each_other() -> None:
    reader = make_simulation().consumer(group="g")
    reader.subscribe(["t"])
    with pytest.raises(ConflictingSubscriptionError, match="reads topics: call unsubscribe"):
        reader.assign([T0])
    with pytest.raises(ConflictingSubscriptionError, match="before it reads a pattern"):
        reader.subscribe(pattern="t.*")
    reader.run(reader.core.unsubscribe(10_000))
    reader.assign([T0])
    with pytest.raises(ConflictingSubscriptionError, match="partitions chosen by hand"):
        reader.subscribe(["t"])
    reader.assign([])
    reader.subscribe(["t"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": "orders"}, r"for one topic: \['orders'\]"),
        ({"topics": [1]}, "a topic's name is text"),
        ({"topics": ["t"], "pattern": "t"}, "not both"),
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": ".*", "exclude": "("}, "no regular expression"),
        ({"topics": ["t"], "listener": object()}, "any of on_revoked, on_assigned, on_lost"),
    ],
)
def test_subscriptions_of_the_wrong_form(arguments, message: str) -> None:
    reader = make_simulation().consumer(group="g")
    with pytest.raises(ConfigError, match=message):
        reader.subscribe(**arguments)


@pytest.mark.parametrize("name", ["no/topic", "..", "t*", "x" * 250, "t\n"])
def test_a_name_that_no_topic_may_have_is_no_subscription(name: str) -> None:
    reader = make_simulation().consumer(group="g")
    with pytest.raises(InvalidTopicError, match="is not a valid topic name"):
        reader.subscribe(["t", name])
    reader.subscribe(["t", "...", "x" * 249])


def test_subscribing_needs_a_group() -> None:
    reader = make_simulation().consumer()
    with pytest.raises(ConfigError, match="needs a group"):
        reader.subscribe(["t"])


@pytest.mark.parametrize("name", [T0, TopicPartition("u", 7)])
def test_partitions_that_are_not_read(name: TopicPartition) -> None:
    reader = make_simulation().consumer(group="g")
    reader.assign([T1])
    positions = reader.core.positions
    for use in (
        lambda: positions.seek(name, 3),
        lambda: reader.run(positions.position(name, 0)),
        lambda: positions.pause([name]),
        lambda: positions.resume([name]),
        lambda: reader.run(positions.seek_to([name], -2)),
        lambda: reader.run(positions.lag([name], 0)),
    ):
        with pytest.raises(NotAssignedError, match="it reads t-1"):
            use()


def test_partitions_that_do_not_exist_cannot_be_assigned() -> None:
    reader = make_simulation().consumer()
    with pytest.raises(ApiError, match="no partition 9"):
        reader.assign([TopicPartition("t", 9)])
    with pytest.raises(ApiError) as raised:
        reader.assign([TopicPartition("missing", 0)])
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_assigning_again_keeps_the_position_where_none_is_given() -> None:
    simulation = make_simulation()
    simulation.fill("t", 2, 5)
    reader = simulation.consumer(auto_offset_reset="earliest")
    reader.assign([T0])
    assert len(reader.poll(1000, 3)) == 3
    reader.assign([T0, T1])
    assert reader.core.positions.positions()[T0] == 3
    reader.assign({T0: 1})
    assert reader.core.positions.positions() == {T0: 1}


def test_a_closed_consumer_refuses_every_call() -> None:
    reader = make_simulation().consumer(group="g")
    reader.subscribe(["t"])
    reader.poll(10)
    reader.close()
    for use in (
        lambda: reader.poll(0),
        reader.commit,
        lambda: reader.subscribe(["t"]),
        lambda: reader.core.positions.seek(T0, 0),
        reader.core.take_one,
    ):
        with pytest.raises(ClosedError, match="the consumer is closed"):
            use()


def test_a_listener_does_not_poll() -> None:
    class Polling:
        def on_assigned(self, partitions):
            reader.poll(0)

    reader = make_simulation().consumer(group="g")
    reader.subscribe(["t"], listener=Polling())
    with pytest.raises(ConcurrentPollError, match="polled already"):
        reader.poll(1000)
    assert reader.poll(0) == []


def test_the_assignment_is_waited_for() -> None:
    reader = make_simulation().consumer(group="g")
    reader.subscribe(["t"])
    assert reader.run(reader.core.assignment(10_000)) == [T0, T1]


def test_an_unreachable_cluster_is_an_error_but_one_that_is_lost_is_waited_for() -> None:
    simulation = make_simulation()
    reader = simulation.consumer(group="g", request_timeout_ms=2_000)
    simulation.fault = lambda _program, _call: TransportError("connection refused")
    reader.subscribe(["t"])
    with pytest.raises(TransportError, match="connection refused"):
        reader.poll(60_000)
    simulation.fault = None
    assert reader.poll(5_000) == []
    assert reader.assignment() == [T0, T1]
    simulation.fault = lambda _program, _call: TransportError("connection refused")
    assert reader.poll(60_000) == []


# Assignors by name


def test_assignors_are_chosen_by_name_class_object_or_a_list_of_them() -> None:
    names = [assignor.name for assignor in choose_assignors(["equal", RangeAssignor])]
    assert names == ["equal", "range"]
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor,roundrobin"
    assert [one.name for one in choose_assignors(java)] == ["cooperative-sticky", "roundrobin"]
    own = RangeAssignor()
    assert choose_assignors(own) == [own]
    config = parse_config(ConsumerConfig, {"partition.assignment.strategy": "sticky"})
    assert config.partition_assignment_strategy == "sticky"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("rage", "did you mean 'range'"),
        ([], "no assignor is given"),
        ("", "no assignor is given"),
        (3, "is not an assignor"),
        (object, "is not an assignor"),
    ],
)
def test_an_object_that_is_not_an_assignor_is_refused(choice, message: str) -> None:
    with pytest.raises(UnknownAssignorError, match=message):
        choose_assignors(choice)


def test_an_assignor_of_ones_own_gets_a_name() -> None:
    class Mine(RangeAssignor):
        name = "mine"

    register_assignor("mine", Mine)
    [found] = choose_assignors("mine")
    assert isinstance(found, Mine)


# Attachments of groups


class Attached:
    """A broker with attachments: it answers DescribeConfigs of groups."""

    def __init__(self, **configs: str) -> None:
        self.configs = {"headrace.topics": "", "headrace.pattern": "", "headrace.assignor": ""}
        self.configs |= {f"headrace.{name}": value for name, value in configs.items()}

    def __call__(self, _program: Program, call):
        request = call.request
        if not isinstance(request, DescribeConfigsRequest):
            return None
        [resource] = request.resources
        if resource.resource_type != 32:
            return None
        entries = [
            DescribeConfigsResourceResult(name=name, value=value)
            for name, value in self.configs.items()
        ]
        result = DescribeConfigsResult(
            resource_type=32, resource_name=resource.resource_name, configs=entries
        )
        return DescribeConfigsResponse(results=[result])


def test_members_read_the_topics_that_their_group_is_attached_to() -> None:
    simulation = make_simulation("abc")
    simulation.fault = attached = Attached(topics="a,b", assignor="equal")
    reader = simulation.consumer(group="g")
    reader.subscribe()
    rebalance(reader, rounds=2)
    assert {topic for topic, _ in reader.assignment()} == {"a", "b"}
    assert isinstance(reader.core._member, ClassicProtocolMember)
    assert next(one.name for one in reader.core._member.assignors) == "equal"
    attached.configs["headrace.topics"] = "b,c"
    rebalance(reader)
    assert {topic for topic, _ in reader.assignment()} == {"b", "c"}
    attached.configs |= {"headrace.topics": "", "headrace.pattern": "[ab]"}
    rebalance(reader)
    assert {topic for topic, _ in reader.assignment()} == {"a", "b"}


def test_a_member_may_join_before_its_group_is_attached_to_anything() -> None:
    simulation = make_simulation("a")
    simulation.fault = attached = Attached()
    reader = simulation.consumer(group="g")
    reader.subscribe()
    rebalance(reader, rounds=2)
    assert reader.core.joined
    attached.configs["headrace.topics"] = "a"
    rebalance(reader)
    assert {topic for topic, _ in reader.assignment()} == {"a"}


def test_a_broker_that_keeps_no_attachments_is_named_as_the_reason() -> None:
    simulation = make_simulation()
    simulation.fault = lambda _program, call: (
        DescribeConfigsResponse(results=[DescribeConfigsResult(resource_type=32)])
        if isinstance(call.request, DescribeConfigsRequest)
        else None
    )
    reader = simulation.consumer(group="g")
    with pytest.raises(ConfigError, match="does not store attachments, so group 'g' has none"):
        reader.subscribe()


def test_close_ends_in_time_if_no_broker_answers() -> None:
    simulation = make_simulation()
    simulation.fill("t", 1, 5)
    reader = simulation.consumer(group="g", auto_offset_reset="earliest")
    reader.subscribe(["t"])
    assert reader.poll(1000)
    simulation.fault = lambda _program, _call: TransportError("gone")
    began_ms = simulation.now_ms
    reader.run(reader.core.close("handed out", 1_500))
    assert simulation.now_ms - began_ms <= 2_000
    assert any("could not be committed" in text for text in reader.warnings)


def test_a_lag_that_cannot_be_measured_in_time() -> None:
    simulation = make_simulation()
    reader = simulation.consumer()
    reader.assign([T0, T1])
    simulation.fault = lambda _program, _call: TransportError("gone")
    with pytest.raises(TransportError):
        reader.run(reader.core.positions.lag(None, 1_000), 1_000)
