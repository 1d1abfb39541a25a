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
    harness = GroupHarness()
    (first,) = harness.stable()
    response = now(
        harness.commit(
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
    assert harness.take_records() == [
        OffsetCommit("g", "t", 0, CommittedOffset(5, 3, "note", START_MS)),
        OffsetCommit("g", "t", 1, CommittedOffset(6, 3, "note", START_MS)),
        OffsetCommit("g", "u", 0, CommittedOffset(7, 3, "note", START_MS)),
    ]
    assert len(harness.log.batches[0]) == 3  # join, sync, and one batch for the whole commit


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
def test_a_commit_of_another_generation_changes_nothing(member, generation, instance, error):
    harness = GroupHarness()
    (first,) = harness.stable()
    name = first if member == "first" else member
    code = harness.commit_code({("t", 0): 5}, member=name, generation=generation, instance=instance)
    assert code == error
    assert harness.take_records() == []
    assert harness.offsets() == {}


def test_a_consumer_without_a_group_commits_while_the_group_is_empty():
    harness = GroupHarness()
    assert harness.commit_code({("t", 0): 5}) == ErrorCode.NONE
    assert harness.take_records() == [OffsetCommit("g", "t", 0, committed(5))]
    assert harness.group().state is GroupState.EMPTY
    (first,) = harness.stable()
    assert harness.commit_code({("t", 0): 6}) == ErrorCode.UNKNOWN_MEMBER_ID
    now(harness.leave((first, None)))
    assert harness.commit_code({("t", 0): 7}) == ErrorCode.NONE
    assert harness.offsets() == {("t", 0): 7}


def test_the_empty_group_id_may_commit():
    harness = GroupHarness()
    assert harness.commit_code({("t", 0): 5}, group="") == ErrorCode.NONE
    assert harness.offsets("") == {("t", 0): 5}


@pytest.mark.parametrize(
    ("group", "generation", "version", "error"),
    [
        ("g", 1, 8, ErrorCode.ILLEGAL_GENERATION),
        ("g", 1, 9, ErrorCode.GROUP_ID_NOT_FOUND),
        ("x" * 40_000, -1, 9, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_commit_for_an_invalid_group_id_is_refused(group, generation, version, error):
    harness = GroupHarness()
    options = {"group": group, "generation": generation, "version": version}
    assert harness.commit_code({("t", 0): 5}, **options) == error
    assert harness.take_records() == []


def test_while_members_join_the_old_generation_may_commit():
    harness = GroupHarness()
    (first,) = harness.stable()
    harness.admitted()
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    assert harness.commit_code({("t", 0): 5}, member=first, generation=1) == ErrorCode.NONE


def test_no_member_may_commit_before_the_assignment_has_arrived():
    harness = GroupHarness()
    first, _ = harness.admitted()
    code = harness.commit_code({("t", 0): 5}, member=first, generation=1)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.offsets() == {}


def test_a_removed_member_cannot_commit():
    harness = GroupHarness()
    first, second = harness.stable(2)
    for _ in range(3):
        harness.advance(4_000)
        harness.heartbeat(first, 2)
    assert harness.commit_code({("t", 1): 5}, member=second, generation=2) == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert harness.offsets() == {}


def test_a_commit_extends_the_session_of_its_member():
    harness = GroupHarness()
    (first,) = harness.stable()
    for offset in range(5):
        harness.advance(9_999)
        assert harness.commit_code({("t", 0): offset}, member=first, generation=1) == 0


def test_metadata_that_is_too_long_is_refused_for_its_partition_alone():
    harness = GroupHarness(offset_metadata_max_bytes=4)
    request = harness.commit({("t", 0): 5, ("t", 1): 6}, metadata="12345")
    assert [entry.error_code for entry in now(request).topics[0].partitions] == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE
    ] * 2
    assert harness.take_records() == []
    assert harness.commit_code({("t", 0): 5}, metadata="1234") == ErrorCode.NONE


def test_no_metadata_is_kept_as_empty_metadata():
    harness = GroupHarness()
    harness.commit_code({("t", 0): 5}, metadata=None)
    assert harness.take_records() == [OffsetCommit("g", "t", 0, committed(5))]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_cannot_be_written_did_not_happen(code, told):
    harness = GroupHarness()
    harness.log.failure = ApiError(code)
    assert harness.commit_code({("t", 0): 5}) == told
    assert harness.offsets() == {}


# --- fetch ---


def test_a_fetch_returns_committed_offsets_and_minus_one_without_one():
    harness = GroupHarness()
    harness.commit_code({("t", 0): 5}, metadata="note", leader_epoch=3)
    (response,) = now(harness.fetch({"t": [1, 0], "u": [0]}))
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
    harness = GroupHarness()
    harness.commit_code({("u", 1): 1, ("t", 3): 2, ("t", 0): 3})
    assert harness.offsets() == {("t", 0): 3, ("t", 3): 2, ("u", 1): 1}
    assert harness.offsets("unknown") == {}


def test_offsets_of_several_groups_come_in_the_order_asked():
    harness = GroupHarness(partitions=8)
    for number in range(6):
        harness.commit_code({("t", 0): number}, group=f"g{number}")
    groups = [OffsetFetchRequestGroup(group_id=f"g{n}", topics=None) for n in (4, 0, 9, 2)]
    responses = now(harness.coordinator.fetch_offsets(groups, harness.now_ms))
    assert [
        (response.group_id, [t.partitions[0].committed_offset for t in response.topics])
        for response in responses
    ] == [("g4", [4]), ("g0", [0]), ("g9", []), ("g2", [2])]


def test_a_commit_is_acknowledged_and_visible_only_when_it_is_durable():
    harness = GroupHarness(manual=True)
    commit = harness.commit({("t", 0): 5})
    fetch = harness.fetch()
    assert parked(commit)
    assert parked(fetch)
    harness.sync()
    assert now(commit).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert now(fetch)[0].topics[0].partitions[0].committed_offset == 5


def test_a_fetch_that_waits_too_long_fails_in_a_way_that_old_consumers_retry():
    harness = GroupHarness(manual=True)
    commit = harness.commit({("t", 0): 5})
    fetch = harness.fetch()
    harness.advance(5_000)
    code = now(commit).topics[0].partitions[0].error_code
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert now(fetch)[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_fetch_while_loading_is_an_error_and_never_minus_one():
    harness = GroupHarness()
    harness.commit_code({("t", 0): 5})
    harness.coordinator.begin(0)
    (response,) = now(harness.fetch({"t": [0]}))
    assert (response.error_code, response.topics) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])


def test_an_offset_fetch_without_the_internal_topic_answers_not_coordinator():
    harness = GroupHarness()
    harness.log.partitions_count = 0
    (response,) = now(harness.fetch({"t": [0]}))
    assert response.error_code == ErrorCode.NOT_COORDINATOR


# --- expiry of offsets (KIP-211) ---


def test_the_retention_of_an_empty_groups_offsets_begins_when_it_becomes_empty():
    harness = GroupHarness(offsets_retention_minutes=7 * 24 * 60)
    (first,) = harness.stable(session_ms=1_800_000)
    harness.commit_code({("t", 0): 5, ("t", 1): 6}, member=first, generation=1)
    for _ in range(10 * 48):
        harness.advance(1_800_000 - 1)
        harness.heartbeat(first, 1)
    now(harness.leave((first, None)))
    left_ms = harness.now_ms
    harness.advance(7 * DAY_MS - 1)
    assert harness.offsets() == {("t", 0): 5, ("t", 1): 6}
    harness.take_records()
    harness.advance(600_000)
    assert harness.now_ms - left_ms > 7 * DAY_MS
    assert harness.take_records() == [
        OffsetCommit("g", "t", 0, None),
        OffsetCommit("g", "t", 1, None),
        GenerationRecord("g", None),
    ]
    assert now(harness.coordinator.list_groups([], [], harness.now_ms))[1] == []


def test_offsets_of_a_topic_that_a_group_has_unsubscribed_from_expire_from_their_commit():
    harness = GroupHarness()
    harness.commit_code({("old", 0): 1, ("t", 0): 2})
    (first,) = harness.stable(session_ms=1_800_000)
    for _ in range(8 * 48):
        harness.advance(1_800_000 - 1)
        harness.heartbeat(first, 1)
    assert harness.take_records() == [OffsetCommit("g", "old", 0, None)]
    assert harness.offsets() == {("t", 0): 2}


def test_offsets_of_groups_of_other_kinds_do_not_expire_while_they_have_members():
    harness = GroupHarness()
    harness.commit_code({("t", 0): 1})
    (first,) = harness.stable(
        session_ms=1_800_000, protocol_type="connect", protocols={"v0": b"\x00"}
    )
    for _ in range(8 * 48):
        harness.advance(1_800_000 - 1)
        harness.heartbeat(first, 1)
    assert harness.take_records() == []


def test_offsets_of_a_group_that_never_had_members_expire_from_their_commit():
    harness = GroupHarness()
    harness.commit_code({("t", 0): 1})
    harness.advance(4 * DAY_MS)
    harness.commit_code({("t", 1): 2})
    harness.take_records()
    harness.advance(4 * DAY_MS)
    assert harness.take_records() == [OffsetCommit("g", "t", 0, None)]
    harness.advance(4 * DAY_MS)
    assert harness.take_records() == [OffsetCommit("g", "t", 1, None)]
    assert "g" not in harness.coordinator._shards[0].classic_groups


def test_an_empty_group_without_offsets_is_deleted_at_the_next_check():
    harness = GroupHarness()
    (first,) = harness.stable()
    now(harness.leave((first, None)))
    harness.take_records()
    harness.advance(600_000)
    assert harness.take_records() == [GenerationRecord("g", None)]


def test_an_unreadable_subscription_keeps_all_offsets():
    harness = GroupHarness()
    harness.commit_code({("old", 0): 1})
    (first,) = harness.stable(session_ms=1_800_000, protocols={"range": b"\x00\x00\x7f"})
    for _ in range(8 * 48):
        harness.advance(1_800_000 - 1)
        harness.heartbeat(first, 1)
    assert harness.offsets() == {("old", 0): 1}


def test_deleting_a_topic_deletes_its_committed_offsets():
    harness = GroupHarness(partitions=4)
    groups = [f"g{number}" for number in range(8)]
    for group in groups:
        harness.commit_code({("t", 0): 1, ("t", 1): 2, ("kept", 0): 3}, group=group)
    list(harness.coordinator.forget_offsets("t", harness.now_ms))
    for group in groups:
        assert harness.offsets(group) == {("kept", 0): 3}
    harness.restart()
    for group in groups:
        assert harness.offsets(group) == {("kept", 0): 3}


def test_very_many_offsets_are_forgotten_in_bounded_batches():
    harness = GroupHarness()
    harness.commit({("t", number): number for number in range(2_500)})
    list(harness.coordinator.forget_offsets("t", harness.now_ms))
    assert harness.offsets() == {}
    assert len(harness.log.batches[0]) == 1 + 3


def test_expired_offsets_are_removed_in_steps(monkeypatch):
    monkeypatch.setattr(group_shards, "LOOKED_AT_FOR_EXPIRY", 100)
    harness = GroupHarness(offsets_retention_minutes=1, offsets_retention_check_interval_ms=600_000)
    groups = [f"g{number}" for number in range(20)]
    offsets = {("t", partition): 1 for partition in range(5)}
    for group in groups:
        harness.commit_code(offsets, group=group)
    left: list[int] = []
    harness.advance(600_000 - 1)
    while sum(bool(harness.offsets(group)) for group in groups):
        left.append(sum(bool(harness.offsets(group)) for group in groups))
        if len(left) == 3:
            harness.commit_code({("t", 0): 2}, group=groups[-1])  # its turn has not come yet
            break
        harness.advance(50)
    harness.advance(5_000)
    assert left[0] == 20
    assert len(left) == 3
    assert all(before - after <= 4 for before, after in pairwise(left))
    assert [group for group in groups if harness.offsets(group)] == groups[-1:]
    assert harness.offsets(groups[-1]) == {("t", 0): 2}


def test_the_subscription_of_the_fixture_equals_that_of_clients():
    assert subscription("t")[:2] == b"\x00\x00"
