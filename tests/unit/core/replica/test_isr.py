"""The in-sync replicas of a leader: who leaves, who joins, and what holds back the high watermark meanwhile."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.replica.isr import (
    LAG_TIME_MS,
    MESSAGES_LAG_MS,
    NO_BROKER_EPOCH,
    InSync,
    Isr,
    LagLimits,
    Phase,
)

ME, TWO, THREE = 1, 2, 3


class LiveBroker(NamedTuple):
    broker_epoch: int
    is_draining: bool = False


START_MS, EPOCH_START = 1_000, 10
NO_LIMITS = LagLimits()
LIVE = {ME: LiveBroker(5), TWO: LiveBroker(6), THREE: LiveBroker(7)}


def in_sync(*isr: int, elr: tuple[int, ...] = ()) -> InSync:
    return InSync(frozenset(isr), frozenset(elr))


class Leader:
    """A leader with its log end offset and its high watermark; it syncs at once."""

    def __init__(
        self,
        *isr: int,
        elr: tuple[int, ...] = (),
        min_insync: int = 1,
        limits: LagLimits = NO_LIMITS,
        assigned: tuple[int, ...] = (ME, TWO, THREE),
    ) -> None:
        self.isr = Isr(
            ME,
            assigned,
            in_sync(*isr, elr=elr),
            min_insync_replicas=min_insync,
            epoch_start_offset=EPOCH_START,
            limits=limits,
            now_ms=START_MS,
        )
        self.start, self.end = 0, EPOCH_START
        self.high_watermark = 8
        self.now_ms = START_MS
        self.live = dict(LIVE)

    def fetch(
        self, replica: int, end: int | None = None, broker_epoch: int | None = None, start: int = 0
    ) -> int:
        """Let a follower fetch, and return the high watermark."""
        self.isr.fetched(
            replica,
            self.end if end is None else end,
            log_start_offset=start,
            broker_epoch=LIVE[replica].broker_epoch if broker_epoch is None else broker_epoch,
            log_end_offset=self.end,
            now_ms=self.now_ms,
        )
        return self.move()

    def move(self) -> int:
        progress = self.isr.progress
        self.high_watermark = progress.high_watermark(
            self.end, present=self.high_watermark, log_end_offset=self.end
        )
        return self.high_watermark

    def propose(self) -> InSync | None:
        return self.isr.propose(
            self.live,
            log_start_offset=self.start,
            high_watermark=self.high_watermark,
            log_end_offset=self.end,
            now_ms=self.now_ms,
        )


# Shrinking


def test_a_replica_leaves_when_it_lags_for_longer_than_the_limit() -> None:
    leader = Leader(ME, TWO)
    leader.now_ms += LAG_TIME_MS
    assert leader.propose() is None
    leader.now_ms += 1
    assert leader.propose() == in_sync(ME)


def test_a_replica_with_the_end_of_the_log_is_in_sync_however_long_ago_it_fetched() -> None:
    leader = Leader(ME, TWO)
    leader.fetch(TWO)
    leader.now_ms += 10 * LAG_TIME_MS
    assert leader.propose() is None


def test_a_replica_that_always_has_the_end_of_its_previous_fetch_stays_under_constant_load() -> (
    None
):
    leader = Leader(ME, TWO)
    for _ in range(200):
        before = leader.end
        leader.end += 100
        leader.now_ms += 500
        leader.fetch(TWO, before)
        assert leader.propose() is None
    assert leader.high_watermark < leader.end


def test_a_replica_that_fetches_but_falls_behind_leaves() -> None:
    leader = Leader(ME, TWO)
    position = leader.end
    left = False
    for _ in range(200):
        leader.end += 100
        position += 50
        leader.now_ms += 500
        leader.fetch(TWO, position)
        left = left or leader.propose() == in_sync(ME)
    assert left


def test_a_replica_leaves_at_once_when_its_registration_goes() -> None:
    leader = Leader(ME, TWO, THREE)
    leader.fetch(TWO)
    leader.fetch(THREE)
    del leader.live[THREE]
    assert leader.propose() == in_sync(ME, TWO)


def test_a_lag_in_messages_counts_only_if_it_is_limited_and_lasts() -> None:
    unlimited, limited = Leader(ME, TWO), Leader(ME, TWO, limits=LagLimits(messages=50))
    for leader in (unlimited, limited):
        leader.end += 200
        leader.fetch(TWO, EPOCH_START)
        leader.now_ms += MESSAGES_LAG_MS - 1
        leader.fetch(TWO, EPOCH_START + 100)
        assert leader.propose() is None
        leader.now_ms += 1
        leader.fetch(TWO, EPOCH_START + 120)
    assert unlimited.propose() is None
    assert limited.propose() == in_sync(ME)


def test_bursts_of_messages_do_not_remove_a_replica() -> None:
    leader = Leader(ME, TWO, limits=LagLimits(messages=50))
    for _ in range(20):
        leader.end += 200
        leader.fetch(TWO, leader.end - 200)
        leader.now_ms += MESSAGES_LAG_MS - 1
        leader.fetch(TWO, leader.end - 50)
        assert leader.propose() is None


def test_a_leader_that_is_not_live_proposes_nothing() -> None:
    leader = Leader(ME, TWO)
    leader.live = {}
    assert leader.propose() is None


# Expansion


def test_a_replica_joins_when_it_has_the_high_watermark_and_the_start_of_the_epoch() -> None:
    leader = Leader(ME)
    leader.end = leader.high_watermark = 12
    leader.fetch(TWO, 11)
    assert leader.propose() is None
    leader.fetch(TWO, 12)
    assert leader.propose() == in_sync(ME, TWO)


def test_a_replica_joins_under_constant_load_when_it_has_the_end_of_its_previous_fetch() -> None:
    leader = Leader(ME, THREE)  # the high watermark waits for the third replica
    before = leader.end
    leader.end += 100
    leader.fetch(TWO, before)
    assert leader.propose() is None, "it has never had the end of the log"
    before = leader.end
    leader.end += 100
    leader.fetch(TWO, before)
    assert leader.propose() == in_sync(ME, TWO, THREE)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([TWO, THREE]),
            st.integers(0, 20),
            st.integers(0, 30),
            st.sampled_from([0, 1, MESSAGES_LAG_MS, LAG_TIME_MS + 1]),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.sampled_from([(ME,), (ME, TWO), (ME, TWO, THREE)]),
    st.sampled_from([NO_LIMITS, LagLimits(messages=5)]),
)
def test_a_replica_that_joins_or_leaves_does_not_change_its_mind_in_the_same_moment(
    fetches: list[tuple[int, int, int, int, bool]], isr: tuple[int, ...], limits: LagLimits
) -> None:
    """A leader proposes again as soon as a change is committed: two rules that disagree would never end."""
    leader = Leader(*isr, limits=limits)
    for replica, appended, lag, pause_ms, decides in fetches:
        leader.end += appended
        leader.now_ms += pause_ms
        leader.fetch(replica, max(0, leader.end - lag))
        if decides:
            changes = [set(isr) for isr in settle(leader)]
            moved = [before ^ after for before, after in pairwise(changes)]
            assert len(moved) <= 2, changes
            assert len(moved) < 2 or not moved[0] & moved[1], changes


def settle(leader: Leader) -> list[frozenset[int]]:
    """Commit what the leader proposes until there is nothing left; return the in-sync replicas before and after."""
    states = [leader.isr.committed.isr]
    while len(states) < 5 and (proposal := leader.propose()) is not None:
        leader.isr.decided(proposal, accepted=True)
        leader.move()
        states.append(proposal.isr)
    return states


def test_a_replica_joins_when_it_has_deleted_what_the_leader_has_deleted() -> None:
    leader = Leader(ME)
    leader.start = 4
    leader.fetch(TWO, start=3)
    assert leader.propose() is None
    leader.fetch(TWO, start=4)
    assert leader.propose() == in_sync(ME, TWO)


def test_a_replica_below_the_start_of_the_epoch_does_not_join() -> None:
    """The high watermark of a new leader may be too low: it has 8, and records up to 10 may be committed."""
    leader = Leader(ME, THREE)
    leader.fetch(TWO, EPOCH_START - 1)
    assert leader.high_watermark == 8
    assert leader.propose() is None
    leader.fetch(TWO, EPOCH_START)
    assert leader.propose() == in_sync(ME, TWO, THREE)


@pytest.mark.parametrize(
    "broker", [None, LiveBroker(6, is_draining=True), LiveBroker(5), LiveBroker(7)]
)
def test_only_the_running_process_that_fetches_joins(broker: LiveBroker | None) -> None:
    leader = Leader(ME)
    leader.live.pop(TWO)
    if broker is not None:
        leader.live[TWO] = broker
    leader.fetch(TWO)
    assert leader.propose() is None
    leader.live[TWO] = LiveBroker(6)
    assert leader.propose() == in_sync(ME, TWO)


def test_a_fetch_without_a_broker_epoch_does_not_join() -> None:
    leader = Leader(ME)
    leader.fetch(TWO, broker_epoch=NO_BROKER_EPOCH)
    assert leader.propose() is None


def test_a_replica_that_has_not_fetched_in_this_epoch_does_not_join() -> None:
    leader = Leader(ME)
    leader.high_watermark = 0
    assert leader.propose() is None


def test_a_broker_without_a_replica_has_no_progress() -> None:
    leader = Leader(ME, TWO, assigned=(ME, TWO))
    assert not leader.isr.is_follower(THREE)
    assert not leader.isr.is_follower(ME)
    assert leader.isr.replicas_count == 2


def test_the_progress_of_an_earlier_process_is_forgotten() -> None:
    leader = Leader(ME, TWO)
    leader.end = 12
    leader.fetch(TWO, 11)
    leader.isr.forget_restarted({**LIVE, TWO: LiveBroker(9)})
    leader.end = 20
    assert leader.move() == 11
    leader.fetch(TWO, 12, broker_epoch=9)
    leader.isr.forget_restarted({**LIVE, TWO: LiveBroker(9)})
    assert leader.move() == 12


# Proposals


def test_a_replica_that_is_to_leave_counts_until_the_change_is_committed() -> None:
    leader = Leader(ME, TWO)
    del leader.live[TWO]
    proposal = leader.propose()
    assert proposal is not None
    leader.end += 5
    assert leader.move() == 8
    leader.isr.decided(proposal, accepted=True)
    assert leader.move() == leader.end


def test_a_replica_that_is_to_join_counts_before_the_change_is_committed() -> None:
    leader = Leader(ME)
    leader.high_watermark = 10
    leader.fetch(TWO)
    assert leader.propose() == in_sync(ME, TWO)
    leader.end += 5
    assert leader.move() == 10
    assert leader.fetch(TWO) == 15


def test_a_rejected_change_counts_no_longer() -> None:
    leader = Leader(ME)
    leader.high_watermark = 10
    leader.fetch(TWO)
    proposal = leader.propose()
    assert proposal is not None
    leader.end += 5
    leader.isr.decided(proposal, accepted=False)
    assert leader.move() == 15
    assert leader.isr.committed == in_sync(ME)


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.UNRESOLVED])
def test_there_is_no_second_proposal_before_the_first_is_decided(phase: Phase) -> None:
    """The store may have applied the expansion. A leader that forgot it would commit records without the replica."""
    leader = Leader(ME)
    leader.high_watermark = 10
    leader.fetch(TWO)
    proposal = leader.propose()
    assert proposal is not None
    if phase is Phase.UNRESOLVED:
        leader.isr.unknown(proposal)
        assert leader.propose() is None
    del leader.live[TWO]
    assert leader.propose() is None
    leader.end += 5
    assert leader.move() == 10
    leader.isr.newest(proposal)
    assert leader.isr.phase is Phase.STABLE
    assert leader.propose() == in_sync(ME)


def test_the_known_state_again_does_not_decide_a_proposal() -> None:
    """A registration of any broker applies the newest state again, while the proposal is in flight."""
    leader = Leader(ME)
    leader.high_watermark = 10
    leader.fetch(TWO)
    assert leader.propose() is not None
    leader.isr.newest(in_sync(ME))
    assert leader.isr.phase is Phase.PENDING
    leader.end += 5
    assert leader.move() == 10


def test_a_settled_proposal_was_not_applied() -> None:
    leader = Leader(ME)
    leader.fetch(TWO)
    proposal = leader.propose()
    assert proposal is not None
    leader.isr.unknown(proposal)
    leader.isr.settled()
    assert (leader.isr.phase, leader.isr.committed) == (Phase.STABLE, in_sync(ME))
    assert leader.propose() == in_sync(ME, TWO)


def test_the_outcome_of_an_earlier_proposal_changes_nothing() -> None:
    leader = Leader(ME)
    leader.fetch(TWO)
    leader.fetch(THREE)
    first = leader.propose()
    assert first is not None
    leader.isr.newest(in_sync(ME, TWO))
    second = leader.propose()
    assert second == in_sync(ME, TWO, THREE)
    leader.isr.decided(first, accepted=False)
    leader.isr.unknown(first)
    leader.isr.settled()
    assert (leader.isr.phase, leader.isr.pending) == (Phase.PENDING, second)


# ELR


def test_members_that_leave_an_isr_below_the_minimum_stay_eligible() -> None:
    leader = Leader(ME, TWO, THREE, min_insync=2)
    del leader.live[THREE]
    first = leader.propose()
    assert first == in_sync(ME, TWO)
    leader.isr.newest(first)
    del leader.live[TWO]
    second = leader.propose()
    assert second == in_sync(ME, elr=(TWO,))
    leader.isr.newest(second)
    leader.live = dict(LIVE)
    leader.fetch(THREE)
    assert leader.propose() == in_sync(ME, THREE)


def test_an_eligible_replica_that_joins_is_in_sync_only() -> None:
    leader = Leader(ME, elr=(TWO, THREE), min_insync=3)
    leader.fetch(TWO)
    assert leader.propose() == in_sync(ME, TWO, elr=(THREE,))


def test_below_the_minimum_the_high_watermark_does_not_move() -> None:
    """The eligible replica 2 may become the leader, and does not get the records from now on."""
    leader = Leader(ME, elr=(TWO,), min_insync=2)
    assert leader.isr.is_below_min
    leader.end += 5
    assert leader.move() == 8


def test_an_expansion_to_the_minimum_moves_the_high_watermark_only_when_it_is_committed() -> None:
    leader = Leader(ME, elr=(THREE,), min_insync=2)
    leader.fetch(TWO)
    proposal = leader.propose()
    assert proposal == in_sync(ME, TWO)
    assert leader.fetch(TWO) == 8
    leader.isr.decided(proposal, accepted=True)
    assert not leader.isr.is_below_min
    assert leader.move() == EPOCH_START


def test_a_minimum_above_the_number_of_replicas_is_that_number() -> None:
    leader = Leader(ME, TWO, min_insync=5, assigned=(ME, TWO))
    assert not leader.isr.is_below_min
    leader.fetch(TWO)
    assert leader.high_watermark == EPOCH_START


def test_an_eligible_replica_holds_the_high_watermark_until_a_state_without_it_is_committed() -> (
    None
):
    """The minimum was lowered while replica 2 was eligible. The controller may still elect it."""
    leader = Leader(ME, elr=(TWO,), min_insync=2)
    leader.isr.set_min_insync_replicas(1)
    assert leader.move() == 8
    proposal = leader.propose()
    assert proposal == in_sync(ME)
    assert leader.move() == 8
    leader.isr.decided(proposal, accepted=True)
    assert leader.move() == EPOCH_START
    assert leader.propose() is None


def test_a_lower_minimum_moves_the_high_watermark() -> None:
    leader = Leader(ME, min_insync=2)
    assert leader.move() == 8
    leader.isr.set_min_insync_replicas(1)
    assert leader.move() == EPOCH_START
