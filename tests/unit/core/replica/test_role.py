"""The role of a replica as a function of the newest state of its partition."""

from __future__ import annotations

import pytest

from headrace.core.replica.role import NO_EPOCH, NO_LEADER, Leadership, Role, next_role

ME, OTHER, MY_EPOCH = 1, 2, 9
NEW = (Role.OFFLINE, NO_EPOCH)


def state(leader: int, leader_epoch: int, registration: int = MY_EPOCH) -> Leadership:
    return Leadership(leader, leader_epoch, frozenset({ME, OTHER}), registration)


def after(*states: Leadership) -> tuple[Role, int]:
    role, epoch = NEW
    for newest in states:
        found = next_role(epoch, newest, broker_id=ME, registration=MY_EPOCH)
        if found is not None:
            role, epoch = found, newest.leader_epoch
    return role, epoch


@pytest.mark.parametrize(
    ("newest", "role"),
    [
        (state(ME, 3), Role.LEADER),
        (state(OTHER, 3), Role.FOLLOWER),
        (state(OTHER, 3, registration=4), Role.FOLLOWER),
        (state(NO_LEADER, 3), Role.OFFLINE),
        (
            state(ME, 3, registration=8),
            Role.OFFLINE,
        ),  # the leader is an earlier process of this broker
    ],
)
def test_the_newest_state_determines_the_role(newest: Leadership, role: Role) -> None:
    assert after(newest) == (role, 3)


@pytest.mark.parametrize("newest", [state(ME, 4), state(OTHER, 4), state(NO_LEADER, 4)])
def test_a_state_with_an_older_leader_epoch_is_ignored(newest: Leadership) -> None:
    for present in (state(ME, 5), state(OTHER, 5), state(NO_LEADER, 5)):
        assert after(present, newest) == after(present)


def test_skipped_states_do_not_change_the_role() -> None:
    states = [state(ME, 1), state(OTHER, 2), state(NO_LEADER, 3), state(ME, 4), state(OTHER, 6)]
    for newest in states:
        assert after(*states[: states.index(newest) + 1]) == after(newest)


def test_a_role_lasts_through_states_of_its_leader_epoch() -> None:
    assert after(state(ME, 3), state(ME, 3)) == (Role.LEADER, 3)
