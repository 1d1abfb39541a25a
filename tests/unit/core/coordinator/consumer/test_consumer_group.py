"""Consumer groups of the KIP-848 protocol, one rule in each test."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.consumer import requests, turn
from headrace.core.coordinator.consumer.target import compute_target
from headrace.core.coordinator.state.assignors import OWN_ASSIGNORS, Subscriber
from headrace.core.coordinator.state.consumer_group import ConsumerGroupState
from headrace.core.coordinator.state.consumer_records import (
    MemberMetadata,
    MemberRecord,
    MemberState,
    decode_consumer_record,
    encode_consumer_record,
)
from headrace.core.coordinator.state.topics import TopicInfo, metadata_hash
from headrace.errors import ErrorCode
from tests.fixtures.consumer_group_harness import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    ConsumerGroupHarness,
    given,
)
from tests.fixtures.group_harness import now

T1, T2 = bytes(15) + b"\x01", bytes(15) + b"\x02"


@pytest.fixture
def harness() -> ConsumerGroupHarness:
    harness = ConsumerGroupHarness()
    harness.topics.create("t", 4)
    return harness


def settled(harness: ConsumerGroupHarness, *names: str) -> list[Consumer]:
    members = [Consumer(harness, name, "t") for name in names]
    for _ in range(4):
        for member in members:
            member.beat()
    assert harness.group().state is ConsumerGroupState.STABLE
    return members


def test_a_partition_moves_only_after_its_owner_has_confirmed_the_revocation(harness):
    (first,) = settled(harness, "a")
    second = Consumer(harness, "b", "t")
    second.beat()
    assert second.owned == set()
    epoch = first.epoch
    told = harness.send(member_id="a", member_epoch=epoch)
    assert told.member_epoch == epoch
    assert len(given(told) or ()) == 2
    assert harness.group().holding("a").state is MemberState.UNREVOKED
    # The member has not confirmed the revocation, whatever else its heartbeat contains.
    harness.send(member_id="a", member_epoch=epoch)
    harness.send(member_id="a", member_epoch=epoch, owned=first.owned)
    second.beat()
    assert second.owned == set()
    first.heard(told)
    first.beat()
    second.beat()
    assert len(first.owned) == len(second.owned) == 2
    assert not first.owned & second.owned
    assert first.epoch == second.epoch > epoch


def test_a_member_that_does_not_revoke_in_time_is_removed(harness):
    (first,) = settled(harness, "a")
    second = Consumer(harness, "b", "t")
    second.beat()
    first.beat()
    for _ in range(REBALANCE_MS // 10_000):
        harness.send(member_id="a", member_epoch=first.epoch)
        second.beat()
        harness.advance(10_000)
    response = harness.send(member_id="a", member_epoch=first.epoch)
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    second.beat()
    assert len(second.owned) == 4


def test_the_session_of_a_silent_member_expires_after_a_restart_too(harness):
    settled(harness, "a", "b")
    harness.restart()
    harness.advance(SESSION_MS - 1)
    assert set(harness.group().members) == {"a", "b"}
    harness.advance(1)
    assert harness.group().members == {}
    assert harness.group().state is ConsumerGroupState.EMPTY


def test_a_restart_keeps_every_assignment(harness):
    members = settled(harness, "a", "b")
    before = [(member.epoch, member.owned) for member in members]
    harness.restart()
    for member in members:
        assert member.beat().error_code == 0
    assert [(member.epoch, member.owned) for member in members] == before


def test_new_partitions_are_assigned_and_those_of_a_deleted_topic_are_revoked(harness):
    (member,) = settled(harness, "a")
    harness.topics.grow("t", 6)
    member.beat()
    assert member.owned == harness.topics.partitions("t")
    assert len(member.owned) == 6
    harness.topics.delete("t")
    member.beat()
    assert member.owned == set()


def test_a_member_that_missed_a_response_receives_it_again(harness):
    (member,) = settled(harness, "a")
    harness.topics.grow("t", 5)
    member.beat("lost")
    assert harness.group().holding("a").epoch == member.epoch + 1
    member.beat()
    assert len(member.owned) == 5


@pytest.mark.parametrize(("epoch", "owned"), [(9, []), (1, None), (1, [(T2, 0)])])
def test_a_foreign_epoch_is_fenced(harness, epoch, owned):
    settled(harness, "a", "b")
    response = harness.send(member_id="a", member_epoch=epoch, owned=owned)
    assert response.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_static_member_gets_its_assignment_back_with_another_member_id(harness):
    first = Consumer(harness, "a", "t", instance="i")
    first.beat()
    other = Consumer(harness, "b", "t", instance="i")
    assert other.beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    owned, epoch = first.owned, harness.group().epoch
    first.leave(-2)
    other.beat()
    assert (other.owned, harness.group().epoch) == (owned, epoch)
    assert set(harness.group().members) == {"b"}
    fenced = harness.send(member_id="a", member_epoch=1, instance_id="i")
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_group_has_at_most_group_max_size_members(harness):
    harness = ConsumerGroupHarness(group_consumer_max_size=1)
    assert harness.join("a", "t").error_code == 0
    assert harness.join("b", "t").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_regular_expression_follows_the_topics_that_its_client_may_see(harness):
    first = harness.send(
        member_id="a",
        rebalance_timeout_ms=1_000,
        subscribed_topic_regex="t.*",
        owned=[],
        hidden=["t-secret"],
    )
    assert given(first) == harness.topics.partitions("t")
    harness.topics.create("t-secret", 1)
    harness.topics.create("t-new", 1)
    harness.topics.create("other", 1)
    second = harness.send(member_id="a", member_epoch=first.member_epoch, hidden=["t-secret"])
    assert given(second) == harness.topics.partitions("t", "t-new")
    broken = harness.send(
        member_id="b", rebalance_timeout_ms=1_000, subscribed_topic_regex="(", owned=[]
    )
    assert broken.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert set(harness.group().members) == {"a"}


def test_a_group_has_only_so_many_regular_expressions(harness, monkeypatch):
    monkeypatch.setattr(requests, "REGEXES_LIMIT", 2)
    harness.join("a", subscribed_topic_regex="t.*")
    harness.join("b", subscribed_topic_regex="u.*")
    harness.join("c", subscribed_topic_regex="u.*")
    refused = harness.join("d", subscribed_topic_regex="v.*")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "d" not in harness.group().members
    assert harness.join("a", subscribed_topic_regex="w.*").error_code == 0, "instead of its own"
    assert set(harness.group().regexes) == {"u.*", "w.*"}


def test_a_thousand_members_cost_a_handful_of_assignments(monkeypatch):
    harness = ConsumerGroupHarness()
    harness.topics.create("t", 500)
    computed: list[int] = []

    def counted(*args, **options):
        computed.append(1)
        return compute_target(*args, **options)

    monkeypatch.setattr(turn, "compute_target", counted)
    members = [Consumer(harness, f"m{number:04}", "t") for number in range(400)]
    for member in members:
        member.beat()
        harness.now_ms += 1
    assert len(computed) < 110
    told = harness.join("last", "t")
    assert 0 < told.heartbeat_interval_ms <= 401, (
        "the interval ends when the expression is evaluated"
    )
    harness.advance(1000)
    members[0].beat()
    assert len(computed) < 111
    assert harness.group().epoch == harness.group().assignment_epoch
    for member in members:
        member.beat()
    assert len(computed) < 111, "nothing has changed"


def test_changes_within_an_assignment_interval_are_handled_together():
    harness = ConsumerGroupHarness(group_consumer_assignment_interval_ms=1000)
    harness.topics.create("t", 4)
    first, second = (Consumer(harness, name, "t") for name in "ab")
    first.beat()
    second.beat()
    assert (len(first.owned), len(second.owned)) == (4, 0)
    harness.restart()
    harness.advance(999)
    first.beat()
    assert len(first.owned) == 4
    harness.advance(1)
    for _ in range(3):
        first.beat()
        second.beat()
    assert (len(first.owned), len(second.owned)) == (2, 2)


def test_commits_and_fetches_of_members_carry_their_epoch(harness):
    (member,) = settled(harness, "a")

    def commit(name: str, epoch: int):
        return harness.commit_code({("t", 0): 7}, member=name, generation=epoch)

    assert commit("a", member.epoch) == 0
    assert commit("a", member.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("b", member.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    member.leave()
    assert commit("", -1) == 0


def test_an_empty_group_changes_its_protocol_both_ways_and_keeps_its_offsets():
    harness = ConsumerGroupHarness(group_consumer_migration_policy="disabled")
    harness.topics.create("t", 2)
    (member,) = settled(harness, "a")
    harness.commit_code({("t", 0): 7}, member="a", generation=member.epoch)
    member.leave()
    classic = now(harness.classic_join())
    assert classic.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert harness.group() is None
    harness.classic_join(classic.member_id)
    refused = harness.join("a", "t")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    harness.classic_leave(classic.member_id)
    assert member.beat().error_code == 0
    harness.restart()
    assert harness.group() is not None
    assert harness.offsets() == {("t", 0): 7}


def test_a_group_is_deleted_with_all_its_keys_once_it_is_empty(harness):
    (member,) = settled(harness, "a")

    def delete():
        (result,) = now(harness.coordinator.delete_groups(["g"], harness.now_ms))
        return result

    assert delete().error_code == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert delete().error_code == 0
    assert not harness.coordinator.exists("g")
    harness.restart()
    assert not harness.coordinator.exists("g")


class Greedy:
    """An assignor that assigns all partitions to all members."""

    name = "greedy"

    def assign(self, members, topics):
        return {member: [(t, 0) for t in topics] for member in members}


def test_a_users_assignor_that_assigns_a_partition_twice_changes_nothing():
    harness = ConsumerGroupHarness(assignors={"greedy": Greedy()})
    harness.topics.create("t", 1)
    assert harness.join("a", "t").error_code == 0
    assert harness.join("b", "t").error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert set(harness.group().members) == {"a"}
    assert ("error", "consumer_group_assignor_failed") in [e[:2] for e in harness.notes.events]


def test_range_keeps_partitions_of_one_number_together():
    members = {name: Subscriber(frozenset({T1, T2})) for name in "abc"}
    assignment = OWN_ASSIGNORS["range"].assign(members, {T1: 4, T2: 4})
    assert assignment["a"] == [(T1, 0), (T1, 1), (T2, 0), (T2, 1)]
    assert assignment["c"] == [(T1, 3), (T2, 3)]


def test_uniform_moves_the_fewest_partitions():
    held = frozenset((T1, index) for index in range(6))
    members = {"a": Subscriber(frozenset({T1}), held), "b": Subscriber(frozenset({T1}))}
    assignment = OWN_ASSIGNORS["uniform"].assign(members, {T1: 6})
    assert len(assignment["a"]) == len(assignment["b"]) == 3
    assert set(assignment["a"]) < held


def test_the_hash_of_topics_sees_names_identities_and_sizes():
    base = {"t": TopicInfo(T1, 1)}
    others = [{}, {"u": TopicInfo(T1, 1)}, {"t": TopicInfo(T2, 1)}, {"t": TopicInfo(T1, 2)}]
    assert len({metadata_hash(topics) for topics in [base, *others]}) == 5


def test_states_are_stored_under_kafkas_numbers():
    numbers = {state.name: state.value for state in MemberState}
    assert numbers == {"STABLE": 0, "UNREVOKED": 1, "UNRELEASED": 2}


def test_a_member_without_classic_metadata_is_stored_with_an_explicit_null():
    key, value = encode_consumer_record(MemberRecord("g", "m", MemberMetadata()))
    assert value is not None
    assert value.endswith(b"\x01\x00\x01\x00"), "one tag, number 0, of one byte: null"
    record = MemberRecord("g", "m", MemberMetadata())
    assert decode_consumer_record(5, memoryview(key), value) == record
    left_out = value[:-4] + b"\x00"
    assert decode_consumer_record(5, memoryview(key), left_out) == record


def test_a_member_receives_the_topics_of_a_slow_expression_with_its_next_heartbeat(
    harness,
):
    harness.topics.evaluating = True
    joined = harness.join("a", subscribed_topic_regex="t.*")
    assert (joined.error_code, joined.heartbeat_interval_ms) == (0, turn.EVALUATION_MS)
    assert given(joined) == set()
    harness.topics.evaluating = False
    told = harness.send(member_id="a", member_epoch=joined.member_epoch)
    assert told.heartbeat_interval_ms > joined.heartbeat_interval_ms
    assert given(told) == harness.topics.partitions("t")


def test_members_keep_their_topics_while_an_expression_is_evaluated_again(harness):
    joined = harness.join("a", subscribed_topic_regex="t.*")
    assert given(joined) == harness.topics.partitions("t")
    harness.topics.create("t2", 1)
    harness.topics.evaluating = True
    told = harness.send(member_id="a", member_epoch=joined.member_epoch)
    assert (told.error_code, told.assignment) == (0, None)
    harness.topics.evaluating = False
    told = harness.send(member_id="a", member_epoch=told.member_epoch)
    assert given(told) == harness.topics.partitions("t", "t2")
