"""Scheduled records of partitions with several replicas: released once, whichever broker leads."""

from __future__ import annotations

from typing import Any, Final

import pytest

from headrace.broker.replication.fetchers import _Loop
from headrace.broker.replication.partition import Partition
from headrace.broker.scheduled_records import REFRESH_INTERVAL_MS
from headrace.broker.topic_names import schedule_of
from headrace.core.cluster.records import PartitionState, encode
from headrace.core.log import MAX_OFFSET
from headrace.core.scheduled.schedule import Schedule
from headrace.errors import ErrorCode
from headrace.ports import Put
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.records.batch import iterate_headers
from headrace.records.builder import build_batch
from tests.fixtures.broker_harness import START_MS, Pending, produce_request, values
from tests.fixtures.cluster import SimulatedCluster

DELAY_MS: Final = 20_000
"""Long enough for an election."""
OTHERS: Final = (2, 3)


def batch(*contents: bytes, delay_ms: int = DELAY_MS, **options: Any) -> bytes:
    headers = (("headrace.delay-ms", b"%d" % delay_ms),)
    return build_batch([(None, value, headers, START_MS) for value in contents], **options)


def code(response: Any) -> ErrorCode:
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(3)
    cluster.create_topic("t", replicas=[(1, 2, 3)], headrace_delay_enable="true")
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    return cluster


def send(cluster: SimulatedCluster, records: bytes, acks: int = -1) -> Pending:
    leader = cluster.brokers[cluster.leader("t")]
    return leader.send(produce_request("t", 0, records, acks=acks, timeout_ms=90_000))


def answer(cluster: SimulatedCluster, pending: Pending) -> Any:
    cluster.run_until(lambda: pending.done)
    return pending.response


def schedule(cluster: SimulatedCluster, *contents: bytes, **options: Any) -> None:
    """Send a batch until it is acknowledged, as a producer does."""
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    while error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        pending = send(cluster, batch(*contents, **options))
        error = code(answer(cluster, pending))
        cluster.advance(10)
    assert error is ErrorCode.NONE


def released(cluster: SimulatedCluster) -> list[bytes]:
    """Return the records that a consumer can read."""
    leader = cluster.leader("t")
    found = [] if leader < 0 else values(cluster.log_of(leader, "t"))
    return [value for value in found if value is not None]


def is_led_by_another(cluster: SimulatedCluster, than: int = 1) -> bool:
    return cluster.leader("t") in cluster.brokers and cluster.leader("t") != than


def schedule_end(cluster: SimulatedCluster, broker_id: int) -> int:
    companion = cluster.replica(broker_id, "t").companion
    return -1 if companion is None else companion.log.log_end_offset


def test_every_replica_has_the_schedule_and_the_released_records(cluster) -> None:
    schedule(cluster, b"a", b"b")
    assert all(schedule_end(cluster, each) >= 2 for each in (1, 2, 3)), "acknowledged"
    assert released(cluster) == []
    cluster.advance(DELAY_MS)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert [values(cluster.log_of(each, "t")) for each in (1, 2, 3)] == [[b"a", b"b"]] * 3


@pytest.mark.parametrize("power", [False, True])
def test_the_next_leader_releases_what_its_predecessor_has_accepted(
    cluster: SimulatedCluster, *, power: bool
) -> None:
    schedule(cluster, b"a")
    cluster.kill(1, power=power)
    cluster.run_until(lambda: is_led_by_another(cluster))
    cluster.run_until(lambda: released(cluster) == [b"a"])
    cluster.start(1)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    cluster.advance(DELAY_MS)
    assert [values(cluster.log_of(each, "t")) for each in (1, 2, 3)] == [[b"a"]] * 3


def test_a_release_that_only_the_lost_leader_had_is_repeated_once(cluster) -> None:
    schedule(cluster, b"a")
    for other in OTHERS:
        cluster.cut(1, other)
    leader = cluster.brokers[1]
    cluster.run_until(lambda: values(cluster.log_of(1, "t")) == [b"a"])
    assert cluster.replica(1, "t").high_watermark < cluster.replica(1, "t").log.log_end_offset
    leader.kill(ends_session=True)
    cluster.run_until(lambda: is_led_by_another(cluster))
    cluster.run_until(lambda: released(cluster) == [b"a"])
    cluster.heal()
    cluster.start(1)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    cluster.advance(DELAY_MS)
    assert [values(cluster.log_of(each, "t")) for each in (1, 2, 3)] == [[b"a"]] * 3


def test_the_next_leader_does_not_release_again_what_has_no_mark(cluster, monkeypatch) -> None:
    schedule(cluster, b"a")
    monkeypatch.setattr(Schedule, "settle", lambda *_: None)  # no mark is written
    cluster.advance(DELAY_MS)
    cluster.run_until(lambda: cluster.is_in_sync("t") and released(cluster) == [b"a"])
    monkeypatch.undo()
    cluster.kill(1)
    cluster.run_until(lambda: is_led_by_another(cluster))
    schedule(cluster, b"b")
    cluster.advance(DELAY_MS)
    cluster.run_until(lambda: released(cluster) == [b"a", b"b"])


def uncommitted_and_due(cluster: SimulatedCluster) -> None:
    """Let the leader accept a record that no follower gets, and pass its delivery time."""
    schedule(cluster, b"a")
    cluster.advance(DELAY_MS)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    for other in OTHERS:
        cluster.cut(1, other)
    send(cluster, batch(b"b", delay_ms=100), acks=1)
    cluster.advance(2_000)


def test_a_record_is_not_released_before_it_is_committed(cluster) -> None:
    uncommitted_and_due(cluster)
    assert values(cluster.log_of(1, "t")) == [b"a"]
    cluster.heal()
    cluster.run_until(lambda: released(cluster) == [b"a", b"b"])


def test_without_the_defence_a_record_is_released_before_it_is_committed(
    cluster, monkeypatch
) -> None:
    monkeypatch.setattr(
        Schedule, "_releasable_end", property(lambda schedule: schedule.log.log_end_offset)
    )
    uncommitted_and_due(cluster)
    assert values(cluster.log_of(1, "t")) == [b"a", b"b"]


def test_a_record_waits_for_as_many_replicas_as_acks_says(cluster) -> None:
    schedule(cluster, b"a")
    cluster.cut(1, 3)
    two = send(cluster, batch(b"b"), acks=2)
    cluster.run_until(lambda: two.done, 5_000)
    assert code(two.response) is ErrorCode.NONE
    every = send(cluster, batch(b"c"))
    cluster.advance(5_000)
    assert not every.done, "broker 3 is in sync and has nothing"
    assert schedule_end(cluster, 3) < schedule_end(cluster, 2)
    cluster.run_until(lambda: every.done)
    assert 3 not in cluster.state("t").isr


def test_a_replica_joins_when_it_has_the_schedule_too(cluster) -> None:
    cluster.kill(3, ends_session=True)
    cluster.run_until(lambda: 3 not in cluster.state("t").isr)
    schedule(cluster, b"a")
    cluster.start(3)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert schedule_end(cluster, 3) == schedule_end(cluster, 1)


def test_a_retry_after_a_failover_is_recognised(cluster) -> None:
    identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    schedule(cluster, b"a", **identity)
    cluster.kill(1)
    cluster.run_until(lambda: is_led_by_another(cluster))
    schedule(cluster, b"a", **identity)
    cluster.advance(2 * DELAY_MS)
    assert released(cluster) == [b"a"]


def test_all_brokers_lose_power(cluster) -> None:
    schedule(cluster, b"a")
    for each in (1, 2, 3):
        cluster.kill(each, power=True)
    for each in (3, 2, 1):
        cluster.start(each)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    cluster.advance(DELAY_MS)
    cluster.run_until(lambda: released(cluster) == [b"a"])


def test_a_damaged_schedule_is_fetched_anew(cluster) -> None:
    schedule(cluster, b"a")
    broker = cluster.brokers[1]
    name = schedule_of(cluster.replica(1, "t").topic_partition)
    broker.stop()
    broker.files.remove(f"{name}/00000000000000000000.log")
    broker.files.remove("clean_shutdown")
    cluster.start(1)
    cluster.run_until(
        lambda: (
            "damaged_replica_replaced" in broker.journal.events("warning")
            and cluster.is_in_sync("t")
        )
    )
    assert schedule_end(cluster, 1) == schedule_end(cluster, 2)
    cluster.elect("t", 0, 1)
    cluster.run_until(lambda: cluster.leader("t") == 1 and released(cluster) == [b"a"])


def test_a_deleted_topic_takes_its_schedules_along(cluster) -> None:
    schedule(cluster, b"a")
    for each in (1, 2, 3):
        assert any(name.startswith("~t") for name in cluster.brokers[each].files.list(""))
    cluster.brokers[1].call(DeleteTopicsRequest(topic_names=["t"]), 5)
    cluster.advance(120_000)
    for each in (1, 2, 3):
        assert not any(name == "~t-0" for name in cluster.brokers[each].files.list(""))


def elect_uncleanly(cluster: SimulatedCluster, broker_id: int) -> None:
    before = cluster.state("t")
    epoch = before.leader_epoch + 1
    state = PartitionState(
        broker_id, epoch, (broker_id,), (), cluster.registration(broker_id), epoch
    )
    cluster.commit(Put(cluster._state_key("t", 0), encode(state)))
    cluster.run_until(lambda: cluster.replica(broker_id, "t").leader_epoch == epoch)


def without_schedule(cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart broker 3, which from now on fetches the partition and not its schedule."""
    cluster.kill(3, ends_session=True)
    cluster.run_until(lambda: 3 not in cluster.state("t").isr)
    monkeypatch.setattr(_Loop, "_follow_schedule", lambda *_: None)
    cluster.start(3)


def test_a_replica_without_the_schedule_does_not_join(cluster, monkeypatch) -> None:
    schedule(cluster, b"a")
    without_schedule(cluster, monkeypatch)
    cluster.advance(60_000)
    assert cluster.log_of(3, "t") == cluster.log_of(1, "t")
    assert cluster.state("t").isr == (1, 2)


def test_a_replica_whose_schedule_lags_leaves(cluster, monkeypatch) -> None:
    follow = _Loop._follow_schedule

    def lag(loop: _Loop, partition: Partition) -> None:
        if loop._replicas.broker_id != 3:
            follow(loop, partition)

    monkeypatch.setattr(_Loop, "_follow_schedule", lag)
    acknowledged = send(cluster, batch(b"a"))
    cluster.run_until(lambda: acknowledged.done)
    assert code(acknowledged.response) is ErrorCode.NONE
    assert cluster.state("t").isr == (1, 2)


def test_an_unclean_leader_whose_schedule_lacks_released_records(cluster, monkeypatch) -> None:
    schedule(cluster, b"a")
    without_schedule(cluster, monkeypatch)
    schedule(cluster, b"b", delay_ms=100)
    schedule(cluster, b"never", delay_ms=10 * DELAY_MS)
    cluster.run_until(lambda: released(cluster) == [b"b"])
    cluster.run_until(lambda: cluster.log_of(3, "t") == cluster.log_of(1, "t"))
    monkeypatch.undo()
    for each in (1, 2):
        cluster.kill(each, ends_session=True)
    elect_uncleanly(cluster, 3)
    schedule(cluster, b"c")
    cluster.run_until(lambda: b"c" in released(cluster))
    cluster.start(1)
    cluster.start(2)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    cluster.elect("t", 0, 2)
    schedule(cluster, b"d")
    cluster.run_until(lambda: b"d" in released(cluster))
    found = released(cluster)
    assert found[0] == b"b"
    assert sorted(found) in ([b"a", b"b", b"c", b"d"], [b"b", b"c", b"d"]), "each once"


def test_an_unclean_leader_that_lacks_marked_releases(cluster, monkeypatch) -> None:
    schedule(cluster, b"a", delay_ms=100)
    cluster.run_until(lambda: released(cluster) == [b"a"] and cluster.is_in_sync("t"))
    cluster.advance(100)
    log = cluster.replica(3, "t").log
    cluster.kill(3, ends_session=True)
    for name in cluster.brokers[3].files.list("t-0"):
        cluster.brokers[3].files.remove(f"t-0/{name}")
    for each in (1, 2):
        cluster.kill(each, ends_session=True)
    assert log.log_end_offset > 0
    cluster.start(3)
    elect_uncleanly(cluster, 3)
    monkeypatch.setattr(Schedule, "settle", lambda *_: None)  # no other mark is written
    for value in (b"b", b"c"):
        schedule(cluster, value, delay_ms=100)
        cluster.advance(1_000)
        cluster.kill(3)
        cluster.start(3)
        cluster.run_until(lambda: not cluster.replica(3, "t").refusal)
    assert released(cluster) == [b"b", b"c"]


def test_a_follower_cleans_only_what_marks_cover(cluster) -> None:
    schedule(cluster, b"a")
    log = cluster.replica(2, "t").log
    assert log.keep_from == 0
    cluster.advance(DELAY_MS)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    cluster.advance(2 * REFRESH_INTERVAL_MS)
    assert log.keep_from == log.log_end_offset
    cluster.kill(1)
    cluster.run_until(lambda: is_led_by_another(cluster))
    cluster.start(1)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert cluster.replica(1, "t").log.keep_from < MAX_OFFSET


def test_releases_stay_until_the_mark_of_the_last_leader_is_committed(cluster) -> None:
    schedule(cluster, b"a", delay_ms=100)
    cluster.run_until(lambda: released(cluster) == [b"a"])
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    (release,) = (
        header.base_offset
        for _, header in iterate_headers(cluster.log_of(1, "t"))
        if not header.is_control
    )
    schedule(cluster, b"b", delay_ms=5_000)
    for each in (1, 2):
        cluster.cut(each, 3)
    cluster.brokers[1].broker.services.deliveries._refresh(cluster.now_ms)  # writes a mark
    cluster.run_until(lambda: schedule_end(cluster, 2) == schedule_end(cluster, 1))
    cluster.elect("t", 0, 2)
    cluster.run_until(lambda: not cluster.replica(2, "t").refusal)
    log = cluster.replica(2, "t").log
    assert log.keep_from <= release, "broker 3 may lead without the mark"
    cluster.heal()
    cluster.run_until(lambda: released(cluster) == [b"a", b"b"])
    cluster.run_until(lambda: log.keep_from > release)


def test_a_mark_waits_until_its_release_is_committed(cluster) -> None:
    schedule(cluster, b"a", delay_ms=100)
    schedule(cluster, b"b", delay_ms=600)  # its release looks for marks to write
    for other in OTHERS:
        cluster.cut(1, other)
    before = schedule_end(cluster, 1)
    cluster.run_until(lambda: values(cluster.log_of(1, "t")) == [b"a", b"b"])
    cluster.advance(1_000)
    assert schedule_end(cluster, 1) == before
    cluster.heal()
    cluster.run_until(lambda: schedule_end(cluster, 1) > before)


def test_a_follower_refuses_scheduled_records(cluster) -> None:
    follower = cluster.brokers[2]
    refused = follower.send(produce_request("t", 0, batch(b"a")))
    assert code(answer(cluster, refused)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.replica(2, "t").companion is None
    assert "schedule_not_served" not in follower.journal.events("error")
