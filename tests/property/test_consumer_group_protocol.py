"""Consumer groups with members of both protocols that join, leave, crash, stop heartbeats, or do not revoke.

Requests arrive twice, responses arrive late or never, the coordinator is killed, topics change, and the group changes
its protocol. Three invariants hold. No two live members own the same partition. An acknowledged commit is stored, and a
commit of a fenced member is not. Without further events each member owns its target assignment after a few heartbeats,
and the target is balanced and complete.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.consumer_group import ConsumerGroupState
from tests.effort import examples
from tests.fixtures.classic_consumers import ClassicConsumer
from tests.fixtures.consumer_group_harness import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    ConsumerGroupHarness,
)

NAMES = ("a", "b", "c", "d", "e")
INSTANCES = {"d": "static-d", "e": "static-e"}
TOPICS = st.sampled_from([("t",), ("t", "u"), ("u",)])
PEACE_ROUNDS = 24
FATES = ("answered", "answered", "answered", "late", "lost", "doubled")
KINDS = ("consumer", "consumer", "classic")
Member = Consumer | ClassicConsumer
IMAGE = (
    "epoch",
    "assignment_epoch",
    "members",
    "targets",
    "current",
    "owners",
    "instances",
    "wishes",
    "classic_members",
    "protocols",
)


class ConsumerGroupMachine(RuleBasedStateMachine):
    """The coordinator, its members, and which of them are alive."""

    @initialize(
        assignor=st.sampled_from(["uniform", "range"]),
        sizes=st.tuples(st.integers(2, 9), st.integers(1, 5)),
        members=st.lists(st.tuples(TOPICS, st.sampled_from(KINDS)), min_size=2, max_size=4),
        cooperative=st.booleans(),
    )
    def begin(
        self,
        assignor: str,
        sizes: tuple[int, int],
        members: list[tuple[tuple[str, ...], str]],
        cooperative: object,
    ) -> None:
        self.harness = ConsumerGroupHarness()
        self.assignor = assignor
        self.cooperative = bool(cooperative)
        self.harness.topics.create("t", sizes[0])
        self.harness.topics.create("u", sizes[1])
        self.alive: dict[str, Member] = {}
        self.gone = 0
        self.last_heard: dict[str, int] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.commits = 0
        for name, (topics, kind) in zip(NAMES, members, strict=False):
            self.begin_member(name, topics, kind)

    # --- events ---

    @precondition(lambda self: len(self.alive) < len(NAMES))
    @rule(
        data=st.data(),
        topics=TOPICS,
        kind=st.sampled_from(KINDS),
        settled=st.sampled_from([True, True, False]),
    )
    def join(
        self, data: st.DataObject, topics: tuple[str, ...], kind: str, settled: object
    ) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if name not in self.alive]))
        if settled:
            self.settle()
        self.begin_member(name, topics, kind)

    def begin_member(self, name: str, topics: tuple[str, ...], kind: str) -> None:
        self.gone += 1
        instance = INSTANCES.get(name)
        member: Member
        if kind == "classic":
            cooperative = self.cooperative
            member = ClassicConsumer(
                self.harness, *topics, cooperative=cooperative, instance=instance
            )
        else:
            member = Consumer(self.harness, f"{name}-{self.gone}", *topics, instance=instance)
            member.assignor = self.assignor
        self.alive[name] = member
        self.beat(name)

    @precondition(lambda self: self.alive)
    @rule(
        beats=st.lists(
            st.tuples(st.integers(0, 4), st.sampled_from(FATES)), min_size=1, max_size=12
        )
    )
    def heartbeats(self, beats: list[tuple[int, str]]) -> None:
        names = sorted(self.alive)
        for number, fate in beats:
            self.beat(names[number % len(names)], fate)
            self.nothing_is_held_twice()

    def settle(self) -> None:
        for _ in range(3):
            for name in sorted(self.alive):
                self.beat(name)

    def beat(self, name: str, fate: str = "answered") -> None:
        member = self.alive[name]
        self.forget_the_silent()
        member.beat(fate)
        self.last_heard[name] = self.harness.now_ms

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data(), epoch=st.sampled_from([-1, -1, -2]))
    def leave(self, data: st.DataObject, epoch: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        member = self.alive.pop(name)
        if isinstance(member, ClassicConsumer):
            member.leave()
        else:
            member.leave(epoch if member.instance is not None else -1)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        del self.alive[data.draw(st.sampled_from(sorted(self.alive)))]

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), topics=TOPICS)
    def resubscribe(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        member = self.alive[data.draw(st.sampled_from(sorted(self.alive)))]
        member.topics = list(topics)
        if isinstance(member, Consumer):
            member.resubscribed = True

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def become_stubborn(self, data: st.DataObject) -> None:
        member = self.alive[data.draw(st.sampled_from(sorted(self.alive)))]
        if isinstance(member, Consumer):
            member.stubborn = True

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), index=st.integers(0, 3), behind=st.sampled_from([0, 0, 1]))
    def commit(self, data: st.DataObject, index: int, behind: int) -> None:
        member = self.alive[data.draw(st.sampled_from(sorted(self.alive)))]
        epoch = member.generation if isinstance(member, ClassicConsumer) else member.epoch
        epoch -= behind
        self.commits += 1
        code = self.harness.commit_code(
            {("t", index): self.commits}, member=member.member, generation=max(epoch, 0)
        )
        if code == 0:
            assert not behind
            self.committed["t", index] = self.commits

    @rule(ms=st.sampled_from([1_000, 20_000, SESSION_MS + 1, REBALANCE_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.harness.advance(ms)
        self.forget_the_silent()

    def forget_the_silent(self) -> None:
        """Stop members that were silent for longer than their session, as clients do."""
        for name, member in self.alive.items():
            silent_ms = self.harness.now_ms - self.last_heard.get(name, self.harness.now_ms)
            if isinstance(member, Consumer) and member.stubborn and silent_ms >= 1_000:
                member.lose()
                member.stubborn = False
            elif silent_ms >= SESSION_MS:
                member.lose()

    @rule()
    def coordinator_restarts(self) -> None:
        self.harness.restart()

    @precondition(lambda self: self.alive)
    @rule(numbers=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def power_fails(self, numbers: list[int]) -> None:
        names = sorted(self.alive)

        def unanswered() -> None:
            for number in numbers:
                self.alive[names[number % len(names)]].beat("lost")

        self.harness.power_fails_during(unanswered)

    @rule(topic=st.sampled_from(["t", "u"]), more=st.integers(1, 3))
    def topic_changes(self, topic: str, more: int) -> None:
        topics = self.harness.topics
        info = topics.get(topic)
        if info is None:
            topics.create(topic, more)
        elif more == 3 and info.partitions_count > 6:
            topics.delete(topic)
        elif info.partitions_count < 12:
            topics.grow(topic, info.partitions_count + more)

    # --- invariants ---

    @invariant()
    def nothing_is_held_twice(self) -> None:
        owners: dict[tuple[bytes, int], str] = {}
        for name, member in self.alive.items():
            for partition in member.owned:
                assert partition not in owners, (partition, name, owners[partition])
                owners[partition] = name
        group = self.harness.group()
        if group is not None:
            held = [p for c in group.current.values() for p in c.assigned | c.revoking]
            assert len(held) == len(set(held))

    @invariant()
    def the_group_is_what_its_log_says(self) -> None:
        before = self.harness.group()
        now, loaded = self.harness.coordinator._shards[0], self.harness.started()._shards[0]
        other = loaded.consumer_groups.get("g")
        assert (before is None) == (other is None)
        if before is not None and other is not None:
            for name in IMAGE:
                assert getattr(before, name) == getattr(other, name), name
        classic, again = now.classic_groups.get("g"), loaded.classic_groups.get("g")
        if classic is not None and classic.is_stored:
            assert again is not None
            assert again.generation == classic.generation
        assert self.harness.offsets() == self.committed

    def teardown(self) -> None:
        if not getattr(self, "alive", None):
            return
        for name, member in list(self.alive.items()):
            if isinstance(member, Consumer):
                if member.stubborn:
                    member.lose()  # it would be removed before it notices
                    member.stubborn = False
                if member.instance is not None and member.epoch == 0:
                    del self.alive[name]  # a former member may still have its instance id
        for _ in range(PEACE_ROUNDS):
            for name in self.alive:
                self.beat(name)
                self.nothing_is_held_twice()
            self.harness.advance(SESSION_MS // 6)
        self.check_peace()

    def check_peace(self) -> None:
        group = self.harness.group()
        if not self.alive:
            return
        if group is None:
            assert self.harness.group_state() is GroupState.STABLE
        else:
            assert group.state is ConsumerGroupState.STABLE
        wanted: set[str] = set()
        for member in self.alive.values():
            assert group is None or member.owned == group.target(member.member), member.member
            assert member.owned <= self.harness.topics.partitions(*member.topics)
            wanted.update(member.topics)
        owned = [p for member in self.alive.values() for p in member.owned]
        assert len(owned) == len(set(owned))
        assert set(owned) == self.harness.topics.partitions(*wanted)
        if group is not None and self.assignor == "uniform":
            self.check_balance()

    def check_balance(self) -> None:
        for giver in self.alive.values():
            for taker in self.alive.values():
                could = giver.owned & self.harness.topics.partitions(*taker.topics)
                assert not could or len(giver.owned) - len(taker.owned) < 2


TestConsumerGroups = ConsumerGroupMachine.TestCase
TestConsumerGroups.settings = settings(
    max_examples=examples(30), stateful_step_count=40, deadline=None
)
