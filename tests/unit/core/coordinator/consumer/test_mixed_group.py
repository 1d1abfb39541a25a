"""Groups with members of both protocols: upgrades, downgrades, and the owners of partitions meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.consumer_group import ConsumerGroupState
from headrace.core.coordinator.state.records import GenerationRecord
from headrace.errors import ErrorCode
from tests.fixtures.classic_consumers import ClassicConsumer
from tests.fixtures.consumer_group_harness import SESSION_MS, Consumer, ConsumerGroupHarness
from tests.fixtures.group_harness import REBALANCE_MS, now
from tests.fixtures.group_harness import SESSION_MS as CLASSIC_SESSION_MS

ROUNDS = 12


@pytest.fixture
def harness() -> ConsumerGroupHarness:
    harness = ConsumerGroupHarness()
    harness.topics.create("t", 6)
    return harness


def settle(*members: Consumer | ClassicConsumer) -> None:
    """Send heartbeats of all members until the assignment is stable, and check that no partition has two owners."""
    for _ in range(ROUNDS):
        for member in members:
            member.beat()
            check_owners(*members)


def check_owners(*members: Consumer | ClassicConsumer) -> None:
    owned = [partition for member in members for partition in member.owned]
    assert len(owned) == len(set(owned))


def classic_group(harness: ConsumerGroupHarness, count: int, **options: Any) -> list[Any]:
    members = [ClassicConsumer(harness, "t", **options) for _ in range(count)]
    settle(*members)
    assert sum(len(member.owned) for member in members) == 6
    assert harness.group() is None
    return members


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_consumer_joins_a_classic_group_and_the_server_assigns(harness, cooperative):
    members = classic_group(harness, 2, cooperative=cooperative)
    generation = members[0].generation
    newcomer = Consumer(harness, "new", "t")
    newcomer.beat()
    assert newcomer.owned == set()
    assert harness.group().epoch == generation + 1
    assert harness.heartbeat(members[0].member, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    settle(*members, newcomer)
    assert [len(member.owned) for member in (*members, newcomer)] == [2, 2, 2]
    assert harness.group().state is ConsumerGroupState.STABLE
    harness.restart()
    settle(*members, newcomer)
    assert [len(member.owned) for member in (*members, newcomer)] == [2, 2, 2]


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_classic_member_joins_a_consumer_group(harness, cooperative):
    first = Consumer(harness, "a", "t")
    settle(first)
    classic = ClassicConsumer(harness, "t", cooperative=cooperative)
    settle(first, classic)
    assert [len(first.owned), len(classic.owned)] == [3, 3]
    assert first.owned | classic.owned == harness.topics.partitions("t")


@pytest.mark.parametrize("how", ["leaves", "session"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_group_becomes_classic_when_its_last_consumer_leaves(harness, how, crash):
    members = classic_group(harness, 2)
    newcomer = Consumer(harness, "new", "t")
    settle(*members, newcomer)
    epoch = harness.group().epoch
    if how == "leaves":
        newcomer.leave()
    else:
        for _ in range(SESSION_MS // 5_000):
            for member in members:
                member.beat()
            harness.advance(5_000)
    assert harness.group() is None
    assert harness.group_state() is GroupState.PREPARING_REBALANCE
    if crash:
        harness.restart()
        assert harness.group_state() is GroupState.PREPARING_REBALANCE
    settle(*members)
    assert harness.group_state() is GroupState.STABLE
    assert members[0].generation > epoch
    assert sorted(len(member.owned) for member in members) == [3, 3]


def test_a_cooperative_member_keeps_partitions_that_it_has_not_revoked(harness):
    members = classic_group(harness, 2, cooperative=True)
    newcomer = Consumer(harness, "new", "t")
    newcomer.beat()
    slow = members[0]
    before = slow.owned
    for _ in range(4):  # the slow one does nothing
        newcomer.beat()
        members[1].beat()
        check_owners(*members, newcomer)
    assert not newcomer.owned & before
    harness.advance(REBALANCE_MS // 2)
    assert harness.commit_code({("t", 0): 3}, member=slow.member, generation=slow.generation) in {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,  # its session was over
    }


def test_partitions_that_a_member_still_reads_have_no_other_owner_after_a_downgrade_and_an_upgrade(
    harness,
):
    (slow,) = classic_group(harness, 1)
    had = slow.owned
    newcomer = Consumer(harness, "new", "t")
    newcomer.beat()  # half of the partitions have to move, but the slow member does not know
    newcomer.leave()
    harness.restart()
    another = Consumer(harness, "another", "t")
    for _ in range(3):
        another.beat()
        check_owners(slow, another)
    assert slow.owned == had
    settle(slow, another)
    assert [len(slow.owned), len(another.owned)] == [3, 3]


def test_a_classic_member_that_does_not_join_again_is_removed(harness):
    members = classic_group(harness, 2)
    newcomer = Consumer(harness, "new", "t")
    newcomer.beat()
    lazy = members[0]
    for _ in range(REBALANCE_MS // 5_000 + 2):
        harness.advance(5_000)
        harness.heartbeat(lazy.member, lazy.generation)
        newcomer.beat()
        members[1].beat()
    assert lazy.member not in harness.group().members
    lazy.lose()
    settle(members[1], newcomer)
    assert [len(members[1].owned), len(newcomer.owned)] == [3, 3]


def test_a_classic_member_that_does_not_sync_is_removed(harness):
    first = Consumer(harness, "a", "t")
    settle(first)
    given = now(harness.classic_join())
    joined = now(harness.classic_join(given.member_id, session_ms=600_000))
    assert joined.error_code == 0
    assert joined.leader == ""
    for _ in range(REBALANCE_MS // 5_000 + 1):
        harness.advance(5_000)
        first.beat()
    assert list(harness.group().members) == ["a"]


def test_a_group_keeps_its_protocol_if_the_migration_policy_requires_that():
    harness = ConsumerGroupHarness(group_consumer_migration_policy="downgrade")
    harness.topics.create("t", 6)
    classic_group(harness, 1)
    assert harness.join("new", "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    harness = ConsumerGroupHarness(group_consumer_migration_policy="upgrade")
    harness.topics.create("t", 6)
    members = classic_group(harness, 1)
    newcomer = Consumer(harness, "new", "t")
    settle(*members, newcomer)
    newcomer.leave()
    settle(*members)
    assert harness.group().state is ConsumerGroupState.STABLE
    assert len(members[0].owned) == 6
    harness.topics.grow("t", 8)
    settle(*members)
    assert len(members[0].owned) == 8


def test_only_consumers_can_be_mixed(harness):
    given = now(harness.classic_join(protocol_type="connect"))
    harness.classic_join(given.member_id, protocol_type="connect")
    assert harness.join("new", "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": "connect"},
        {"protocols": {}},
        {"protocols": {"range": b"\0"}},
        {"protocols": {"range": b"\xff\xff\0\0\0\0"}},
    ],
)
def test_a_classic_member_that_cannot_be_understood_is_refused(harness, options):
    settle(Consumer(harness, "a", "t"))
    refused = now(harness.classic_join("b", **options))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_members_have_a_protocol_in_common(harness):
    settle(Consumer(harness, "a", "t"), ClassicConsumer(harness, "t"))
    metadata = {"roundrobin": b"\0\0\0\0\0\0\xff\xff\xff\xff"}
    refused = now(harness.classic_join("b", protocols=metadata))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_is_replaced_by_a_member_of_the_other_protocol(harness):
    classic = ClassicConsumer(harness, "t", instance="i")
    other = ClassicConsumer(harness, "t")
    settle(classic, other)
    held = classic.owned
    modern = Consumer(harness, "m", "t", instance="i")
    modern.beat()
    assert modern.owned == held
    assert harness.heartbeat(classic.member, classic.generation, instance="i") == (
        ErrorCode.FENCED_INSTANCE_ID
    )
    settle(modern, other)
    held = modern.owned
    again = ClassicConsumer(harness, "t", instance="i")
    again.beat()
    again.beat()
    assert harness.group() is None, "the last consumer was replaced"
    assert harness.group_state() is GroupState.STABLE, "no member has to join again"
    assert again.owned == held
    settle(again, other)
    assert again.owned | other.owned == harness.topics.partitions("t")


def test_replacing_a_static_member_while_partitions_move_makes_all_members_join_again(harness):
    classic = ClassicConsumer(harness, "t", cooperative=True)
    settle(classic)
    modern = Consumer(harness, "m", "t", instance="i")
    modern.beat()  # half of the partitions are to move, and have not
    again = ClassicConsumer(harness, "t", cooperative=True, instance="i")
    again.beat()
    assert harness.group() is None
    assert harness.group_state() is GroupState.PREPARING_REBALANCE
    check_owners(classic, again)
    settle(classic, again)
    assert sorted(len(member.owned) for member in (classic, again)) == [3, 3]


def test_an_upgrade_answers_parked_requests(harness):
    members = classic_group(harness, 1)
    joining = ClassicConsumer(harness, "t")
    joining.beat()
    joining.beat()
    assert joining.parked is not None
    harness.join("new", "t")
    assert joining.parked.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    newcomer = Consumer(harness, "new", "t")
    settle(*members, joining, newcomer)
    assert [len(member.owned) for member in (*members, joining, newcomer)] == [2, 2, 2]


def test_an_upgrade_that_cannot_be_written_changes_nothing(harness):
    members = classic_group(harness, 2)
    harness.refuse_appends()
    assert harness.join("new", "t").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.accept_appends()
    settle(*members)
    assert harness.group() is None
    assert harness.group_state() is GroupState.STABLE


def test_a_downgrade_that_cannot_be_written_changes_nothing(harness):
    members = classic_group(harness, 1)
    newcomer = Consumer(harness, "new", "t")
    settle(*members, newcomer)
    harness.refuse_appends()
    left = harness.send(member_id="new", member_epoch=-1)
    assert left.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.accept_appends()
    settle(*members, newcomer)
    assert [len(members[0].owned), len(newcomer.owned)] == [3, 3]


def test_an_upgrade_is_one_batch(harness):
    classic_group(harness, 2)
    harness.take_records()
    batches = len(harness.log.batches[0])
    harness.join("new", "t")
    assert len(harness.log.batches[0]) == batches + 1
    assert harness.take_records()[0] == GenerationRecord("g", None)


def test_commits_of_classic_members_carry_their_generation(harness):
    first = Consumer(harness, "a", "t")
    classic = ClassicConsumer(harness, "t")
    settle(first, classic)

    def commit(member: str, generation: int, **options: int) -> Any:
        return harness.commit_code({("t", 0): 1}, member=member, generation=generation, **options)

    assert commit(classic.member, classic.generation) == 0
    assert commit(classic.member, classic.generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit("a", first.epoch) == 0
    assert commit("a", first.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("a", first.epoch, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit(classic.member, classic.generation, version=8) == 0


def test_both_kinds_of_members_are_described(harness):
    first = Consumer(harness, "a", "t")
    classic = ClassicConsumer(harness, "t")
    settle(first, classic)
    (described,) = now(harness.coordinator.describe_consumer_groups(["g"], harness.now_ms))
    types = {member.member_id: member.member_type for member in described.members}
    assert types == {"a": 1, classic.member: 0}
    (listed,) = now(harness.coordinator.list_groups([], [], harness.now_ms))[1]
    assert (listed.group_type, listed.group_state) == ("consumer", "Stable")


def test_members_of_either_kind_are_removed(harness):
    first = Consumer(harness, "a", "t")
    others = [ClassicConsumer(harness, "t", instance=instance) for instance in (None, "i")]
    settle(first, *others)
    gone = others[0].member
    answer = now(harness.leave(("a", None), (gone, None), (gone, None), ("", "j")))
    codes = [member.error_code for member in answer.members]
    assert codes == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert harness.group() is None, "no consumer is left"
    settle(others[1])
    assert len(others[1].owned) == 6
    settle(Consumer(harness, "b", "t"))
    (removed,) = now(harness.leave(("", "i"))).members
    assert (removed.member_id, removed.error_code) == ("", 0)
    assert list(harness.group().members) == ["b"]


def test_sessions_of_classic_members_are_their_own(harness):
    first = Consumer(harness, "a", "t")
    classic = ClassicConsumer(harness, "t", session_ms=CLASSIC_SESSION_MS)
    settle(first, classic)
    harness.restart()
    harness.advance(CLASSIC_SESSION_MS - 1)
    first.beat()
    assert classic.member in harness.group().members
    harness.advance(2)
    assert classic.member not in harness.group().members
