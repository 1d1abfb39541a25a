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
def world() -> ConsumerGroupHarness:
    world = ConsumerGroupHarness()
    world.topics.create("t", 6)
    return world


def settle(*members: Consumer | ClassicConsumer) -> None:
    """Send heartbeats of all members until the assignment is stable, and check that no partition has two owners."""
    for _ in range(ROUNDS):
        for member in members:
            member.beat()
            check_owners(*members)


def check_owners(*members: Consumer | ClassicConsumer) -> None:
    owned = [partition for member in members for partition in member.owned]
    assert len(owned) == len(set(owned))


def classic_group(world: ConsumerGroupHarness, count: int, **options: Any) -> list[Any]:
    members = [ClassicConsumer(world, "t", **options) for _ in range(count)]
    settle(*members)
    assert sum(len(member.owned) for member in members) == 6
    assert world.group() is None
    return members


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_consumer_joins_a_classic_group_and_the_server_assigns(world, cooperative):
    members = classic_group(world, 2, cooperative=cooperative)
    generation = members[0].generation
    newcomer = Consumer(world, "new", "t")
    newcomer.beat()
    assert newcomer.owned == set()
    assert world.group().epoch == generation + 1
    assert world.heartbeat(members[0].member, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    settle(*members, newcomer)
    assert [len(member.owned) for member in (*members, newcomer)] == [2, 2, 2]
    assert world.group().state is ConsumerGroupState.STABLE
    world.restart()
    settle(*members, newcomer)
    assert [len(member.owned) for member in (*members, newcomer)] == [2, 2, 2]


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_classic_member_joins_a_consumer_group(world, cooperative):
    first = Consumer(world, "a", "t")
    settle(first)
    classic = ClassicConsumer(world, "t", cooperative=cooperative)
    settle(first, classic)
    assert [len(first.owned), len(classic.owned)] == [3, 3]
    assert first.owned | classic.owned == world.topics.partitions("t")


@pytest.mark.parametrize("how", ["leaves", "session"])
@pytest.mark.parametrize("crash", [False, True])
def test_the_last_consumer_goes_and_the_group_is_a_classic_one_again(world, how, crash):
    members = classic_group(world, 2)
    newcomer = Consumer(world, "new", "t")
    settle(*members, newcomer)
    epoch = world.group().epoch
    if how == "leaves":
        newcomer.leave()
    else:
        for _ in range(SESSION_MS // 5_000):
            for member in members:
                member.beat()
            world.advance(5_000)
    assert world.group() is None
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    if crash:
        world.restart()
        assert world.group_state() is GroupState.PREPARING_REBALANCE
    settle(*members)
    assert world.group_state() is GroupState.STABLE
    assert members[0].generation > epoch
    assert sorted(len(member.owned) for member in members) == [3, 3]


def test_a_cooperative_member_keeps_partitions_that_it_has_not_revoked(world):
    members = classic_group(world, 2, cooperative=True)
    newcomer = Consumer(world, "new", "t")
    newcomer.beat()
    slow = members[0]
    before = slow.owned
    for _ in range(4):  # the slow one does nothing
        newcomer.beat()
        members[1].beat()
        check_owners(*members, newcomer)
    assert not newcomer.owned & before
    world.advance(REBALANCE_MS // 2)
    assert world.commit_code({("t", 0): 3}, member=slow.member, generation=slow.generation) in {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,  # its session was over
    }


def test_partitions_that_a_member_still_reads_have_no_other_owner_after_a_downgrade_and_an_upgrade(
    world,
):
    (slow,) = classic_group(world, 1)
    had = slow.owned
    newcomer = Consumer(world, "new", "t")
    newcomer.beat()  # half of the partitions are to move, but the slow one does not know
    newcomer.leave()
    world.restart()
    another = Consumer(world, "another", "t")
    for _ in range(3):
        another.beat()
        check_owners(slow, another)
    assert slow.owned == had
    settle(slow, another)
    assert [len(slow.owned), len(another.owned)] == [3, 3]


def test_a_classic_member_that_does_not_join_again_is_removed(world):
    members = classic_group(world, 2)
    newcomer = Consumer(world, "new", "t")
    newcomer.beat()
    lazy = members[0]
    for _ in range(REBALANCE_MS // 5_000 + 2):
        world.advance(5_000)
        world.heartbeat(lazy.member, lazy.generation)
        newcomer.beat()
        members[1].beat()
    assert lazy.member not in world.group().members
    lazy.lose()
    settle(members[1], newcomer)
    assert [len(members[1].owned), len(newcomer.owned)] == [3, 3]


def test_a_classic_member_that_does_not_sync_is_removed(world):
    first = Consumer(world, "a", "t")
    settle(first)
    given = now(world.classic_join())
    joined = now(world.classic_join(given.member_id, session_ms=600_000))
    assert joined.error_code == 0
    assert joined.leader == ""
    for _ in range(REBALANCE_MS // 5_000 + 1):
        world.advance(5_000)
        first.beat()
    assert list(world.group().members) == ["a"]


def test_a_group_stays_what_it_is_where_the_policy_says_so():
    world = ConsumerGroupHarness(group_consumer_migration_policy="downgrade")
    world.topics.create("t", 6)
    classic_group(world, 1)
    assert world.join("new", "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    world = ConsumerGroupHarness(group_consumer_migration_policy="upgrade")
    world.topics.create("t", 6)
    members = classic_group(world, 1)
    newcomer = Consumer(world, "new", "t")
    settle(*members, newcomer)
    newcomer.leave()
    settle(*members)
    assert world.group().state is ConsumerGroupState.STABLE
    assert len(members[0].owned) == 6
    world.topics.grow("t", 8)
    settle(*members)
    assert len(members[0].owned) == 8


def test_only_consumers_can_be_mixed(world):
    given = now(world.classic_join(protocol_type="connect"))
    world.classic_join(given.member_id, protocol_type="connect")
    assert world.join("new", "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": "connect"},
        {"protocols": {}},
        {"protocols": {"range": b"\0"}},
        {"protocols": {"range": b"\xff\xff\0\0\0\0"}},
    ],
)
def test_a_classic_member_that_cannot_be_understood_is_refused(world, options):
    settle(Consumer(world, "a", "t"))
    refused = now(world.classic_join("b", **options))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_members_have_a_protocol_in_common(world):
    settle(Consumer(world, "a", "t"), ClassicConsumer(world, "t"))
    metadata = {"roundrobin": b"\0\0\0\0\0\0\xff\xff\xff\xff"}
    refused = now(world.classic_join("b", protocols=metadata))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_is_replaced_by_a_member_of_the_other_protocol(world):
    classic = ClassicConsumer(world, "t", instance="i")
    other = ClassicConsumer(world, "t")
    settle(classic, other)
    held = classic.owned
    modern = Consumer(world, "m", "t", instance="i")
    modern.beat()
    assert modern.owned == held
    assert world.heartbeat(classic.member, classic.generation, instance="i") == (
        ErrorCode.FENCED_INSTANCE_ID
    )
    settle(modern, other)
    held = modern.owned
    again = ClassicConsumer(world, "t", instance="i")
    again.beat()
    again.beat()
    assert world.group() is None, "the last consumer was replaced"
    assert world.group_state() is GroupState.STABLE, "no member has to join again"
    assert again.owned == held
    settle(again, other)
    assert again.owned | other.owned == world.topics.partitions("t")


def test_replacing_a_static_member_while_partitions_move_makes_all_members_join_again(world):
    classic = ClassicConsumer(world, "t", cooperative=True)
    settle(classic)
    modern = Consumer(world, "m", "t", instance="i")
    modern.beat()  # half of the partitions are to move, and have not
    again = ClassicConsumer(world, "t", cooperative=True, instance="i")
    again.beat()
    assert world.group() is None
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    check_owners(classic, again)
    settle(classic, again)
    assert sorted(len(member.owned) for member in (classic, again)) == [3, 3]


def test_an_upgrade_answers_parked_requests(world):
    members = classic_group(world, 1)
    joining = ClassicConsumer(world, "t")
    joining.beat()
    joining.beat()
    assert joining.parked is not None
    world.join("new", "t")
    assert joining.parked.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    newcomer = Consumer(world, "new", "t")
    settle(*members, joining, newcomer)
    assert [len(member.owned) for member in (*members, joining, newcomer)] == [2, 2, 2]


def test_an_upgrade_that_cannot_be_written_changes_nothing(world):
    members = classic_group(world, 2)
    world.refuse_appends()
    assert world.join("new", "t").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.accept_appends()
    settle(*members)
    assert world.group() is None
    assert world.group_state() is GroupState.STABLE


def test_a_downgrade_that_cannot_be_written_changes_nothing(world):
    members = classic_group(world, 1)
    newcomer = Consumer(world, "new", "t")
    settle(*members, newcomer)
    world.refuse_appends()
    left = world.send(member_id="new", member_epoch=-1)
    assert left.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.accept_appends()
    settle(*members, newcomer)
    assert [len(members[0].owned), len(newcomer.owned)] == [3, 3]


def test_an_upgrade_is_one_batch(world):
    classic_group(world, 2)
    world.take_records()
    batches = len(world.log.batches[0])
    world.join("new", "t")
    assert len(world.log.batches[0]) == batches + 1
    assert world.take_records()[0] == GenerationRecord("g", None)


def test_commits_of_classic_members_carry_their_generation(world):
    first = Consumer(world, "a", "t")
    classic = ClassicConsumer(world, "t")
    settle(first, classic)

    def commit(member: str, generation: int, **options: int) -> Any:
        return world.commit_code({("t", 0): 1}, member=member, generation=generation, **options)

    assert commit(classic.member, classic.generation) == 0
    assert commit(classic.member, classic.generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit("a", first.epoch) == 0
    assert commit("a", first.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("a", first.epoch, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit(classic.member, classic.generation, version=8) == 0


def test_both_kinds_of_members_are_described(world):
    first = Consumer(world, "a", "t")
    classic = ClassicConsumer(world, "t")
    settle(first, classic)
    (described,) = now(world.coordinator.describe_consumer_groups(["g"], world.now_ms))
    types = {member.member_id: member.member_type for member in described.members}
    assert types == {"a": 1, classic.member: 0}
    (listed,) = now(world.coordinator.list_groups([], [], world.now_ms))[1]
    assert (listed.group_type, listed.group_state) == ("consumer", "Stable")


def test_members_of_either_kind_are_removed(world):
    first = Consumer(world, "a", "t")
    others = [ClassicConsumer(world, "t", instance=instance) for instance in (None, "i")]
    settle(first, *others)
    gone = others[0].member
    answer = now(world.leave(("a", None), (gone, None), (gone, None), ("", "j")))
    codes = [member.error_code for member in answer.members]
    assert codes == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.group() is None, "no consumer is left"
    settle(others[1])
    assert len(others[1].owned) == 6
    settle(Consumer(world, "b", "t"))
    (removed,) = now(world.leave(("", "i"))).members
    assert (removed.member_id, removed.error_code) == ("", 0)
    assert list(world.group().members) == ["b"]


def test_sessions_of_classic_members_are_their_own(world):
    first = Consumer(world, "a", "t")
    classic = ClassicConsumer(world, "t", session_ms=CLASSIC_SESSION_MS)
    settle(first, classic)
    world.restart()
    world.advance(CLASSIC_SESSION_MS - 1)
    first.beat()
    assert classic.member in world.group().members
    world.advance(2)
    assert classic.member not in world.group().members
