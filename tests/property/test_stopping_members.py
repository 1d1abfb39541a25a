"""Members are stopped while messages are lost, and processes are killed: each stop has the right outcome."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.core.coordinator.state.stops import StopState
from headrace.errors import ErrorCode
from tests.fixtures.classic_consumers import ClassicConsumer
from tests.fixtures.consumer_group_harness import Consumer, ConsumerGroupHarness
from tests.fixtures.group_harness import SESSION_MS, now

STEP_MS = 1_000
TIMEOUT_MS = 20_000
STEPS = 60
SEEDS = 300

AnyMember = Consumer | ClassicConsumer


@dataclass
class Actor:
    """A member's program: whether it obeys a stop, whether it is alive, and the stops that it has received."""

    member: AnyMember
    obeys: bool
    asked: str = ""
    """The member id under which the member is stopped; "" if no stop is pending."""
    told: bool = False
    left: bool = False
    dead: bool = False
    crashed: bool = False
    """Whether the coordinator was killed during the stop."""
    answers: list[object] = field(default_factory=list)

    @property
    def member_id(self) -> str:
        return self.member.member


class History:
    """One random history of a group with stops."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = ConsumerGroupHarness()
        self.harness.topics.create("t", 6)
        kinds = self.random.choice(["classic", "consumer", "both"])
        self.cooperative = self.random.random() < 0.5
        self.actors = [self.new_actor(number, kinds) for number in range(4)]
        self.ended: dict[str, str] = {}
        self.deadlines: dict[str, int] = {}

    def new_actor(self, number: int, kinds: str) -> Actor:
        classic = kinds == "classic" or (kinds == "both" and number % 2 == 0)
        member: AnyMember = (
            ClassicConsumer(self.harness, "t", cooperative=self.cooperative)
            if classic
            else Consumer(self.harness, f"m{number}", "t")
        )
        return Actor(member, obeys=self.random.random() < 0.7)

    def run(self) -> None:
        for _ in range(12):
            for actor in self.actors:
                actor.member.beat()
        for _ in range(STEPS):
            self.step()
        self.finish()

    def step(self) -> None:
        self.harness.advance(STEP_MS)
        chance = self.random.random()
        if chance < 0.04:
            self.crash()
        for actor in self.actors:
            if not actor.dead and not actor.left:
                self.live(actor)
        free = [one for one in self.actors if not one.asked and not one.dead and self.is_in(one)]
        if free and self.random.random() < 0.1:
            self.ask(self.random.choice(free))
        for actor in self.actors:
            if actor.asked and actor.asked not in self.ended and self.random.random() < 0.8:
                self.ask_again(actor)

    def crash(self) -> None:
        self.harness.restart()
        for actor in self.actors:
            actor.crashed = actor.crashed or bool(actor.asked)

    def live(self, actor: Actor) -> None:
        if self.random.random() < 0.01:
            actor.dead = True
            return
        if actor.obeys and actor.told:
            self.leave(actor)
            return
        fate = self.random.choices(["answered", "late", "lost"], [8, 1, 1])[0]
        before = self.has_to_stop(actor)
        actor.member.beat(fate)
        # The member receives the response to its heartbeat, unless the response is lost.
        if fate == "answered" and before and actor.member_id == actor.asked:
            actor.told = True

    def has_to_stop(self, actor: Actor) -> bool:
        """Return whether the response to the member's next heartbeat asks it to stop."""
        member = actor.member
        if isinstance(member, ClassicConsumer):
            if member.step != "heartbeat" or member.parked is not None:
                return False
            reply = now(self.harness.heartbeat_reply(member.member, member.generation))
        else:
            if member.epoch == 0:
                return False
            reply = self.harness.send(member_id=member.member, member_epoch=member.epoch)
        asked = actor.asked == member.member
        assert not reply.headrace_stop or asked, (
            "asked to stop, but no administrator has asked for it"
        )
        return bool(reply.headrace_stop)

    def leave(self, actor: Actor) -> None:
        lost = self.random.random() < 0.1
        if lost:
            actor.member.lose()
        else:
            actor.member.leave()
        actor.left, actor.dead = True, lost

    def is_in(self, actor: Actor) -> bool:
        found = self.harness.coordinator.describe_groups(["g"], self.harness.now_ms)
        members = {member.member_id for member in now(found)[0].members}
        group = self.harness.group()
        return actor.member_id in members or (
            group is not None and actor.member_id in group.members
        )

    def ask(self, actor: Actor) -> None:
        answer = self.harness.stop(actor.member_id, timeout_ms=TIMEOUT_MS)
        assert answer.state == StopState.STOPPING
        actor.asked = actor.member_id
        self.deadlines[actor.asked] = self.harness.now_ms + TIMEOUT_MS

    def ask_again(self, actor: Actor) -> None:
        left_ms = max(0, self.deadlines[actor.asked] - self.harness.now_ms)
        answer = self.harness.stop(actor.asked, timeout_ms=left_ms, again=True)
        actor.answers.append((self.harness.now_ms, answer.state, answer.error_code))
        if answer.state == StopState.STOPPED:
            assert actor.left
            assert not actor.dead, "its farewell was lost"
            self.ended[actor.asked] = "stopped"
        elif answer.state == StopState.REMOVED:
            assert self.harness.now_ms >= self.deadlines[actor.asked]
            self.ended[actor.asked] = "removed"
        elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            # The coordinator knows the outcome of a member whose LeaveGroup has arrived, unless it was killed since.
            assert not actor.left or actor.dead or actor.crashed, actor
            self.ended[actor.asked] = "gone"

    def finish(self) -> None:
        """Wait until every stop has ended, at the latest just after its deadline."""
        for _ in range((TIMEOUT_MS + SESSION_MS) // STEP_MS + 2):
            self.harness.advance(STEP_MS)
            for actor in self.actors:
                if not actor.dead and not actor.left:
                    actor.member.beat()
                if actor.asked and actor.asked not in self.ended:
                    self.ask_again(actor)
        for actor in self.actors:
            assert not actor.asked or actor.asked in self.ended, actor
        # No stop is left in memory or as a timer.
        shard = self.harness.coordinator._shards[0]
        assert not list(shard.stops.pending)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_every_stop_has_the_right_outcome(first):
    ends: set[str] = set()
    for seed in range(first, first + 50):
        history = History(seed)
        try:
            history.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}: {[actor.answers for actor in history.actors]}")
            raise
        ends.update(history.ended.values())
    assert ends == {"stopped", "removed", "gone"}
