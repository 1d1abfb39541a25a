"""Configurations of groups: attached topics that administrators set are stored, described, and reported to members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.errors import ErrorCode, StorageError
from headrace.ports import Put
from headrace.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from headrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.metadata_stores import stored

GROUP = 32
SET, DELETE, APPEND, SUBTRACT = range(4)
SOURCE_DEFAULT, SOURCE_GROUP = 5, 8


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness(offsets_topic_num_partitions=2, group_initial_rebalance_delay_ms=0)
    made.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    return made


def change(harness, *changes, group="g", validate_only=False):
    """Change settings. A change is (name, value) or (name, value, operation)."""
    configs = [
        IncrementalConfig(
            name=each[0], value=each[1], config_operation=each[2] if len(each) > 2 else SET
        )
        for each in changes
    ]
    resource = IncrementalResource(resource_type=GROUP, resource_name=group, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = harness.call(request).responses
    assert bool(response.error_message) == bool(response.error_code)
    return ErrorCode(response.error_code), response.error_message


def attach(harness, topics: str, **options) -> None:
    assert change(harness, ("headrace.topics", topics), **options) == (ErrorCode.NONE, None)


def described(harness, group="g"):
    resource = DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = harness.call(request).results
    return result


def values(harness, group="g") -> dict[str, str]:
    return {
        c.name: c.value
        for c in described(harness, group).configs
        if c.config_source == SOURCE_GROUP
    }


def listed(harness, **filters) -> dict[str, str]:
    response = harness.call(ListGroupsRequest(**filters))
    assert response.error_code == 0
    return {group.group_id: group.group_state for group in response.groups}


class Member:
    """The only member of a group."""

    def __init__(self, harness, *assignors: str) -> None:
        self._harness = harness
        self._assignors = assignors or ("range",)
        self.member_id = self._join("").member_id
        self.generation = 0
        self.rejoin()

    def _join(self, member_id: str):
        protocols = [JoinGroupRequestProtocol(name=n, metadata=b"") for n in self._assignors]
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=protocols,
        )
        return self._harness.call(request)

    def rejoin(self) -> None:
        joined = self._join(self.member_id)
        assert joined.error_code == 0
        self.generation = joined.generation_id
        synced = self._harness.call(
            SyncGroupRequest(
                group_id="g",
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name=joined.protocol_name,
            )
        )
        assert synced.error_code == 0

    def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id
        )
        return ErrorCode(self._harness.call(request).error_code)


# Configs that are stored and described


def test_a_group_without_a_configuration_has_defaults(harness) -> None:
    told = described(harness)
    assert {c.name: (c.value, c.config_source) for c in told.configs} == {
        "consumer.assignment.interval.ms": ("0", SOURCE_DEFAULT),
        "consumer.heartbeat.interval.ms": ("5000", SOURCE_DEFAULT),
        "consumer.session.timeout.ms": ("45000", SOURCE_DEFAULT),
        "headrace.assignor": ("", SOURCE_DEFAULT),
        "headrace.pattern": ("", SOURCE_DEFAULT),
        "headrace.topics": ("", SOURCE_DEFAULT),
    }


def test_topics_are_attached_and_detached_one_by_one(harness) -> None:
    attach(harness, " a , b")
    change(harness, ("headrace.topics", "c", APPEND), ("headrace.assignor", "equal"))
    change(harness, ("headrace.topics", "b", SUBTRACT))
    assert values(harness) == {"headrace.topics": "a,c", "headrace.assignor": "equal"}
    change(harness, ("headrace.topics", "a,c", SUBTRACT))
    assert values(harness)["headrace.topics"] == "", "still a group, attached to nothing"
    change(harness, ("headrace.topics", None, DELETE), ("headrace.assignor", None, DELETE))
    assert values(harness) == {}
    assert listed(harness) == {}


def test_synonyms_include_the_default(harness) -> None:
    attach(harness, "a")
    (topics,) = [c for c in described(harness).configs if c.name == "headrace.topics"]
    assert [(s.value, s.source) for s in topics.synonyms] == [
        ("a", SOURCE_GROUP),
        ("", SOURCE_DEFAULT),
    ]


@pytest.mark.parametrize("again", ["restart", "crash"])
@pytest.mark.parametrize("group", ["g", "a/b é\n", "x" * 900])
def test_the_attached_topics_of_a_group_survive_a_restart(harness, again, group) -> None:
    attach(harness, "a,b", group=group)
    getattr(harness, again)()
    assert values(harness, group) == {"headrace.topics": "a,b"}


def test_replacing_the_configs_resets_the_options_left_out(harness) -> None:
    change(harness, ("headrace.topics", "a"), ("headrace.assignor", "equal"))
    configs = [AlterableConfig(name="headrace.pattern", value="a.*")]
    resource = AlterConfigsResource(resource_type=GROUP, resource_name="g", configs=configs)
    (response,) = harness.call(AlterConfigsRequest(resources=[resource])).responses
    assert response.error_code == 0
    assert values(harness) == {"headrace.pattern": "a.*"}


def test_validating_changes_nothing(harness) -> None:
    attach(harness, "a", validate_only=True)
    assert values(harness) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("headrace.topics", "a b")], "has a character other than"),
        ([("headrace.pattern", "(")], "no regular expression"),
        ([("headrace.pattern", "(" * 1000)], "no regular expression"),
        ([("headrace.pattern", "a{99999999999999999999}")], "no regular expression"),
        ([("headrace.pattern", "a" * 1001)], "longer than 1000"),
        ([("headrace.pattern", "a"), ("headrace.topics", "a")], "not both"),
        ([("headrace.assignor", "equal,range")], "a group has one"),
        ([("headrace.topic", "a")], "did you mean headrace.topics"),
        ([("headrace.assignor", "a", APPEND)], "is not a list"),
        ([("consumer.session.timeout.ms", "44999")], "must be from 45000 to 60000"),
        ([("consumer.session.timeout.ms", "60001")], "group.consumer.max.session.timeout.ms"),
        ([("consumer.session.timeout.ms", "soon")], "expected"),
        ([("consumer.heartbeat.interval.ms", "4999")], "must be from 5000 to 15000"),
        ([("consumer.assignment.interval.ms", "15001")], "must be from 0 to 15000"),
        ([("consumer.session.timeout", "45000")], "did you mean consumer.session.timeout.ms"),
        ([("consumer.assignor.offload.enable", "true")], "at once"),
        ([("share.auto.offset.reset", "latest")], "no share groups"),
    ],
)
def test_invalid_group_settings_are_refused_with_a_reason(harness, changes, message) -> None:
    code, told = change(harness, *changes)
    assert code == ErrorCode.INVALID_CONFIG
    assert message in told
    assert values(harness) == {}


@pytest.mark.parametrize("group", ["", "x" * 901, "é" * 200])
def test_invalid_group_names_cannot_be_configured(harness, group) -> None:
    assert change(harness, ("headrace.topics", "a"), group=group)[0] == ErrorCode.INVALID_REQUEST
    assert described(harness, group).error_code == ErrorCode.INVALID_REQUEST


def test_the_number_of_groups_with_a_configuration_is_bounded(harness, monkeypatch) -> None:
    monkeypatch.setattr("headrace.broker.coordinators.group_settings.GROUPS_LIMIT", 2)
    attach(harness, "a", group="g1")
    attach(harness, "a", group="g2")
    assert change(harness, ("headrace.topics", "a"), group="g3")[0] == ErrorCode.POLICY_VIOLATION
    attach(harness, "b", group="g2")


def test_an_invalid_stored_group_setting_stops_the_start(harness) -> None:
    attach(harness, "a")
    entry = stored(harness.metadata)["config/group/g"]
    bad = entry.value.replace(b"headrace.topics", b"headrace.topicz")
    harness.metadata.commit([], [Put(entry.key, bad)])
    with pytest.raises(StorageError, match="config/group/g"):
        harness.restart()


# Groups that have a configuration and nothing else


def test_a_configured_group_is_listed_and_described_as_empty(harness) -> None:
    attach(harness, "", group="new")
    assert listed(harness) == {"new": "Empty"}
    assert listed(harness, states_filter=["EMPTY"], types_filter=["Classic"]) == {"new": "Empty"}
    assert listed(harness, states_filter=["Stable"]) == {}
    assert listed(harness, types_filter=["consumer"]) == {}
    found, unknown = harness.call(DescribeGroupsRequest(groups=["new", "none"])).groups
    assert (found.group_state, found.protocol_type, found.members) == ("Empty", "consumer", [])
    assert unknown.group_state == "Dead"
    request = ListConfigResourcesRequest(resource_types=[GROUP])
    resources = harness.call(request).config_resources
    assert [(r.resource_type, r.resource_name) for r in resources] == [(GROUP, "new")]


def test_a_configured_group_with_members_is_listed_once(harness) -> None:
    Member(harness)
    attach(harness, "a", group="g")
    assert list(listed(harness)) == ["g"]
    assert listed(harness, states_filter=["Empty"]) == {}


@pytest.mark.parametrize("again", ["restart", "crash"])
def test_a_deletion_of_a_group_deletes_its_configuration(harness, again) -> None:
    attach(harness, "a")
    attach(harness, "a", group="other")
    results = harness.call(DeleteGroupsRequest(groups_names=["g", "none"])).results
    assert [(r.group_id, r.error_code) for r in results] == [
        ("g", 0),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    getattr(harness, again)()
    assert listed(harness) == {"other": "Empty"}


def test_a_group_with_members_keeps_its_configuration(harness) -> None:
    attach(harness, "a")
    Member(harness)
    (result,) = harness.call(DeleteGroupsRequest(groups_names=["g"])).results
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP
    assert values(harness) == {"headrace.topics": "a"}


# Members


def test_a_rebalance_notifies_the_members(harness) -> None:
    member = Member(harness)
    assert member.heartbeat() == ErrorCode.NONE
    attach(harness, "a")
    assert member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    member.rejoin()
    attach(harness, "a")
    assert member.heartbeat() == ErrorCode.NONE, "nothing has changed"
    change(harness, ("headrace.topics", "a", SUBTRACT))
    assert member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    member.rejoin()
    assert member.heartbeat() == ErrorCode.NONE


def test_other_groups_are_left_alone(harness) -> None:
    member = Member(harness)
    attach(harness, "a", group="other")
    assert member.heartbeat() == ErrorCode.NONE


def test_the_assignor_changes_only_to_one_that_all_members_know(harness) -> None:
    member = Member(harness, "range", "equal")
    code, message = change(harness, ("headrace.assignor", "sticky"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "stop all of them" in message
    assert change(harness, ("headrace.assignor", "range")) == (ErrorCode.NONE, None)
    assert change(harness, ("headrace.assignor", "equal")) == (ErrorCode.NONE, None)
    assert member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


# Times of consumer groups


def beat(harness, epoch: int, **fields):
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=epoch, **fields
    )
    return harness.call(request, version=1)


def joined(harness):
    return beat(
        harness, 0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )


def test_a_group_has_its_own_session_and_heartbeat_times(harness) -> None:
    told = joined(harness)
    assert told.heartbeat_interval_ms == 5000
    wanted = [("consumer.heartbeat.interval.ms", "9000"), ("consumer.session.timeout.ms", "50000")]
    assert change(harness, *wanted) == (ErrorCode.NONE, None)
    assert beat(harness, told.member_epoch).heartbeat_interval_ms == 9000
    harness.crash()
    assert beat(harness, told.member_epoch).heartbeat_interval_ms == 9000
    harness.advance(49_999)
    assert beat(harness, told.member_epoch).error_code == 0
    harness.advance(50_001)
    assert beat(harness, told.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_times_alone_make_no_group(harness) -> None:
    assert change(harness, ("consumer.session.timeout.ms", "50000"))[0] == 0
    assert listed(harness) == {}
    (deleted,) = harness.call(DeleteGroupsRequest(groups_names=["g"])).results
    assert deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert values(harness) == {"consumer.session.timeout.ms": "50000"}


def test_times_do_not_make_members_join_again(harness) -> None:
    member = Member(harness)
    change(harness, ("consumer.session.timeout.ms", "50000"))
    assert member.heartbeat() is ErrorCode.NONE


def test_a_stored_heartbeat_interval_above_the_brokers_maximum_is_lowered(harness) -> None:
    assert change(harness, ("consumer.heartbeat.interval.ms", "15000"))[0] == 0
    harness.config = replace(harness.config, group_consumer_max_heartbeat_interval_ms=7000)
    harness.restart()
    assert joined(harness).heartbeat_interval_ms == 7000


def test_a_session_is_longer_than_an_interval() -> None:
    harness = BrokerHarness(
        group_consumer_min_session_timeout_ms=10, group_consumer_session_timeout_ms=9000
    )
    code, told = change(harness, ("consumer.heartbeat.interval.ms", "9000"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "must be greater than" in told
