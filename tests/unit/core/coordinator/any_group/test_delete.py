"""DeleteGroups and OffsetDelete: the groups and offsets that may be deleted, and the records of a deletion."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.state.records import GenerationRecord, OffsetCommit
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.fixtures.group_harness import GroupHarness, now, parked, subscription


def delete_groups(world: GroupHarness, *group_ids: str):
    return world.coordinator.delete_groups(group_ids, world.now_ms)


def codes(reply) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in now(reply)]


def delete_offsets(world: GroupHarness, *wanted: tuple[str, int], group: str = "g"):
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, index in wanted:
        partitions = topics.setdefault(topic, [])
        partitions.append(OffsetDeleteRequestPartition(partition_index=index))
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
    return world.coordinator.delete_offsets(request, world.now_ms)


def told(reply) -> dict[tuple[str, int], ErrorCode]:
    response = now(reply)
    assert response.error_code == 0
    return {
        (topic.name, part.partition_index): ErrorCode(part.error_code)
        for topic in response.topics
        for part in topic.partitions
    }


def left(world: GroupHarness, *options) -> None:
    """A group that had a member, and offsets."""
    (member,) = world.stable()
    now(world.commit({("t", 0): 5, ("u", 1): 6}, member=member, generation=1))
    now(world.leave((member, None)))
    world.take_records()


# DeleteGroups


def test_a_group_without_members_is_forgotten_with_its_offsets():
    world = GroupHarness()
    left(world)
    assert codes(delete_groups(world, "g")) == [ErrorCode.NONE]
    assert world.take_records() == [
        OffsetCommit("g", "t", 0, None),
        OffsetCommit("g", "u", 1, None),
        GenerationRecord("g", None),
    ]
    assert world.offsets() == {}
    (described,) = now(world.coordinator.describe_groups(["g"], world.now_ms))
    assert described.group_state == "Dead"
    assert now(world.coordinator.list_groups([], [], world.now_ms))[1] == []


def test_a_deleted_group_stays_deleted_after_a_restart():
    world = GroupHarness()
    left(world)
    now(delete_groups(world, "g"))
    world.restart()
    assert world.offsets() == {}
    assert codes(delete_groups(world, "g")) == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_a_group_that_only_has_offsets_is_forgotten():
    world = GroupHarness()
    now(world.commit({("t", 0): 5}))
    assert codes(delete_groups(world, "g")) == [ErrorCode.NONE]
    assert world.offsets() == {}


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_a_group_with_members_is_not_deleted(state):
    world = GroupHarness()
    if state == "CompletingRebalance":
        _, reply = world.admitted()
        now(reply)
    else:
        world.stable()
    if state == "PreparingRebalance":
        world.admitted()
    (described,) = now(world.coordinator.describe_groups(["g"], world.now_ms))
    assert described.group_state == state
    world.take_records()
    assert codes(delete_groups(world, "g")) == [ErrorCode.NON_EMPTY_GROUP]
    assert world.take_records() == []


def test_unknown_groups_and_others_are_answered_each_for_itself():
    world = GroupHarness(partitions=3)
    now(world.commit({("t", 0): 5}, group="one"))
    now(world.commit({("t", 0): 5}, group=""))
    world.stable(group="two")
    results = now(delete_groups(world, "one", "none", "two", ""))
    assert [(r.group_id, ErrorCode(r.error_code)) for r in results] == [
        ("one", ErrorCode.NONE),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        ("two", ErrorCode.NON_EMPTY_GROUP),
        ("", ErrorCode.NONE),
    ]


def test_handed_out_ids_are_forgotten_with_the_group():
    world = GroupHarness()
    given = now(world.join())
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert codes(delete_groups(world, "g")) == [ErrorCode.NONE]
    again = now(world.join(given.member_id))
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    world.advance(3_600_000)


def test_the_answer_waits_until_it_is_durable():
    world = GroupHarness(manual=True)
    world.commit({("t", 0): 5})
    world.sync()
    reply = delete_groups(world, "g", "none")
    assert parked(reply)
    world.restart()
    assert world.offsets() == {("t", 0): 5}, "a crash before the sync takes it back"
    reply = delete_groups(world, "g")
    world.sync()
    assert codes(reply) == [ErrorCode.NONE]


def test_a_deletion_that_cannot_be_written_changes_nothing():
    world = GroupHarness()
    left(world)
    world.log.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert codes(delete_groups(world, "g")) == [ErrorCode.NOT_COORDINATOR]
    world.log.failure = None
    assert world.offsets() == {("t", 0): 5, ("u", 1): 6}


# OffsetDelete


def test_offsets_of_a_group_without_members_are_forgotten():
    world = GroupHarness()
    left(world)
    assert told(delete_offsets(world, ("t", 0), ("t", 9))) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 9): ErrorCode.NONE,
    }
    assert world.take_records() == [OffsetCommit("g", "t", 0, None)]
    assert world.offsets() == {("u", 1): 6}
    world.restart()
    assert world.offsets() == {("u", 1): 6}


def test_the_same_partition_twice_is_one_tombstone():
    world = GroupHarness()
    left(world)
    now(delete_offsets(world, ("t", 0), ("t", 0)))
    assert world.take_records() == [OffsetCommit("g", "t", 0, None)]


def test_topics_that_members_are_subscribed_to_are_refused_and_others_not():
    world = GroupHarness()
    (member,) = world.stable()  # subscribed to t
    now(world.commit({("t", 0): 5, ("u", 1): 6}, member=member, generation=1))
    world.take_records()
    assert told(delete_offsets(world, ("t", 0), ("u", 1))) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 1): ErrorCode.NONE,
    }
    assert world.offsets() == {("t", 0): 5}


def test_while_members_join_every_subscription_counts():
    world = GroupHarness()
    (member,) = world.stable()
    now(world.commit({("u", 1): 6, ("w", 0): 7}, member=member, generation=1))
    world.admitted(protocols={"range": subscription("u")})
    world.take_records()
    assert told(delete_offsets(world, ("t", 0), ("u", 1), ("w", 0))) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 1): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("w", 0): ErrorCode.NONE,
    }


def test_a_subscription_that_cannot_be_read_may_be_to_anything():
    world = GroupHarness()
    (member,) = world.stable(protocols={"range": b""})
    now(world.commit({("t", 0): 5}, member=member, generation=1))
    assert told(delete_offsets(world, ("t", 0))) == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_a_group_of_another_protocol_with_members_is_refused_as_a_whole():
    world = GroupHarness()
    world.stable(protocol_type="connect", protocols={"range": b"x"})
    response = now(delete_offsets(world, ("t", 0)))
    assert (response.error_code, response.topics) == (ErrorCode.NON_EMPTY_GROUP, [])


def test_an_unknown_group_is_an_error_of_the_whole():
    world = GroupHarness()
    response = now(delete_offsets(world, ("t", 0)))
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_the_last_offset_takes_a_group_without_generation_with_it():
    world = GroupHarness()
    now(world.commit({("t", 0): 5}))
    now(delete_offsets(world, ("t", 0)))
    assert codes(delete_groups(world, "g")) == [ErrorCode.GROUP_ID_NOT_FOUND]
