"""The in-sync replicas of a leader, with a metadata store that applies commits late and loses outcomes.

Invariant: every replica that may become the leader, by the stored ISR and ELR, has all committed records. Each rule of
`headrace.core.replica.isr` is switched off in one test, which finds a violation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.cluster.membership import LiveBroker
from headrace.core.replica.isr import InSync, Isr, LagLimits, Phase

ME, OTHERS = 1, (2, 3)
EPOCH_START = 10
RUNS = 300


class ViolationError(Exception):
    """A replica that may become the leader lacks a committed record."""


class Simulation:
    """The leader, the true logs of its followers, and the metadata store."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.committed = chance.randint(4, EPOCH_START)
        """The end of what earlier leaders have committed; the new leader may not know all of it."""
        isr = frozenset({ME, *(each for each in OTHERS if chance.random() < 0.6)})
        self.stored, self.version = InSync(isr), 1
        self.isr = Isr(
            ME,
            (ME, *OTHERS),
            self.stored,
            min_insync_replicas=chance.randint(1, 3),
            epoch_start_offset=EPOCH_START,
            limits=LagLimits(time_ms=chance.choice((20, 1_000))),
            now_ms=0,
        )
        self.applied = self.version
        """The version of the state that the leader has applied."""
        self.high_watermark = chance.randint(2, self.committed)
        self.log_end = EPOCH_START
        low = {each: self.committed if each in isr else 0 for each in OTHERS}
        self.ends = {each: chance.randint(low[each], EPOCH_START) for each in OTHERS}
        self.epochs = dict.fromkeys(OTHERS, 1)
        self.live = {each: LiveBroker(each, 1) for each in (ME, *OTHERS)}
        self.now_ms = 0
        self.commits: list[tuple[InSync, int, dict[int, int]]] = []
        """The proposals that the store has not decided, with the version and the registrations that they check."""
        self.outcomes: list[Callable[[], None]] = []
        self.late: list[Callable[[], None]] = []
        """Fetches of followers that have not arrived yet."""

    def append(self) -> None:
        self.log_end += self.chance.randint(1, 3)

    def fetch(self) -> None:
        """A follower copies some records, and reports what it has had. The report may come late."""
        replica = self.chance.choice(OTHERS)
        if replica not in self.live:
            return
        reported, broker_epoch = self.ends[replica], self.epochs[replica]
        self.ends[replica] = self.chance.randint(reported, self.log_end)

        def arrive() -> None:
            self.isr.fetched(
                replica,
                reported,
                log_start_offset=0,
                broker_epoch=broker_epoch,
                log_end_offset=self.log_end,
                now_ms=self.now_ms,
            )

        if self.chance.random() < 0.1:
            self.late.append(arrive)
        else:
            arrive()

    def arrive(self) -> None:
        if self.late:
            self.late.pop()()

    def pass_time(self) -> None:
        self.now_ms += self.chance.randint(1, 15)

    def die(self) -> None:
        replica = self.chance.choice(OTHERS)
        self.live.pop(replica, None)

    def come_back(self) -> None:
        """A broker comes back with another process: with its disk, or without it and out of ISR and ELR."""
        replica = self.chance.choice(OTHERS)
        if replica in self.live:
            return
        if self.chance.random() < 0.5:
            isr, elr = self.stored.isr - {replica}, self.stored.elr - {replica}
            if self.stored != (isr, elr):
                self.stored, self.version = InSync(isr, elr), self.version + 1
                self.notify()
            self.ends[replica] = 0
        self.epochs[replica] += 1
        self.live[replica] = LiveBroker(replica, self.epochs[replica])
        self.isr.forget_restarted(self.live)

    def propose(self) -> None:
        proposal = self.isr.propose(
            self.live,
            log_start_offset=0,
            high_watermark=self.high_watermark,
            log_end_offset=self.log_end,
            now_ms=self.now_ms,
        )
        if proposal is not None:
            joining = proposal.isr - self.isr.committed.isr
            registrations = {each: self.live[each].broker_epoch for each in joining}
            self.commits.append((proposal, self.applied, registrations))

    def decide(self) -> None:
        """The store decides a commit, now or later; the outcome arrives later, or never."""
        if not self.commits:
            return
        if self.chance.random() < 0.3:
            self.isr.unknown(self.commits[-1][0])
            return
        proposal, version, registrations = self.commits.pop(
            self.chance.randrange(len(self.commits))
        )
        accepted = (
            version == self.version
            and all(self.epochs[each] == epoch for each, epoch in registrations.items())
            and self.chance.random() < 0.8
        )
        if accepted:
            self.stored, self.version = proposal, self.version + 1

        def report() -> None:
            if accepted and self.isr.pending is proposal:
                self.applied = self.version
            self.isr.decided(proposal, accepted=accepted)

        if self.chance.random() < 0.7:
            self.outcomes.append(report)

    def report(self) -> None:
        if self.outcomes:
            self.outcomes.pop(0)()

    def notify(self) -> None:
        """The image of the leader gets the newest state."""
        self.applied = self.version
        self.isr.newest(self.stored)
        if not self.commits and self.isr.phase is not Phase.STABLE:
            pending = self.isr.pending
            assert pending is not None
            self.isr.unknown(pending)
            self.isr.settled()

    def check(self) -> None:
        progress = self.isr.progress
        self.high_watermark = progress.high_watermark(
            self.log_end, present=self.high_watermark, log_end_offset=self.log_end
        )
        self.committed = max(self.committed, self.high_watermark)
        for replica in (self.stored.isr | self.stored.elr) - {ME}:
            if self.ends[replica] < self.committed:
                raise ViolationError(f"replica {replica} ends at {self.ends[replica]}: {self.isr}")

    def run(self, steps: int) -> None:
        actions = {
            self.append: 4,
            self.fetch: 8,
            self.arrive: 1,
            self.pass_time: 2,
            self.die: 1,
            self.come_back: 1,
            self.propose: 4,
            self.decide: 4,
            self.report: 4,
            self.notify: 1,
        }
        for _ in range(steps):
            self.chance.choices(list(actions), weights=list(actions.values()))[0]()
            self.check()


def finds_violation(runs: int, change: Callable[[Simulation], None] = lambda _: None) -> bool:
    for seed in range(runs):
        simulation = Simulation(random.Random(seed))
        change(simulation)
        try:
            simulation.run(150)
        except ViolationError:
            return True
    return False


def test_every_eligible_leader_has_all_committed_records() -> None:
    assert not finds_violation(RUNS)


def test_in_sync_replicas_come_back_when_the_faults_end() -> None:
    for seed in range(50):
        simulation = Simulation(random.Random(seed))
        simulation.run(100)
        simulation.live = {
            each: LiveBroker(each, simulation.epochs.get(each, 1)) for each in (ME, *OTHERS)
        }
        simulation.isr.forget_restarted(simulation.live)
        for _ in range(6):
            for replica in OTHERS:
                simulation.ends[replica] = simulation.log_end
                simulation.isr.fetched(
                    replica,
                    simulation.log_end,
                    log_start_offset=0,
                    broker_epoch=simulation.epochs[replica],
                    log_end_offset=simulation.log_end,
                    now_ms=simulation.now_ms,
                )
            simulation.propose()
            for proposal, version, _ in simulation.commits:
                if version == simulation.version:
                    simulation.stored, simulation.version = proposal, simulation.version + 1
            simulation.commits.clear()
            simulation.notify()
            simulation.check()
        assert simulation.stored == InSync(frozenset({ME, *OTHERS})), simulation.isr
        assert simulation.high_watermark == simulation.log_end


# Each rule is necessary


def _replace(name: str, function: Callable[..., Any]) -> Callable[[Simulation], None]:
    """Return a change that replaces a method of the leader's `Isr` by one that gets the original first."""

    def change(simulation: Simulation) -> None:
        original = getattr(Isr, name)
        mutant = type(
            "Mutant",
            (Isr,),
            {
                "__slots__": (),
                name: lambda self, *args, **kw: function(original, self, *args, **kw),
            },
        )
        simulation.isr.__class__ = mutant

    return change


def _count_only(which: str) -> Callable[..., None]:
    def count(original: Any, isr: Isr) -> None:
        original(isr)
        if isr.pending is not None:
            committed, proposed = isr.committed.isr, isr.pending.isr
            isr.progress.maximal_isr = committed if which == "committed" else proposed

    return count


def _no_freeze(original: Any, isr: Isr) -> None:
    original(isr)
    isr.progress.is_frozen = False


def _frozen_by_the_maximal_isr(original: Any, isr: Isr) -> None:
    original(isr)
    least = min(isr._min_insync_replicas, isr.replicas_count)
    isr.progress.is_frozen = len(isr.progress.maximal_isr) < least


def _propose_again(original: Any, isr: Isr, *args: Any, **kw: Any) -> InSync | None:
    if isr.phase is Phase.UNRESOLVED:
        isr.phase, isr.pending = Phase.STABLE, None
    found: InSync | None = original(isr, *args, **kw)
    return found


def _any_state_decides(_: Any, isr: Isr, state: InSync) -> None:
    isr.committed = state
    isr._stabilise()


def _without_epoch_start(original: Any, isr: Isr, *args: Any, **kw: Any) -> set[int]:
    isr._epoch_start_offset = 0
    found: set[int] = original(isr, *args, **kw)
    return found


def _any_process_joins(original: Any, isr: Isr, live: Any, **kw: Any) -> set[int]:
    for replica, follower in isr._followers.items():
        if replica in live:
            follower.broker_epoch = live[replica].broker_epoch
    found: set[int] = original(isr, live, **kw)
    return found


def _keep_progress(*_: Any) -> None:
    pass


def _below_high_watermark(original: Any, isr: Isr, live: Any, **kw: Any) -> set[int]:
    found: set[int] = original(isr, live, **{**kw, "high_watermark": 0})
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_replace("_count", _count_only("proposed")), id="a shrink counts at once"),
        pytest.param(
            _replace("_count", _count_only("committed")), id="an expansion counts only afterwards"
        ),
        pytest.param(
            _replace("_count", _no_freeze), id="the high watermark moves below the minimum"
        ),
        pytest.param(
            _replace("_count", _frozen_by_the_maximal_isr), id="the minimum of the maximal ISR"
        ),
        pytest.param(_replace("propose", _propose_again), id="a second proposal"),
        pytest.param(_replace("newest", _any_state_decides), id="the known state decides"),
        pytest.param(_replace("_joining", _without_epoch_start), id="no start of the epoch"),
        pytest.param(_replace("_joining", _any_process_joins), id="any process joins"),
        pytest.param(_replace("_joining", _below_high_watermark), id="no high watermark"),
    ],
)
def test_without_a_rule_committed_records_are_lost(change: Callable[[Simulation], None]) -> None:
    assert finds_violation(10 * RUNS, change)
