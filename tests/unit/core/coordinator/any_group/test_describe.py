"""DescribeGroups, ListGroups, and the partition that stores a group."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.partitioning import java_hash, partition_for_key
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace.protocol.messages.list_groups import ListedGroup
from tests.fixtures.group_harness import GroupHarness, assignment, now, subscription


@pytest.fixture
def harness() -> GroupHarness:
    harness = GroupHarness(partitions=8)
    harness.stable(2, group="stable")
    harness.admitted(group="completing")
    harness.stable(group="preparing")
    harness.admitted(group="preparing")
    (left,) = harness.stable(
        group="empty", protocol_type="connect", protocols={"v0": b""}, client="worker"
    )
    now(harness.leave((left, None), group="empty"))
    harness.commit({("t", 0): 1}, group="simple")
    return harness


def listed(harness: GroupHarness, states=(), types=()) -> dict[str, tuple[str, str, str]]:
    error, groups = now(harness.coordinator.list_groups(states, types, harness.now_ms))
    assert error == ErrorCode.NONE
    return {g.group_id: (g.group_state, g.protocol_type, g.group_type) for g in groups}


def test_all_groups_are_listed(harness):
    assert listed(harness) == {
        "completing": ("CompletingRebalance", "consumer", "classic"),
        "empty": ("Empty", "connect", "classic"),
        "preparing": ("PreparingRebalance", "consumer", "classic"),
        "simple": ("Empty", "", "classic"),
        "stable": ("Stable", "consumer", "classic"),
    }


@pytest.mark.parametrize(
    ("states", "types", "names"),
    [
        (["Stable"], [], {"stable"}),
        (["stable", "EMPTY"], [], {"stable", "simple", "empty"}),
        (["Dead"], [], set()),
        ([], ["consumer"], set()),
        (["Stable"], ["Classic"], {"stable"}),
    ],
)
def test_lists_can_be_filtered_by_state_and_type(harness, states, types, names):
    assert set(listed(harness, states, types)) == names


def test_a_list_waits_until_the_listed_states_are_durable():
    harness = GroupHarness(manual=True)
    harness.commit({("t", 0): 1})
    reply = harness.coordinator.list_groups([], [], harness.now_ms)
    harness.sync()
    assert now(reply) == (
        ErrorCode.NONE,
        [ListedGroup(group_id="g", group_state="Empty", group_type="classic")],
    )


def test_a_stable_group_is_described_with_its_members(harness):
    (group,) = now(harness.coordinator.describe_groups(["stable"], harness.now_ms))
    members = harness.group("stable").members
    assert group == DescribedGroup(
        group_id="stable",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=[
            DescribedGroupMember(
                member_id=name,
                client_id="client",
                client_host="/127.0.0.1",
                member_metadata=subscription("t"),
                member_assignment=assignment("t", index),
            )
            for index, name in enumerate(members)
        ],
    )


def test_outside_of_stable_no_metadata_is_shown(harness):
    (group,) = now(harness.coordinator.describe_groups(["completing"], harness.now_ms))
    assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
    assert [member.member_metadata for member in group.members] == [b""]


def test_a_group_that_does_not_exist_is_dead(harness):
    (group,) = now(harness.coordinator.describe_groups(["nowhere"], harness.now_ms))
    assert group == DescribedGroup(group_id="nowhere", group_state="Dead")


def test_groups_are_described_in_the_order_asked(harness):
    names = ["simple", "nowhere", "stable", "empty"]
    groups = now(harness.coordinator.describe_groups(names, harness.now_ms))
    assert [group.group_id for group in groups] == names


def test_a_group_that_is_being_loaded_is_an_error(harness):
    harness.coordinator.begin(harness.coordinator.partition_for("stable"))
    (group,) = now(harness.coordinator.describe_groups(["stable"], harness.now_ms))
    assert group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("console-consumer-12345", 158455506),
        ("grüße", 98768023),
        ("😀", 1772899),
    ],
)
def test_hashes_are_javas(text, expected):
    assert java_hash(text) == expected


@pytest.mark.parametrize(
    ("group", "partition"), [("polygenelubricants", 0), ("a", 47), ("", 0), ("hello", 22)]
)
def test_a_group_is_stored_in_the_partition_that_kafka_computes(group, partition):
    assert partition_for_key(group, 50) == partition
