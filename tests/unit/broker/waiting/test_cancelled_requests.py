"""Requests whose connection closes while they wait.

Their work continues, and the memory of their responses is freed.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

from headrace.broker.context import RequestContext
from headrace.broker.session import Session
from headrace.broker.waiting.delayed_fetch import (
    FETCH_BYTES,
    PARTITION_BYTES,
    DelayedFetch,
    WaitingFetches,
)
from headrace.broker.waiting.notices import LOOKS_PER_ROUND
from headrace.broker.waiting.purgatory import EXPIRED_PER_ROUND, READS_PER_ROUND
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_groups import (
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.sync_group import SyncGroupRequest
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    values,
)

LONG_MS = 300_000
ONE_BYTES = FETCH_BYTES + PARTITION_BYTES


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.create_topic("t", partitions=3)
    return made


def poll(harness: BrokerHarness, *wanted: tuple[str, int, int], **options: Any) -> Any:
    fields = {"max_wait_ms": LONG_MS}
    if "min_bytes" in options:
        fields["min_bytes"] = options.pop("min_bytes")
    return harness.send(fetch_request(*wanted or [("t", 0, 0)], **fields), **options)


def waits_for_nothing(harness: BrokerHarness) -> bool:
    broker = harness.broker
    topic = broker.services.topics.get("t")
    assert topic is not None
    partitions = broker.services.partitions.of(topic)
    watched = [partition for partition in partitions if partition and partition.watchers]
    held = len(broker.services.waiting_fetches), broker.services.waiting_fetches.held_bytes
    return not watched and len(broker.services.purgatory) == 0 and held == (0, 0)


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_fetch_that_is_cancelled_waits_for_nothing_and_is_freed(harness):
    kinds = (FetchRequest, FetchResponse)
    before = [alive(kind) for kind in kinds]  # the remains of other tests
    polls = [poll(harness, ("t", 0, 0), ("t", 1, 0), session=Session()) for _ in range(200)]
    assert len(harness.broker.services.waiting_fetches) == 200
    assert alive(FetchRequest) >= 200
    for each in polls:
        each.cancel()
    assert waits_for_nothing(harness)
    assert all(alive(kind) <= count for kind, count in zip(kinds, before, strict=True))
    assert alive(DelayedFetch) <= 100  # the spare entries of the heap of deadlines
    harness.produce("t", b"a")
    harness.advance(LONG_MS)
    assert not any(each.done for each in polls)


def test_a_fetch_may_be_cancelled_when_it_is_complete_and_not_yet_read(harness):
    reads: list[object] = []

    def first_is_answered() -> None:
        second.cancel()  # its connection closes while the broker delivers

    first = poll(harness, session=Session(), then=first_is_answered)
    third = poll(harness, session=Session(), then=lambda: reads.append("third"))
    second = poll(harness, session=Session())
    harness.produce("t", b"a")
    assert first.done
    assert third.done
    assert reads == ["third"]
    assert not second.done
    assert waits_for_nothing(harness)


def test_the_records_of_a_produce_that_is_cancelled_stay(harness):
    pending = harness.send(produce_request("t", 0, batch(b"kept")))
    pending.cancel()
    assert len(harness.broker.services.purgatory) == 0
    harness.sync()
    assert not pending.done
    assert values(harness.fetch("t", 0).records) == [b"kept"]
    harness.advance(60_000)  # neither does the deadline of the response come
    assert not pending.done


def test_the_audit_log_has_a_deletion_whose_connection_was_closed(harness):
    harness.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0))
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
    handle = harness.broker.services.groups.forget_offsets
    durable: Deferred[Any] = Deferred()
    harness.broker.services.groups.forget_offsets = lambda *_: iter([(0, [durable])])
    pending = harness.send(request)
    harness.broker.services.groups.forget_offsets = handle
    pending.cancel()
    durable.resolve(None)
    assert not pending.done
    assert [
        fields["topic"]
        for _, event, fields in harness.journal.lines
        if event == "audit_changed" and fields["what"] == "topic_deleted"
    ] == ["t"]


# Groups


def join(member_id: str = "", group: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m" * 100)],
    )


def state_of(harness: BrokerHarness, group: str = "g") -> tuple[str, int]:
    (described,) = harness.call(DescribeGroupsRequest(groups=[group])).groups
    return described.group_state, len(described.members)


def test_a_member_whose_connection_closed_while_it_joined_stays_until_its_session_times_out(
    harness,
):
    harness.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0))
    pending = harness.send(join(), 3)
    pending.cancel()
    harness.advance(3_000)  # the initial delay of a new group
    harness.sync()
    assert not pending.done
    assert state_of(harness) == ("CompletingRebalance", 1)
    harness.advance(61_000)
    harness.sync()
    assert state_of(harness) == ("Dead", 0)


def test_a_follower_can_repeat_its_sync_after_its_connection_closed(harness):
    harness.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0))
    joins = [harness.send(join(), 3) for _ in range(2)]
    harness.advance(6_000)
    harness.sync()
    leader, follower = sorted(
        (each.response for each in joins), key=lambda one: one.leader != one.member_id
    )
    sync = SyncGroupRequest(
        group_id="g", generation_id=follower.generation_id, member_id=follower.member_id
    )
    first = harness.send(sync, 3)
    first.cancel()
    second = harness.send(sync, 3)
    harness.call(
        SyncGroupRequest(
            group_id="g", generation_id=leader.generation_id, member_id=leader.member_id
        ),
        3,
    )
    harness.sync()
    assert not first.done
    assert second.response.error_code == ErrorCode.NONE
    beat = HeartbeatRequest(
        group_id="g", generation_id=follower.generation_id, member_id=follower.member_id
    )
    assert harness.call(beat).error_code == ErrorCode.NONE


def test_an_answer_of_the_coordinator_that_waits_for_a_sync_is_freed(harness):
    harness.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0))
    harness.send(join(), 3)
    harness.advance(3_000)  # writes the generation, which is not durable yet
    context = RequestContext(
        now_ms=harness.now_ms,
        header=RequestHeader(15, 5, 1, "test"),
        client_address="",
        listener_host="127.0.0.1",
        listener_port=9092,
    )
    reply = harness.broker.handle(context, DescribeGroupsRequest(groups=["g"]))
    assert isinstance(reply, Deferred)

    held = alive(DescribedGroupMember)
    reply.cancel()
    assert alive(DescribedGroupMember) == held - 1
    harness.sync()


# Bounds of delayed requests


def test_the_first_fetches_of_a_connection_above_its_memory_bound_are_answered(harness):
    harness.replace_services(waiting_fetches=WaitingFetches(100 * ONE_BYTES, 3 * ONE_BYTES))
    session, other = Session(), Session()
    patient = poll(harness, session=other)
    polls = [poll(harness, session=session) for _ in range(5)]
    assert [each.done for each in polls] == [True, True, False, False, False]
    assert not patient.done
    assert polls[0].response.responses[0].partitions[0].error_code == ErrorCode.NONE
    assert harness.broker.services.waiting_fetches.held_bytes == 4 * ONE_BYTES


def test_a_fetch_that_is_too_large_to_wait_is_answered_at_once(harness):
    harness.replace_services(waiting_fetches=WaitingFetches(100 * ONE_BYTES, ONE_BYTES))
    pending = poll(harness, ("t", 0, 0), ("t", 1, 0), session=Session())
    assert pending.done
    assert waits_for_nothing(harness)


def test_the_connections_with_most_delayed_fetches_are_answered_first(harness):
    waiting = WaitingFetches(16 * ONE_BYTES, 16 * ONE_BYTES)
    harness.replace_services(waiting_fetches=waiting)
    modest = [poll(harness, session=Session()) for _ in range(4)]
    greedy = Session()
    polls = [poll(harness, session=greedy) for _ in range(13)]
    assert waiting.held_bytes == 14 * ONE_BYTES
    assert not any(each.done for each in modest)
    assert sum(each.done for each in polls) == 3
    for each in (*modest, *polls):
        each.cancel()
    assert waits_for_nothing(harness)


def test_fetches_of_the_embedding_program_have_no_memory_bound(harness):
    harness.replace_services(waiting_fetches=WaitingFetches(ONE_BYTES, ONE_BYTES))
    polls = [poll(harness) for _ in range(20)]
    assert not any(each.done for each in polls)


def test_a_record_for_many_fetches_is_read_for_some_in_each_round(harness):
    polls = [poll(harness, session=Session()) for _ in range(READS_PER_ROUND + 10)]
    harness.send(produce_request("t", 0, batch(b"a")))
    answered = []
    while harness.sync():
        pass
    for _ in range(3):
        answered.append(sum(each.done for each in polls))
        if harness.broker.next_deadline_ms == 0:
            harness.broker.tick(harness.now_ms)
    assert answered == [READS_PER_ROUND, READS_PER_ROUND + 10, READS_PER_ROUND + 10]
    assert harness.broker.next_deadline_ms != 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[DelayedFetch]:
    """Record which fetches check whether there is enough data."""
    found: list[DelayedFetch] = []
    look = DelayedFetch.partition_changed

    def noted(fetch: DelayedFetch, partition: Any) -> None:
        found.append(fetch)
        look(fetch, partition)

    monkeypatch.setattr(DelayedFetch, "partition_changed", noted)
    return found


def append(harness: BrokerHarness, partition: int = 0) -> None:
    harness.send(produce_request("t", partition, batch(b"a")))
    while harness.sync():
        pass


def rounds(harness: BrokerHarness) -> int:
    count = 0
    while harness.broker.next_deadline_ms == 0:
        harness.broker.tick(harness.now_ms)
        count += 1
    return count


def test_fetches_look_some_in_each_round(harness, looks):
    count = 3 * LOOKS_PER_ROUND
    polls = [poll(harness, session=Session(), min_bytes=1 << 20) for _ in range(count)]
    append(harness)
    assert len(looks) == LOOKS_PER_ROUND
    assert rounds(harness) in {2, 3}
    assert len(looks) == len(set(looks)) == count
    assert not any(each.done for each in polls)


def test_waiting_fetches_see_records_appended_during_their_check(harness, looks):
    size = len(batch(b"a"))
    count = 3 * LOOKS_PER_ROUND
    polls = [poll(harness, session=Session(), min_bytes=2 * size) for _ in range(count)]
    append(harness)
    append(harness)  # for which fetches have to check again that have checked already
    append(harness)
    rounds(harness)
    assert all(each.done for each in polls)
    assert len(looks) < 2 * count


def test_a_fetch_of_another_partition_looks_in_between(harness, looks):
    for _ in range(6 * LOOKS_PER_ROUND):
        poll(harness, session=Session(), min_bytes=1 << 20)
    append(harness)
    other = poll(harness, ("t", 1, 0), session=Session())
    append(harness, partition=1)
    assert other.done
    assert len(looks) <= 4 * LOOKS_PER_ROUND + 1
    rounds(harness)
    assert len(looks) == 6 * LOOKS_PER_ROUND + 1


def test_a_fetch_of_many_partitions_counts_as_several_checks(harness, looks):
    harness.create_topic("wide", partitions=80)
    wide = [("wide", index, 0) for index in range(80)]
    for _ in range(LOOKS_PER_ROUND):
        poll(harness, ("t", 0, 0), *wide, session=Session(), min_bytes=1 << 20)
    append(harness)
    assert len(looks) <= LOOKS_PER_ROUND // 10


def test_fetches_expire_some_in_each_round(harness):
    polls = [poll(harness, session=Session()) for _ in range(2 * EXPIRED_PER_ROUND)]
    harness.now_ms += LONG_MS
    harness.broker.tick(harness.now_ms)
    assert sum(each.done for each in polls) == EXPIRED_PER_ROUND
    assert harness.broker.next_deadline_ms <= harness.now_ms
    harness.broker.tick(harness.now_ms)
    assert all(each.done for each in polls)


def test_a_produce_is_answered_before_the_fetches_that_its_record_completes(harness):
    polls = [poll(harness, session=Session()) for _ in range(2 * READS_PER_ROUND)]
    produced = harness.send(produce_request("t", 0, batch(b"a")))
    while harness.sync():
        pass
    assert produced.done
    assert not all(each.done for each in polls)
