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


def delete_groups(harness: GroupHarness, *group_ids: str):
    return harness.coordinator.delete_groups(group_ids, harness.now_ms)


def codes(reply) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in now(reply)]


def delete_offsets(harness: GroupHarness, *wanted: tuple[str, int], group: str = "g"):
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
    return harness.coordinator.delete_offsets(request, harness.now_ms)


def results(reply) -> dict[tuple[str, int], ErrorCode]:
    response = now(reply)
    assert response.error_code == 0
    return {
        (topic.name, part.partition_index): ErrorCode(part.error_code)
        for topic in response.topics
        for part in topic.partitions
    }


def left(harness: GroupHarness, *options) -> None:
    """A group that had a member, and offsets."""
    (member,) = harness.stable()
    now(harness.commit({("t", 0): 5, ("u", 1): 6}, member=member, generation=1))
    now(harness.leave((member, None)))
    harness.take_records()


# DeleteGroups


def test_a_group_without_members_is_forgotten_with_its_offsets():
    harness = GroupHarness()
    left(harness)
    assert codes(delete_groups(harness, "g")) == [ErrorCode.NONE]
    assert harness.take_records() == [
        OffsetCommit("g", "t", 0, None),
        OffsetCommit("g", "u", 1, None),
        GenerationRecord("g", None),
    ]
    assert harness.offsets() == {}
    (described,) = now(harness.coordinator.describe_groups(["g"], harness.now_ms))
    assert described.group_state == "Dead"
    assert now(harness.coordinator.list_groups([], [], harness.now_ms))[1] == []


def test_a_deleted_group_stays_deleted_after_a_restart():
    harness = GroupHarness()
    left(harness)
    now(delete_groups(harness, "g"))
    harness.restart()
    assert harness.offsets() == {}
    assert codes(delete_groups(harness, "g")) == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_a_group_that_only_has_offsets_is_forgotten():
    harness = GroupHarness()
    now(harness.commit({("t", 0): 5}))
    assert codes(delete_groups(harness, "g")) == [ErrorCode.NONE]
    assert harness.offsets() == {}


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_a_group_with_members_is_not_deleted(state):
    harness = GroupHarness()
    if state == "CompletingRebalance":
        _, reply = harness.admitted()
        now(reply)
    else:
        harness.stable()
    if state == "PreparingRebalance":
        harness.admitted()
    (described,) = now(harness.coordinator.describe_groups(["g"], harness.now_ms))
    assert described.group_state == state
    harness.take_records()
    assert codes(delete_groups(harness, "g")) == [ErrorCode.NON_EMPTY_GROUP]
    assert harness.take_records() == []


def test_unknown_groups_and_others_are_answered_each_for_itself():
    harness = GroupHarness(partitions=3)
    now(harness.commit({("t", 0): 5}, group="one"))
    now(harness.commit({("t", 0): 5}, group=""))
    harness.stable(group="two")
    results = now(delete_groups(harness, "one", "none", "two", ""))
    assert [(r.group_id, ErrorCode(r.error_code)) for r in results] == [
        ("one", ErrorCode.NONE),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        ("two", ErrorCode.NON_EMPTY_GROUP),
        ("", ErrorCode.NONE),
    ]


def test_pending_member_ids_are_dropped_with_the_group():
    harness = GroupHarness()
    given = now(harness.join())
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert codes(delete_groups(harness, "g")) == [ErrorCode.NONE]
    again = now(harness.join(given.member_id))
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    harness.advance(3_600_000)


def test_the_answer_waits_until_it_is_durable():
    harness = GroupHarness(manual=True)
    harness.commit({("t", 0): 5})
    harness.sync()
    reply = delete_groups(harness, "g", "none")
    assert parked(reply)
    harness.restart()
    assert harness.offsets() == {("t", 0): 5}, "a crash before the sync takes it back"
    reply = delete_groups(harness, "g")
    harness.sync()
    assert codes(reply) == [ErrorCode.NONE]


def test_a_deletion_that_cannot_be_written_changes_nothing():
    harness = GroupHarness()
    left(harness)
    harness.log.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert codes(delete_groups(harness, "g")) == [ErrorCode.NOT_COORDINATOR]
    harness.log.failure = None
    assert harness.offsets() == {("t", 0): 5, ("u", 1): 6}


# OffsetDelete


def test_offsets_of_a_group_without_members_are_forgotten():
    harness = GroupHarness()
    left(harness)
    assert results(delete_offsets(harness, ("t", 0), ("t", 9))) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 9): ErrorCode.NONE,
    }
    assert harness.take_records() == [OffsetCommit("g", "t", 0, None)]
    assert harness.offsets() == {("u", 1): 6}
    harness.restart()
    assert harness.offsets() == {("u", 1): 6}


def test_the_same_partition_twice_is_one_tombstone():
    harness = GroupHarness()
    left(harness)
    now(delete_offsets(harness, ("t", 0), ("t", 0)))
    assert harness.take_records() == [OffsetCommit("g", "t", 0, None)]


def test_topics_that_members_are_subscribed_to_are_refused_and_others_not():
    harness = GroupHarness()
    (member,) = harness.stable()  # subscribed to t
    now(harness.commit({("t", 0): 5, ("u", 1): 6}, member=member, generation=1))
    harness.take_records()
    assert results(delete_offsets(harness, ("t", 0), ("u", 1))) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 1): ErrorCode.NONE,
    }
    assert harness.offsets() == {("t", 0): 5}


def test_while_members_join_every_subscription_counts():
    harness = GroupHarness()
    (member,) = harness.stable()
    now(harness.commit({("u", 1): 6, ("w", 0): 7}, member=member, generation=1))
    harness.admitted(protocols={"range": subscription("u")})
    harness.take_records()
    assert results(delete_offsets(harness, ("t", 0), ("u", 1), ("w", 0))) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 1): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("w", 0): ErrorCode.NONE,
    }


def test_an_unreadable_subscription_protects_the_offsets_of_all_topics():
    harness = GroupHarness()
    (member,) = harness.stable(protocols={"range": b""})
    now(harness.commit({("t", 0): 5}, member=member, generation=1))
    assert results(delete_offsets(harness, ("t", 0))) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    }


def test_a_group_of_another_protocol_with_members_is_refused_as_a_whole():
    harness = GroupHarness()
    harness.stable(protocol_type="connect", protocols={"range": b"x"})
    response = now(delete_offsets(harness, ("t", 0)))
    assert (response.error_code, response.topics) == (ErrorCode.NON_EMPTY_GROUP, [])


def test_an_unknown_group_is_an_error_of_the_whole():
    harness = GroupHarness()
    response = now(delete_offsets(harness, ("t", 0)))
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_a_group_without_generation_is_deleted_with_its_last_offset():
    harness = GroupHarness()
    now(harness.commit({("t", 0): 5}))
    now(delete_offsets(harness, ("t", 0)))
    assert codes(delete_groups(harness, "g")) == [ErrorCode.GROUP_ID_NOT_FOUND]
