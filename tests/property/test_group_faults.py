"""The property test of the group coordinator finds faults: each of seven faults makes it fail.

A check that cannot fail proves nothing. Each fault is one that a careless change could introduce: a swapped order, a
missing condition, a forgotten timer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace.core.coordinator.any_group import fencing, kinds
from headrace.core.coordinator.classic import join, membership, rebalance
from headrace.core.coordinator.runtime import ShardRuntime
from headrace.core.coordinator.state.classic_group import ClassicGroup
from headrace.core.coordinator.state.shard import GroupShard
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from tests.property.test_group_coordinator import EXAMPLES, STEPS, GroupCoordinatorMachine

pytestmark = pytest.mark.slow  # not in `make check`

Patch = pytest.MonkeyPatch


def answers_come_before_the_sync(patch: Patch) -> None:
    """Responses leave before the sync, so a crash loses commits and generations that clients have received."""
    patch.setattr(ShardRuntime, "_park", lambda _self, response, _on_error: response)
    patch.setattr(
        ShardRuntime,
        "answer",
        lambda _self, deferred, response, _on_error: deferred.resolve(response),
    )


def reads_return_data_that_a_crash_may_lose(patch: Patch) -> None:
    """Only responses to writes wait for the sync: there is no read barrier."""
    real = ShardRuntime._park

    def park(self: ShardRuntime[Any], response: Any, on_error: Any) -> Any:
        reads = type(response).__name__ == "OffsetFetchResponseGroup"
        return response if reads else real(self, response, on_error)

    patch.setattr(ShardRuntime, "_park", park)


def a_generation_number_is_given_twice(patch: Patch) -> None:
    """The generation number does not rise when a rebalance has removed a member."""
    real = rebalance._next_generation

    def next_generation(group: ClassicGroup, staying: Any, leader: Any, now_ms: int) -> Any:
        generation = real(group, staying, leader, now_ms)
        fewer = 0 < len(generation.members) < len(group.generation.members)
        return generation._replace(number=group.generation.number) if fewer else generation

    patch.setattr(rebalance, "_next_generation", next_generation)


def commits_of_an_older_generation_count(patch: Patch) -> None:
    """A member of the group may commit with any generation."""

    def check(shard: GroupShard, committer: fencing.CommitSender) -> ErrorCode:
        error = fencing.check_classic_commit(shard, committer)
        return ErrorCode.NONE if error is ErrorCode.ILLEGAL_GENERATION else error

    patch.setattr(kinds, "CLASSIC", kinds.CLASSIC._replace(check_commit=check))


def timers_die_with_the_coordinator(patch: Patch) -> None:
    """Loading sets no timers: no session expires after a restart, and no missing assignment times out."""
    patch.setattr(GroupShard, "loaded", lambda _self, _now_ms: [])


def members_that_do_not_join_again_stay(patch: Patch) -> None:
    """A generation contains members that have not joined again."""
    real = rebalance.complete

    def complete(shard: GroupShard, group: ClassicGroup, now_ms: int) -> Any:
        for member in group.members.values():
            member.awaiting_join = member.awaiting_join or Deferred()
        return real(shard, group, now_ms)

    patch.setattr(rebalance, "complete", complete)


def parked_syncs_stay_parked_in_a_rebalance(patch: Patch) -> None:
    """A rebalance that begins while SyncGroups are parked does not answer them."""
    real = rebalance.prepare

    def prepare(shard: GroupShard, group: ClassicGroup, reason: str, now_ms: int) -> Any:
        for member in group.members.values():
            member.awaiting_sync = None
        return real(shard, group, reason, now_ms)

    for module in (rebalance, join, membership):
        patch.setattr(module, "prepare", prepare)


FAULTS: list[Callable[[Patch], None]] = [
    answers_come_before_the_sync,
    reads_return_data_that_a_crash_may_lose,
    a_generation_number_is_given_twice,
    commits_of_an_older_generation_count,
    timers_die_with_the_coordinator,
    members_that_do_not_join_again_stay,
    parked_syncs_stay_parked_in_a_rebalance,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_group_property_finds(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    budget = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError) as found:
        run_state_machine_as_test(GroupCoordinatorMachine, settings=budget)
    print(found.getrepr(style="short"))
