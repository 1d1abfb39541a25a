"""The in-sync replicas of a partition with a schedule: a replica is in sync in both logs, or in none."""

from __future__ import annotations

from headrace.core.replica.isr import LAG_TIME_MS
from tests.unit.core.replica.test_isr import LIVE, ME, THREE, TWO, Leader, LiveBroker, in_sync


def fetch_schedule(leader: Leader, replica: int, end: int) -> None:
    assert leader.isr.schedule is not None
    leader.isr.schedule.fetched(
        replica,
        end,
        log_start_offset=0,
        broker_epoch=LIVE[replica].broker_epoch,
        log_end_offset=5,
        now_ms=leader.now_ms,
    )


def behind(leader: Leader) -> set[int]:
    assert leader.isr.schedule is not None
    return leader.isr.schedule.behind(
        leader.live, log_start_offset=0, high_watermark=5, log_end_offset=5, now_ms=leader.now_ms
    )


def test_a_schedule_counts_the_replicas_of_its_partition() -> None:
    leader = Leader(ME, TWO, min_insync=2)
    schedule = leader.isr.begin_schedule(epoch_start_offset=0, now_ms=leader.now_ms)
    assert schedule.progress.high_watermark(5, present=0, log_end_offset=5) == 0
    fetch_schedule(leader, TWO, 5)
    assert schedule.progress.high_watermark(5, present=0, log_end_offset=5) == 5
    leader.fetch(TWO)
    leader.fetch(THREE)
    proposal = leader.propose()
    assert proposal == in_sync(ME, TWO, THREE)
    assert schedule.progress.maximal_isr == {ME, TWO, THREE}
    leader.isr.newest(in_sync(ME, elr=(TWO,)))
    assert schedule.progress.isr == {ME}
    assert schedule.progress.is_frozen


def test_a_replica_that_is_behind_in_the_schedule_leaves_and_does_not_join() -> None:
    leader = Leader(ME, TWO)
    leader.isr.begin_schedule(epoch_start_offset=0, now_ms=leader.now_ms)
    assert behind(leader) == {THREE}, "broker 2 has time for its first fetch"
    leader.now_ms += LAG_TIME_MS + 1
    assert behind(leader) == {TWO, THREE}
    fetch_schedule(leader, TWO, 4)
    fetch_schedule(leader, THREE, 5)
    assert behind(leader) == {TWO}
    leader.fetch(TWO)
    leader.fetch(THREE)
    proposal = leader.isr.propose(
        leader.live,
        log_start_offset=0,
        high_watermark=leader.high_watermark,
        log_end_offset=leader.end,
        now_ms=leader.now_ms,
        behind={TWO},
    )
    assert proposal == in_sync(ME)


def test_a_restarted_broker_is_forgotten_in_the_schedule_too() -> None:
    leader = Leader(ME, TWO)
    schedule = leader.isr.begin_schedule(epoch_start_offset=0, now_ms=leader.now_ms)
    fetch_schedule(leader, TWO, 5)
    leader.isr.forget_restarted({**LIVE, TWO: LiveBroker(60)})
    assert schedule.progress.high_watermark(5, present=0, log_end_offset=5) == 0


def test_the_next_response_to_a_follower_reports_a_new_schedule() -> None:
    leader = Leader(ME, TWO)
    leader.isr.reported(TWO, (8, 0))
    leader.isr.begin_schedule(epoch_start_offset=0, now_ms=leader.now_ms)
    assert leader.isr.known_to(TWO) != (8, 0)
