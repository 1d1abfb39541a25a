"""Memory of groups and their offsets: requests that are refused, groups that stay, and the count of bytes."""

from __future__ import annotations

import random

import pytest

from headrace.core.coordinator.state.memory import (
    GROUP_BYTES,
    MEMBER_BYTES,
    OFFSET_BYTES,
    OFFSETS_GROUP_BYTES,
    GroupMemory,
)
from headrace.errors import ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse
from tests.fixtures.consumer_group_harness import ConsumerGroupHarness
from tests.fixtures.group_harness import SESSION_MS, GroupHarness, now, parked, subscription

KIB = 1024


def memory_of(harness: GroupHarness) -> GroupMemory:
    return harness.coordinator.memory


def counted(harness: GroupHarness) -> tuple[int, int]:
    """Return the memory of groups and offsets, computed from scratch."""
    groups = offsets = 0
    for shard in harness.coordinator._shards.values():
        groups += sum(group.held_bytes for group in shard.classic_groups.values())
        groups += sum(group.held_bytes for group in shard.consumer_groups.values())
        committed = [
            entry
            for topics in shard.offsets._groups.values()
            for partitions in topics.values()
            for entry in partitions.values()
        ]
        offsets += sum(OFFSET_BYTES + len(entry.metadata) for entry in committed)
        offsets += sum(OFFSETS_GROUP_BYTES + len(group_id) for group_id in shard.offsets._groups)
    return groups, offsets


def is_right(harness: GroupHarness) -> bool:
    memory = memory_of(harness)
    return counted(harness) == (memory.groups_bytes, memory.offsets_bytes)


def code(reply: object) -> ErrorCode:
    response = now(reply)
    assert isinstance(response, JoinGroupResponse)
    return ErrorCode(response.error_code)


# Members of classic groups


def test_members_with_too_much_metadata_for_their_group_are_refused():
    harness = GroupHarness(group_max_bytes=10 * KIB)
    (first,) = harness.stable()
    large = {"range": bytes(10 * KIB)}
    assert code(harness.join(protocols=large)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code(harness.join(first, protocols=large)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code(harness.join(instance="i", protocols=large)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.heartbeat(first, 1) == ErrorCode.NONE
    assert code(harness.join(group="other")) is ErrorCode.MEMBER_ID_REQUIRED
    assert "group_member_refused" in str(harness.notes.events)
    assert is_right(harness)


def test_the_leader_is_never_sent_more_than_a_group_may_hold():
    harness = GroupHarness(group_max_bytes=100 * KIB, group_initial_rebalance_delay_ms=3_000)
    replies = [harness.join(version=3, protocols={"range": bytes(10 * KIB)}) for _ in range(30)]
    refused = [reply for reply in replies if not parked(reply)]
    assert refused
    assert {code(reply) for reply in refused} == {ErrorCode.GROUP_MAX_SIZE_REACHED}
    harness.advance(60_000)
    answers = [now(reply) for reply in replies if parked(reply) or reply not in refused]
    leader = max(answers, key=lambda answer: len(answer.members))
    assert sum(len(member.metadata) for member in leader.members) <= 100 * KIB


def test_new_members_are_refused_while_the_memory_of_all_groups_is_used_up():
    harness = GroupHarness(groups_max_bytes=2 * (GROUP_BYTES + MEMBER_BYTES) + 9 * KIB)
    (first,) = harness.stable()
    large = {"range": bytes(8 * KIB)}
    given = now(harness.join(group="large", protocols=large)).member_id
    harness.join(given, group="large", protocols=large)
    assert code(harness.join(group="new")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert code(harness.join(first)) is ErrorCode.NONE, "a member may join again"
    harness.leave((given, None), group="large")
    assert code(harness.join(group="new")) is ErrorCode.MEMBER_ID_REQUIRED
    assert is_right(harness)


def test_pending_member_ids_count_until_they_are_dropped():
    harness = GroupHarness(groups_max_bytes=20 * KIB)
    codes = [code(harness.join(group=f"g{number}")) for number in range(50)]
    assert set(codes) == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert is_right(harness)
    harness.advance(SESSION_MS)
    assert memory_of(harness).groups_bytes == 0
    assert code(harness.join(group="late")) is ErrorCode.MEMBER_ID_REQUIRED


# Members of consumer groups


def test_a_consumer_group_member_with_too_much_metadata_is_refused():
    harness = ConsumerGroupHarness(group_max_bytes=20 * KIB)
    harness.topics.create("t", 1)
    assert harness.join("a", "t").error_code == ErrorCode.NONE
    many = [f"topic-{number}" for number in range(1_000)]
    refused = harness.join("b", *many)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.error_message
    assert set(harness.group().members) == {"a"}
    assert is_right(harness)


def test_no_consumer_group_begins_while_the_memory_of_all_groups_is_used_up():
    harness = ConsumerGroupHarness(groups_max_bytes=KIB)
    harness.topics.create("t", 1)
    assert harness.join("a", "t").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.group() is None


# Offsets


def test_offsets_above_the_memory_limit_are_refused_and_stored_ones_can_advance():
    most = OFFSETS_GROUP_BYTES + 1 + 3 * OFFSET_BYTES
    harness = GroupHarness(offsets_max_bytes=most)
    assert harness.commit_code({("t", index): 1 for index in range(3)}) == ErrorCode.NONE
    assert harness.commit_code({("t", 0): 2}) == ErrorCode.NONE
    refused = harness.commit_code({("t", 3): 1})
    assert refused == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert harness.commit_code({("t", 0): 3}, metadata="x" * 100) == refused
    assert harness.offsets() == {("t", 0): 2, ("t", 1): 1, ("t", 2): 1}
    assert is_right(harness)
    harness.restart()
    assert is_right(harness)
    assert memory_of(harness).offsets_bytes == most


@pytest.mark.parametrize("seed", range(40))
def test_the_counted_memory_equals_the_held_memory_in_random_runs(seed):
    chance = random.Random(seed)
    harness = GroupHarness(partitions=2, group_max_bytes=30 * KIB, groups_max_bytes=100 * KIB)
    members: list[tuple[str, str]] = []
    for _ in range(60):
        group = chance.choice("abcd")
        what = chance.randrange(7)
        if what == 0:
            protocols = {"range": bytes(chance.choice([10, 2_000, 9_000]))}
            reply = harness.join(group=group, version=chance.choice([3, 9]), protocols=protocols)
            if not parked(reply) and now(reply).member_id:
                members.append((group, now(reply).member_id))
        elif what == 1 and members:
            group, member = chance.choice(members)
            harness.join(member, group=group, protocols={"range": bytes(chance.randrange(9_000))})
        elif what == 2 and members:
            group, member = members.pop(chance.randrange(len(members)))
            harness.leave((member, None), group=group)
        elif what == 3:
            offsets = {("t", chance.randrange(9)): 1}
            harness.commit(offsets, group=group, metadata="m" * chance.randrange(99))
        elif what == 4:
            harness.join(group=group, instance="static", protocols={"range": subscription("t")})
        elif what == 5:
            harness.advance(chance.choice([100, 5_000, 20_000, 100_000]))
        else:
            harness.restart()
        assert is_right(harness)
    harness.advance(10_000_000)
    assert is_right(harness)
