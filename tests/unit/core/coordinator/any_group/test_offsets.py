"""Committed offsets: the check of the sender, the stored values, fetches, and expiry."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.core.coordinator import group_shards
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import CommittedOffset, GenerationRecord, OffsetCommit
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.fixtures.group_harness import START_MS, GroupHarness, now, parked, subscription

DAY_MS = 86_400_000


def committed(offset: int, *, at_ms: int = START_MS) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", at_ms)


# --- commit ---


def test_a_member_commits():
    world = GroupHarness()
    (first,) = world.stable()
    response = now(
        world.commit(
            {("t", 0): 5, ("t", 1): 6, ("u", 0): 7},
            member=first,
            generation=1,
            metadata="note",
            leader_epoch=3,
        )
    )
    assert response == OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name="t",
                partitions=[
                    OffsetCommitResponsePartition(partition_index=0),
                    OffsetCommitResponsePartition(partition_index=1),
                ],
            ),
            OffsetCommitResponseTopic(
                name="u", partitions=[OffsetCommitResponsePartition(partition_index=0)]
            ),
        ]
    )
    assert world.take_records() == [
        OffsetCommit("g", "t", 0, CommittedOffset(5, 3, "note", START_MS)),
        OffsetCommit("g", "t", 1, CommittedOffset(6, 3, "note", START_MS)),
        OffsetCommit("g", "u", 0, CommittedOffset(7, 3, "note", START_MS)),
    ]
    assert len(world.log.batches[0]) == 3  # join, sync, and one batch for the whole commit


@pytest.mark.parametrize(
    ("member", "generation", "instance", "error"),
    [
        ("first", 2, None, ErrorCode.ILLEGAL_GENERATION),
        ("first", 0, None, ErrorCode.ILLEGAL_GENERATION),
        ("first", -1, None, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", 1, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 1, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("first", 1, "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_commit_that_is_not_the_present_generations_changes_nothing(
    member, generation, instance, error
):
    world = GroupHarness()
    (first,) = world.stable()
    name = first if member == "first" else member
    code = world.commit_code({("t", 0): 5}, member=name, generation=generation, instance=instance)
    assert code == error
    assert world.take_records() == []
    assert world.offsets() == {}


def test_a_consumer_without_a_group_commits_while_the_group_is_empty():
    world = GroupHarness()
    assert world.commit_code({("t", 0): 5}) == ErrorCode.NONE
    assert world.take_records() == [OffsetCommit("g", "t", 0, committed(5))]
    assert world.group().state is GroupState.EMPTY
    (first,) = world.stable()
    assert world.commit_code({("t", 0): 6}) == ErrorCode.UNKNOWN_MEMBER_ID
    now(world.leave((first, None)))
    assert world.commit_code({("t", 0): 7}) == ErrorCode.NONE
    assert world.offsets() == {("t", 0): 7}


def test_the_empty_group_id_may_commit():
    world = GroupHarness()
    assert world.commit_code({("t", 0): 5}, group="") == ErrorCode.NONE
    assert world.offsets("") == {("t", 0): 5}


@pytest.mark.parametrize(
    ("group", "generation", "version", "error"),
    [
        ("g", 1, 8, ErrorCode.ILLEGAL_GENERATION),
        ("g", 1, 9, ErrorCode.GROUP_ID_NOT_FOUND),
        ("x" * 40_000, -1, 9, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_commit_for_an_invalid_group_id_is_refused(group, generation, version, error):
    world = GroupHarness()
    options = {"group": group, "generation": generation, "version": version}
    assert world.commit_code({("t", 0): 5}, **options) == error
    assert world.take_records() == []


def test_while_members_join_the_old_generation_may_commit():
    world = GroupHarness()
    (first,) = world.stable()
    world.admitted()
    assert world.group().state is GroupState.PREPARING_REBALANCE
    assert world.commit_code({("t", 0): 5}, member=first, generation=1) == ErrorCode.NONE


def test_no_member_may_commit_before_the_assignment_has_arrived():
    world = GroupHarness()
    first, _ = world.admitted()
    code = world.commit_code({("t", 0): 5}, member=first, generation=1)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.offsets() == {}


def test_a_member_that_was_expelled_can_not_commit_any_more():
    world = GroupHarness()
    first, second = world.stable(2)
    for _ in range(3):
        world.advance(4_000)
        world.heartbeat(first, 2)
    assert world.commit_code({("t", 1): 5}, member=second, generation=2) == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert world.offsets() == {}


def test_a_commit_extends_the_session_of_its_member():
    world = GroupHarness()
    (first,) = world.stable()
    for offset in range(5):
        world.advance(9_999)
        assert world.commit_code({("t", 0): offset}, member=first, generation=1) == 0


def test_metadata_that_is_too_long_is_refused_for_its_partition_alone():
    world = GroupHarness(offset_metadata_max_bytes=4)
    request = world.commit({("t", 0): 5, ("t", 1): 6}, metadata="12345")
    assert [entry.error_code for entry in now(request).topics[0].partitions] == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE
    ] * 2
    assert world.take_records() == []
    assert world.commit_code({("t", 0): 5}, metadata="1234") == ErrorCode.NONE


def test_no_metadata_is_kept_as_empty_metadata():
    world = GroupHarness()
    world.commit_code({("t", 0): 5}, metadata=None)
    assert world.take_records() == [OffsetCommit("g", "t", 0, committed(5))]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_cannot_be_written_did_not_happen(code, told):
    world = GroupHarness()
    world.log.failure = ApiError(code)
    assert world.commit_code({("t", 0): 5}) == told
    assert world.offsets() == {}


# --- fetch ---


def test_a_fetch_shows_what_was_committed_and_minus_one_where_nothing_was():
    world = GroupHarness()
    world.commit_code({("t", 0): 5}, metadata="note", leader_epoch=3)
    (response,) = now(world.fetch({"t": [1, 0], "u": [0]}))
    assert response == OffsetFetchResponseGroup(
        group_id="g",
        topics=[
            OffsetFetchResponseTopics(
                name="t",
                partitions=[
                    OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1),
                    OffsetFetchResponsePartitions(
                        partition_index=0,
                        committed_offset=5,
                        committed_leader_epoch=3,
                        metadata="note",
                    ),
                ],
            ),
            OffsetFetchResponseTopics(
                name="u",
                partitions=[OffsetFetchResponsePartitions(partition_index=0, committed_offset=-1)],
            ),
        ],
    )


def test_a_fetch_of_everything():
    world = GroupHarness()
    world.commit_code({("u", 1): 1, ("t", 3): 2, ("t", 0): 3})
    assert world.offsets() == {("t", 0): 3, ("t", 3): 2, ("u", 1): 1}
    assert world.offsets("unknown") == {}


def test_offsets_of_several_groups_come_in_the_order_asked():
    world = GroupHarness(partitions=8)
    for number in range(6):
        world.commit_code({("t", 0): number}, group=f"g{number}")
    groups = [OffsetFetchRequestGroup(group_id=f"g{n}", topics=None) for n in (4, 0, 9, 2)]
    responses = now(world.coordinator.fetch_offsets(groups, world.now_ms))
    assert [
        (response.group_id, [t.partitions[0].committed_offset for t in response.topics])
        for response in responses
    ] == [("g4", [4]), ("g0", [0]), ("g9", []), ("g2", [2])]


def test_a_commit_is_answered_and_shown_only_when_it_cannot_be_lost():
    world = GroupHarness(manual=True)
    commit = world.commit({("t", 0): 5})
    fetch = world.fetch()
    assert parked(commit)
    assert parked(fetch)
    world.sync()
    assert now(commit).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert now(fetch)[0].topics[0].partitions[0].committed_offset == 5


def test_a_fetch_that_waits_too_long_fails_in_a_way_that_old_consumers_retry():
    world = GroupHarness(manual=True)
    commit = world.commit({("t", 0): 5})
    fetch = world.fetch()
    world.advance(5_000)
    code = now(commit).topics[0].partitions[0].error_code
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert now(fetch)[0].error_code == ErrorCode.NOT_COORDINATOR


def test_while_loading_a_fetch_is_an_error_never_minus_one():
    world = GroupHarness()
    world.commit_code({("t", 0): 5})
    world.coordinator._shards.clear()
    (response,) = now(world.fetch({"t": [0]}))
    assert (response.error_code, response.topics) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])


def test_without_the_internal_topic_there_is_no_coordinator():
    world = GroupHarness()
    world.log.partitions_count = 0
    (response,) = now(world.fetch({"t": [0]}))
    assert response.error_code == ErrorCode.NOT_COORDINATOR


# --- expiry of offsets (KIP-211) ---


def test_offsets_of_an_empty_group_expire_after_the_retention_from_when_it_became_empty():
    world = GroupHarness(offsets_retention_minutes=7 * 24 * 60)
    (first,) = world.stable(session_ms=1_800_000)
    world.commit_code({("t", 0): 5, ("t", 1): 6}, member=first, generation=1)
    for _ in range(10 * 48):
        world.advance(1_800_000 - 1)
        world.heartbeat(first, 1)
    now(world.leave((first, None)))
    left_ms = world.now_ms
    world.advance(7 * DAY_MS - 1)
    assert world.offsets() == {("t", 0): 5, ("t", 1): 6}
    world.take_records()
    world.advance(600_000)
    assert world.now_ms - left_ms > 7 * DAY_MS
    assert world.take_records() == [
        OffsetCommit("g", "t", 0, None),
        OffsetCommit("g", "t", 1, None),
        GenerationRecord("g", None),
    ]
    assert now(world.coordinator.list_groups([], [], world.now_ms))[1] == []


def test_offsets_of_a_topic_that_a_group_has_unsubscribed_from_expire_from_their_commit():
    world = GroupHarness()
    world.commit_code({("old", 0): 1, ("t", 0): 2})
    (first,) = world.stable(session_ms=1_800_000)
    for _ in range(8 * 48):
        world.advance(1_800_000 - 1)
        world.heartbeat(first, 1)
    assert world.take_records() == [OffsetCommit("g", "old", 0, None)]
    assert world.offsets() == {("t", 0): 2}


def test_offsets_of_groups_of_other_kinds_do_not_expire_while_they_have_members():
    world = GroupHarness()
    world.commit_code({("t", 0): 1})
    (first,) = world.stable(
        session_ms=1_800_000, protocol_type="connect", protocols={"v0": b"\x00"}
    )
    for _ in range(8 * 48):
        world.advance(1_800_000 - 1)
        world.heartbeat(first, 1)
    assert world.take_records() == []


def test_offsets_of_a_group_that_never_had_members_expire_from_their_commit():
    world = GroupHarness()
    world.commit_code({("t", 0): 1})
    world.advance(4 * DAY_MS)
    world.commit_code({("t", 1): 2})
    world.take_records()
    world.advance(4 * DAY_MS)
    assert world.take_records() == [OffsetCommit("g", "t", 0, None)]
    world.advance(4 * DAY_MS)
    assert world.take_records() == [OffsetCommit("g", "t", 1, None)]
    assert "g" not in world.coordinator._shards[0].classic_groups


def test_an_empty_group_without_offsets_is_deleted_at_the_next_check():
    world = GroupHarness()
    (first,) = world.stable()
    now(world.leave((first, None)))
    world.take_records()
    world.advance(600_000)
    assert world.take_records() == [GenerationRecord("g", None)]


def test_an_unreadable_subscription_keeps_all_offsets():
    world = GroupHarness()
    world.commit_code({("old", 0): 1})
    (first,) = world.stable(session_ms=1_800_000, protocols={"range": b"\x00\x00\x7f"})
    for _ in range(8 * 48):
        world.advance(1_800_000 - 1)
        world.heartbeat(first, 1)
    assert world.offsets() == {("old", 0): 1}


def test_the_offsets_of_a_deleted_topic_go_with_it():
    world = GroupHarness(partitions=4)
    groups = [f"g{number}" for number in range(8)]
    for group in groups:
        world.commit_code({("t", 0): 1, ("t", 1): 2, ("kept", 0): 3}, group=group)
    list(world.coordinator.forget_offsets("t", world.now_ms))
    for group in groups:
        assert world.offsets(group) == {("kept", 0): 3}
    world.restart()
    for group in groups:
        assert world.offsets(group) == {("kept", 0): 3}


def test_very_many_offsets_are_forgotten_in_bounded_batches():
    world = GroupHarness()
    world.commit({("t", number): number for number in range(2_500)})
    list(world.coordinator.forget_offsets("t", world.now_ms))
    assert world.offsets() == {}
    assert len(world.log.batches[0]) == 1 + 3


def test_expired_offsets_are_removed_in_steps(monkeypatch):
    monkeypatch.setattr(group_shards, "LOOKED_AT_FOR_EXPIRY", 100)
    world = GroupHarness(offsets_retention_minutes=1, offsets_retention_check_interval_ms=600_000)
    groups = [f"g{number}" for number in range(20)]
    offsets = {("t", partition): 1 for partition in range(5)}
    for group in groups:
        world.commit_code(offsets, group=group)
    left: list[int] = []
    world.advance(600_000 - 1)
    while sum(bool(world.offsets(group)) for group in groups):
        left.append(sum(bool(world.offsets(group)) for group in groups))
        if len(left) == 3:
            world.commit_code({("t", 0): 2}, group=groups[-1])  # its turn has not come yet
            break
        world.advance(50)
    world.advance(5_000)
    assert left[0] == 20
    assert len(left) == 3
    assert all(before - after <= 4 for before, after in pairwise(left))
    assert [group for group in groups if world.offsets(group)] == groups[-1:]
    assert world.offsets(groups[-1]) == {("t", 0): 2}


def test_the_subscription_of_the_fixture_is_what_clients_send():
    assert subscription("t")[:2] == b"\x00\x00"
