"""Elections of leaders: who may lead, and with which in-sync replicas."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.core.cluster.election import elect, elect_preferred, elect_unclean, without
from headrace.core.cluster.membership import LiveBroker, Membership
from headrace.core.cluster.records import NO_LEADER, LastKnown, PartitionState

REPLICAS = (1, 2, 3)


def members(*live: int, draining: int | None = None) -> Membership:
    """Return a membership of live brokers, whose broker epochs are ten times their ids."""
    membership = Membership()
    membership.live = {
        each: LiveBroker(each, 10 * each, is_draining=each == draining) for each in live
    }
    return membership


def state(
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    epoch: int = 5,
    unclean_epoch: int = -1,
) -> PartitionState:
    return PartitionState(leader, epoch, isr, elr, 10 * max(leader, 0), unclean_epoch)


@pytest.mark.parametrize(
    ("present", "live", "min_isr", "elected"),
    [
        (state(1, (1, 2, 3)), (2, 3), 1, state(2, (2, 3), epoch=6)),
        (state(1, (3, 2, 1)), (2, 3), 1, state(2, (3, 2), epoch=6)),
        (state(1, (1, 3)), (2, 3), 1, state(3, (3,), epoch=6)),
        (state(1, (1,)), (2, 3), 1, None),
        (state(1, (1, 2)), (), 1, None),
        (state(NO_LEADER, (2, 3)), (3,), 1, state(3, (3,), epoch=6)),
        (state(NO_LEADER, ()), (1, 2, 3), 1, None),
        (state(1, (1, 2, 3)), (2, 3), 2, state(2, (2, 3), epoch=6)),
        (state(1, (1, 2)), (2,), 2, state(2, (2,), (1,), epoch=6)),
        (state(1, (1,), (2, 3)), (2, 3), 3, state(2, (2,), (3, 1), epoch=6)),
        (state(1, (1, 2), (3,)), (2, 3), 3, state(2, (2,), (3, 1), epoch=6)),
        (state(1, (1,), (3,)), (2, 3), 2, state(3, (3,), (1,), epoch=6)),
        (state(1, (1,), (3,)), (2,), 2, None),
        (state(1, (1, 2)), (2,), 9, state(2, (2,), (1,), epoch=6)),
    ],
)
def test_a_leader_comes_from_the_isr_and_then_from_the_elr_in_the_order_of_the_replicas(
    present: PartitionState, live: tuple[int, ...], min_isr: int, elected: PartitionState | None
) -> None:
    assert elect(present, REPLICAS, members(*live), min_isr=min_isr) == elected


def test_min_insync_replicas_above_the_number_of_replicas_is_that_number() -> None:
    """Otherwise the ISR would never have enough replicas, and the ELR would never be empty again."""
    elected = elect(state(1, (1, 2, 3)), REPLICAS, members(2, 3), min_isr=2)
    assert elected is not None
    assert elected.elr == ()
    alone = elect(state(2, (1, 2)), (1, 2), members(1, 2, draining=2), min_isr=1)
    assert alone == state(1, (1,), epoch=6)
    assert elect(state(2, (2,)), (2,), members(1), min_isr=7) is None


def test_a_draining_leader_is_replaced_and_leaves_the_isr() -> None:
    membership = members(1, 2, 3, draining=1)
    assert elect(state(1, REPLICAS), REPLICAS, membership, min_isr=1) == state(2, (2, 3), epoch=6)
    assert elect(state(1, (1,)), REPLICAS, membership, min_isr=1, is_unclean=True) is None
    assert elect(state(3, (1, 3)), REPLICAS, members(1, draining=1), min_isr=1) is None


def test_an_unclean_election_needs_the_permission_of_the_topic() -> None:
    present, live = state(1, (1,)), members(2, 3)
    assert elect(present, REPLICAS, live, min_isr=1) is None
    unclean = elect(present, REPLICAS, live, min_isr=2, is_unclean=True)
    assert unclean == state(2, (2,), epoch=6, unclean_epoch=6)
    assert elect(state(1, (1, 3)), REPLICAS, live, min_isr=1, is_unclean=True) == state(
        3, (3,), epoch=6
    ), "a clean election comes first"
    assert elect_unclean(present, REPLICAS, members()) is None


@pytest.mark.parametrize(
    ("present", "membership", "elected"),
    [
        (state(2, (1, 2)), members(1, 2), state(1, (1, 2), epoch=6)),
        (state(2, (1, 2), (3,)), members(1, 2), state(1, (1, 2), (3,), epoch=6)),
        (state(1, (1, 2)), members(1, 2), None),
        (state(2, (2, 3)), members(1, 2, 3), None),
        (state(2, (1, 2)), members(2), None),
        (state(2, (1, 2)), members(1, 2, draining=1), None),
    ],
)
def test_the_first_replica_is_the_preferred_leader_while_it_is_in_sync(
    present: PartitionState, membership: Membership, elected: PartitionState | None
) -> None:
    assert elect_preferred(present, REPLICAS, membership) == elected


def test_a_replica_with_lost_records_leaves_the_isr_and_the_elr() -> None:
    assert without(state(1, REPLICAS), 2) == state(1, (1, 3))
    assert without(state(1, (1,), (2, 3)), 2) == state(1, (1,), (3,))
    assert without(state(1, (1, 2), (3,)), 1) == PartitionState(NO_LEADER, 6, (2,), (3,), 0)


def test_after_the_only_replica_in_sync_has_lost_records_only_an_unclean_election_helps() -> None:
    lost = without(state(1, (1,)), 1)
    assert lost == PartitionState(NO_LEADER, 6, (), (), 0)
    assert elect(lost, REPLICAS, members(*REPLICAS), min_isr=1) is None
    unclean = elect_unclean(lost, REPLICAS, members(*REPLICAS))
    assert unclean == state(1, (1,), epoch=7, unclean_epoch=7)


LAST_KNOWN = (LastKnown(1, 4, 90), LastKnown(2, 5, 80), LastKnown(3, 5, 70))


@pytest.mark.parametrize(
    ("isr", "ends", "live", "leader"),
    [
        ((), LAST_KNOWN, (1, 2, 3), 2),
        ((), LAST_KNOWN, (1, 3), None),
        ((1,), LAST_KNOWN[1:], (2, 3), None),
        ((), (LastKnown(3, 5, 80), LastKnown(2, 5, 80)), (1, 2, 3), 2),
        ((), (LastKnown(3, 5, 80), LastKnown(2, 5, 80)), (1, 3), 3),
        ((), (), (1, 2, 3), None),
    ],
)
def test_with_empty_isr_and_elr_the_replica_with_the_newest_record_leads(
    isr: tuple[int, ...], ends: tuple[LastKnown, ...], live: tuple[int, ...], leader: int | None
) -> None:
    present = replace(state(NO_LEADER, isr), last_known=ends)
    elected = elect(present, REPLICAS, members(*live), min_isr=1)
    assert elected == (leader and state(leader, (leader,), epoch=6, unclean_epoch=6))


def test_an_operator_elects_the_live_replica_with_the_newest_record() -> None:
    present = replace(state(NO_LEADER, (3,)), last_known=LAST_KNOWN[:2])
    assert elect_unclean(present, REPLICAS, members(1, 2)) == state(2, (2,), (), 6, 6)
    assert elect_unclean(present, REPLICAS, members(1)) == state(1, (1,), (), 6, 6)


def test_the_log_ends_of_replicas_are_known_from_a_power_cut_to_the_next_election() -> None:
    first = without(state(1, (1, 2)), 1, LAST_KNOWN[0])
    assert first == PartitionState(NO_LEADER, 6, (2,), last_known=LAST_KNOWN[:1])
    both = without(first, 2, LAST_KNOWN[1])
    assert both.last_known == LAST_KNOWN[:2]
    assert without(both, 1, LastKnown(1, 4, 9)).last_known == (LAST_KNOWN[1], LastKnown(1, 4, 9))
    elected = elect(first, REPLICAS, members(1, 2), min_isr=1)
    assert elected == state(2, (2,), epoch=7)


def test_no_log_end_is_known_after_the_last_replica_has_lost_its_log() -> None:
    first = without(state(1, (1, 2)), 1, LAST_KNOWN[0])
    assert without(first, 2).last_known == ()
    assert without(without(first, 2, LAST_KNOWN[1]), 1).last_known == ()
    assert without(state(1, (1, 2)), 2).last_known == ()


def test_later_states_keep_the_epoch_of_the_last_unclean_election() -> None:
    """A replica may be away for many elections."""
    unclean = state(1, (1, 2, 3), epoch=7, unclean_epoch=3)
    all_live = members(*REPLICAS)
    after = [
        elect(unclean, REPLICAS, members(2, 3), min_isr=1),
        elect_preferred(state(2, (1, 2), epoch=7, unclean_epoch=3), REPLICAS, all_live),
        without(unclean, 1),
        without(unclean, 2),
    ]
    assert [each and each.unclean_epoch for each in after] == [3, 3, 3, 3]


def test_an_election_from_the_isr_or_the_elr_is_not_unclean() -> None:
    for present in (state(NO_LEADER, (2,), epoch=5), state(NO_LEADER, (), (2,), epoch=5)):
        elected = elect_unclean(present, REPLICAS, members(2))
        assert elected == state(2, (2,), epoch=6)
