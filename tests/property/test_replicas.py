"""Several replicas of a partition: high watermark and acknowledgements against a model that keeps all logs as lists.

The leader learns of the progress of its followers late, and in any order of events. Roles change at any time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.core.replica.acks import AckQueues
from headrace.core.replica.progress import ALL_IN_SYNC, Progress, own_progress
from headrace.core.replica.role import (
    NO_EPOCH,
    NO_LEADER,
    Leadership,
    Role,
    next_role,
)

ME = 1


@dataclass
class Model:
    """The truth: how far each replica has the log, and which requests wait at the leader."""

    chance: random.Random
    replicas: int
    synced_first: bool
    ends: dict[int, int] = field(default_factory=dict)
    log_end: int = 0
    synced: int = 0
    high_watermark: int = 0
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(acks, end offset) of each request that waits."""

    def __post_init__(self) -> None:
        self.progress = Progress(ME, range(1, self.replicas + 1))
        self.queues: AckQueues[int] = AckQueues(self.progress)
        self.requests = 0
        self.isr = set(range(1, self.replicas + 1))

    @property
    def own(self) -> int:
        return own_progress(self.log_end, self.synced, syncs_first=self.synced_first)

    def append(self) -> None:
        self.log_end += self.chance.randint(1, 3)
        self.requests += 1
        acks = self.chance.choice([ALL_IN_SYNC, *range(1, self.replicas + 1)])
        self.pending[self.requests] = acks, self.log_end
        self.queues.add(acks, self.log_end, self.requests)
        self.settle()

    def sync(self) -> None:
        self.synced = self.chance.randint(self.synced, self.log_end)
        self.settle()

    def fetch(self) -> None:
        follower = self.chance.randint(2, self.replicas) if self.replicas > 1 else ME
        if follower != ME:
            # A follower may also have lost unsynced records since its last fetch.
            lowest = max(0, self.ends.get(follower, 0) - self.chance.choice([0, 0, 0, 2]))
            self.ends[follower] = self.chance.randint(lowest, self.log_end)
            self.progress.report(follower, self.ends[follower])
        self.settle()

    def change_isr(self) -> None:
        others = range(2, self.replicas + 1)
        self.isr = {ME, *(each for each in others if self.chance.random() < 0.6)}
        self.progress.isr = self.progress.maximal_isr = frozenset(self.isr)
        self.settle()

    def settle(self) -> None:
        before = self.high_watermark
        self.high_watermark = self.progress.high_watermark(
            self.own, present=before, log_end_offset=self.log_end
        )
        reached = [self.own if each == ME else self.ends.get(each, -1) for each in self.isr]
        assert self.high_watermark == max(before, min(reached))
        assert before <= self.high_watermark <= self.log_end
        released = self.queues.release(self.own, self.high_watermark)
        assert sorted(released) == sorted(
            request for request, wait in self.pending.items() if self.is_acknowledged(*wait)
        )
        for request in released:
            del self.pending[request]

    def is_acknowledged(self, acks: int, end_offset: int) -> bool:
        if acks == ALL_IN_SYNC:
            return self.high_watermark >= end_offset
        if acks == 1:
            return self.own >= end_offset
        reached = [self.own if each == ME else self.ends.get(each, -1) for each in self.isr]
        return sum(end >= end_offset for end in reached) >= acks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_high_watermark_and_acknowledgements_equal_the_model(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance, chance.randint(1, 5), chance.random() < 0.5)
    actions = [model.append, model.sync, model.fetch, model.change_isr]
    for _ in range(200):
        chance.choices(actions, weights=[4, 3, 6, 1])[0]()
    waiting = sorted(model.pending)
    assert (len(model.queues), sorted(model.queues.clear())) == (len(waiting), waiting)
    assert not model.queues


@pytest.mark.parametrize("seed", range(50))
def test_one_replica_acknowledges_every_kind_of_wait_with_its_own_progress(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance, 1, chance.random() < 0.5)
    for _ in range(100):
        chance.choice([model.append, model.sync])()
        assert model.high_watermark == model.own
        assert all(end > model.own for _, end in model.pending.values())


@pytest.mark.parametrize("seed", range(100))
def test_the_role_follows_the_newest_state_whatever_order_and_gaps_the_states_have(
    seed: int,
) -> None:
    """Each leader epoch has one leader. The states of a broker arrive late, twice, or not at all."""
    chance = random.Random(seed)
    states = [
        Leadership(
            chance.choice([NO_LEADER, 1, 2, 3]), epoch, frozenset({1, 2}), chance.randint(4, 6)
        )
        for epoch in range(30)
    ]
    role, epoch, newest = Role.OFFLINE, NO_EPOCH, None
    for _ in range(60):
        state = chance.choice(states)
        if newest is None or state.leader_epoch >= newest.leader_epoch:
            newest = state
        found = next_role(epoch, state, broker_id=ME, registration=5)
        if found is not None:
            role, epoch = found, state.leader_epoch
        assert epoch == newest.leader_epoch
        assert (role is Role.LEADER) == (newest.leader == ME and newest.registration == 5)
        assert (role is Role.FOLLOWER) == (newest.leader in {2, 3})
