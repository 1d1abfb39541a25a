"""The group coordinator with clients that join, leave, crash, pause and commit, while the coordinator is killed too.

Six invariants hold. No generation number belongs to two memberships. Within one generation no partition has two owners.
An acknowledged commit is never lost, and never becomes -1. A refused commit changes nothing. Every group becomes stable
when no more events happen. Every request gets a response.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.coordinator.state.classic_group import ClassicGroup
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from tests.fixtures.group_clients import PARTITIONS, RETRIED, GroupClient, converge
from tests.fixtures.group_harness import (
    REBALANCE_MS,
    SESSION_MS,
    GroupHarness,
    now,
    parked,
    subscription,
)

pytestmark = pytest.mark.slow  # not in `make check`

NAMES = ("a", "b", "c", "d")
INSTANCES = {"c": "static-c", "d": "static-d"}
TOPICS = st.sampled_from([subscription("t"), subscription("t", "u")])

Owned = dict[tuple[str, int], dict[int, str]]


class Consumer(GroupClient):
    """A client that also commits. The model checks all its requests and responses."""

    machine: GroupCoordinatorMachine

    def __init__(self, machine: GroupCoordinatorMachine, name: str) -> None:
        super().__init__(machine.world, name, instance=INSTANCES.get(name))
        self.machine = machine
        self.rebalance_ms = machine.rebalance_ms
        self.paused = False

    def join(self) -> None:
        self.machine.asking(self.member)
        super().join()
        self.machine.sent(self.outstanding)

    def sync(self, assignments: dict[str, bytes]) -> None:
        super().sync(assignments)
        self.machine.sent(self.outstanding)

    def heartbeat(self) -> None:
        super().heartbeat()
        self.machine.sent(self.outstanding)

    def joined(self, response: Any) -> None:
        self.machine.told_generation(response)
        super().joined(response)

    def synced(self, response: Any) -> None:
        super().synced(response)
        if self.assignment is not None:
            self.machine.took(self, self.generation, self.assignment)

    def commit(self, partition: int, offset: int) -> None:
        reply = self.world.commit(
            {("t", partition): offset},
            member=self.member,
            generation=self.generation,
            instance=self.instance,
        )
        self.machine.committing(partition, offset, reply)
        self.outstanding = (reply, self.committed)
        self.machine.sent(self.outstanding)

    def committed(self, response: Any) -> None:
        error = response.topics[0].partitions[0].error_code
        if error not in {ErrorCode.NONE, *RETRIED}:
            self.rejoin(error)


class GroupCoordinatorMachine(RuleBasedStateMachine):
    """One group of up to four consumers, two of them static."""

    @initialize(
        manual=st.sampled_from([True, True, True, False]),
        delay_ms=st.sampled_from([0, 3_000]),
        rebalance_ms=st.sampled_from([REBALANCE_MS, SESSION_MS // 3]),
        names=st.sampled_from([(), ("a",), ("a", "b"), ("a", "c"), NAMES]),
    )
    def start(
        self, *, manual: bool, delay_ms: int, rebalance_ms: int, names: tuple[str, ...]
    ) -> None:
        # Empty groups are not deleted in this test. A deleted group begins again with generation 1, so numbers would
        # not distinguish generations. (New member ids fence its former members.)
        never_ms = 10**12
        self.world = GroupHarness(
            manual=manual,
            group_initial_rebalance_delay_ms=delay_ms,
            offsets_retention_check_interval_ms=never_ms,
        )
        self.rebalance_ms = rebalance_ms
        self.clients = {name: Consumer(self, name) for name in names}
        self.replies: list[Deferred[Any]] = []
        self.generations: dict[int, frozenset[str]] = {}
        self.asked: dict[int, set[str]] = {}
        self.owners: dict[int, dict[int, str]] = {}
        self.acknowledged: dict[int, int] = {}
        self.attempted: dict[int, set[int]] = {}
        self.offset = 0
        if names:
            converge(self.world, list(self.clients.values()))

    # --- the model ---

    def sent(self, outstanding: tuple[Any, Any] | None) -> None:
        if outstanding is not None and isinstance(outstanding[0], Deferred):
            self.replies.append(outstanding[0])

    def asking(self, member: str) -> None:
        """Record a member that joins the next generation."""
        group = self.world.coordinator._shards[0].classic_groups.get("g", ClassicGroup("g"))
        self.asked.setdefault(group.generation.number + 1, set()).add(member)

    def told_generation(self, response: Any) -> None:
        """Check that a generation number belongs to one membership. Static members may change their member ids."""
        if response.error_code != ErrorCode.NONE or not response.members:
            return
        members = frozenset(
            entry.group_instance_id or entry.member_id for entry in response.members
        )
        known = self.generations.setdefault(response.generation_id, members)
        assert known == members, "one generation, two memberships"
        dynamic = {entry.member_id for entry in response.members if not entry.group_instance_id}
        assert dynamic <= self.asked[response.generation_id], "a member that did not join again"

    def took(self, client: Consumer, generation: int, partitions: set[int]) -> None:
        owners = self.owners.setdefault(generation, {})
        who = client.instance or client.member
        for partition in partitions:
            assert owners.setdefault(partition, who) == who, "one partition, two owners"

    def committing(self, partition: int, offset: int, reply: Any) -> None:
        self.attempted.setdefault(partition, set()).add(offset)

        def answered(response: Any) -> None:
            error = response.topics[0].partitions[0].error_code
            if error == ErrorCode.NONE:
                self.acknowledged[partition] = offset
            elif error not in RETRIED:
                self.attempted[partition].discard(offset)

        if isinstance(reply, Deferred):
            reply.on_done(answered)
        else:
            answered(reply)

    # --- events ---

    @rule(name=st.sampled_from(NAMES))
    def start_client(self, name: str) -> None:
        if name not in self.clients:
            self.clients[name] = Consumer(self, name)

    @rule(name=st.sampled_from(NAMES), steps=st.integers(1, 4))
    def step(self, name: str, steps: int) -> None:
        client = self.clients.get(name)
        for _ in range(steps if client is not None and not client.paused else 0):
            assert client is not None
            client.step()

    @rule(steps=st.integers(1, 6), synced=st.booleans())
    def everybody_steps(self, steps: int, *, synced: bool) -> None:
        for _ in range(steps):
            if synced:
                self.world.sync()
            for client in self.clients.values():
                if not client.paused:
                    client.step()

    @rule(name=st.sampled_from(NAMES))
    def crash_client(self, name: str) -> None:
        self.clients.pop(name, None)

    @rule(name=st.sampled_from(NAMES))
    def pause_or_resume(self, name: str) -> None:
        if name in self.clients:
            self.clients[name].paused = not self.clients[name].paused

    @rule(name=st.sampled_from(NAMES))
    def somebody_misses_a_rebalance(self, name: str) -> None:
        """Pause a member until the others have a new generation without it."""
        others = self.awake(but=name)
        if name in self.clients and others:
            self.clients[name].paused = True
            self.subscribe_anew(others[0])
            self.all_step(others, 6)
            self.world.advance(self.rebalance_ms)
            self.all_step(others, 4)

    @rule(name=st.sampled_from(NAMES))
    def the_leader_keeps_the_others_waiting(self, name: str) -> None:
        """Begin another rebalance while followers wait for the leader's assignment."""
        clients = self.awake(but=name)
        if len(clients) < 2:
            return
        self.subscribe_anew(clients[0])
        for _ in range(8):
            group = self.world.coordinator._shards[0].classic_groups.get("g")
            waits = group is not None and group.state is GroupState.COMPLETING_REBALANCE
            leader = group.generation.leader if group is not None and waits else None
            self.all_step([client for client in clients if client.member != leader], 1)
        self.start_client(name)
        self.subscribe_anew(self.clients[name])
        self.all_step([self.clients[name]], 3)

    def awake(self, *, but: str) -> list[Consumer]:
        return [
            client for name, client in self.clients.items() if name != but and not client.paused
        ]

    def subscribe_anew(self, client: Consumer) -> None:
        topics = [subscription("t"), subscription("t", "u")]
        self.change_subscription(client.name, topics[client.metadata == topics[0]])

    def all_step(self, clients: list[Consumer], steps: int) -> None:
        for _ in range(steps):
            self.world.sync()
            for client in clients:
                client.step()

    @rule(name=st.sampled_from(NAMES))
    def lose_connection(self, name: str) -> None:
        if name in self.clients:
            self.clients[name].reconnect()

    @rule(name=st.sampled_from(NAMES), metadata=TOPICS)
    def change_subscription(self, name: str, metadata: bytes) -> None:
        client = self.clients.get(name)
        if client is not None and client.metadata != metadata:
            client.metadata, client.generation, client.assignment = metadata, -1, None
            client.reconnect()  # its earlier requests no longer count

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None and client.member:
            reply = self.world.leave((client.member, client.instance))
            self.sent((reply, None))

    @rule()
    def everybody_commits(self) -> None:
        for client in self.clients.values():
            if client.outstanding is not None and not client.paused:
                client.step()
            if client.outstanding is None and not client.paused and client.assignment:
                self.offset += 1
                client.commit(min(client.assignment), self.offset)

    @rule(
        generation=st.integers(0, 12),
        name=st.sampled_from(NAMES),
        partition=st.integers(0, PARTITIONS - 1),
    )
    def zombie_commits(self, generation: int, name: str, partition: int) -> None:
        """Commit with an old generation: the commit is refused and changes nothing."""
        group = self.world.coordinator._shards[0].classic_groups.get("g")
        if group is None or group.generation.number <= generation:
            return
        client = self.clients.get(name)
        member = client.member if client is not None else "long-gone"
        end = self.world.log.end_offset(0)
        reply = self.world.commit({("t", partition): 999}, member=member, generation=generation)
        assert self.world.log.end_offset(0) == end
        self.sent((reply, None))

    @rule(ms=st.sampled_from([1, 500, 3_000, 9_999, 30_000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.world.advance(ms)

    @rule()
    def disk_catches_up(self) -> None:
        self.world.sync()

    @rule(synced=st.booleans(), committing=st.booleans())
    def kill_coordinator(self, *, synced: bool, committing: bool) -> None:
        """Kill the broker: all connections break, and unsynced data may be lost or not."""
        if committing:
            if self.clients and not any(client.paused for client in self.clients.values()):
                converge(self.world, list(self.clients.values()))
            self.everybody_commits()
            self.acknowledged_commits_are_there()
        if synced:
            self.world.log.sync(0)
        self.world.restart()
        self.replies.clear()
        for client in self.clients.values():
            client.reconnect()

    @precondition(lambda self: hasattr(self, "world"))
    @rule()
    def unload_and_load(self) -> None:
        """Unload and load the partition: every parked request gets a response."""
        self.world.sync()
        self.world.coordinator.unload(0)
        assert all(reply.done for reply in self.replies)
        self.world.coordinator.load(0, self.world.now_ms)

    # --- invariants ---

    @invariant()
    def acknowledged_commits_are_there(self) -> None:
        if not hasattr(self, "world") or not self.acknowledged:
            return
        reply = self.world.fetch({"t": list(range(PARTITIONS))})
        if parked(reply):
            self.sent((reply, None))
            return
        (group,) = now(reply)
        for entry in group.topics[0].partitions:
            acknowledged = self.acknowledged.get(entry.partition_index)
            if acknowledged is None:
                continue
            assert entry.committed_offset >= acknowledged, "an acknowledged commit is lost"
            assert entry.committed_offset in self.attempted[entry.partition_index]
            # A client may act on an offset that it has read, so such an offset must not be lost either.
            self.acknowledged[entry.partition_index] = entry.committed_offset

    @invariant()
    def members_of_the_working_membership_have_deadlines(self) -> None:
        """Check that every member has a deadline: a timer, or a parked request."""
        if not hasattr(self, "world"):
            return
        shard = self.world.coordinator._shards[0]
        for group in shard.classic_groups.values():
            for member in group.members.values():
                timer = shard.timer("session", group, member.member_id)
                assert member.is_waiting or timer in shard.timers
            for member_id in group.pending:
                assert shard.timer("session", group, member_id) in shard.timers
            if group.state is GroupState.PREPARING_REBALANCE:
                assert shard.timer("join", group) in shard.timers
            if group.state is GroupState.COMPLETING_REBALANCE:
                assert shard.timer("sync", group) in shard.timers

    def teardown(self) -> None:
        """Check the end: clients converge, the group is empty without clients, and no request waits for ever."""
        if not hasattr(self, "world"):
            return
        for client in self.clients.values():
            client.paused = False
        if self.clients:
            converge(self.world, list(self.clients.values()))
            owned = [p for client in self.clients.values() for p in client.assignment or ()]
            assert sorted(owned) == list(range(PARTITIONS))
        self.clients.clear()
        self.world.advance(400_000)
        self.world.sync()
        assert all(reply.done for reply in self.replies)
        group = self.world.coordinator._shards[0].classic_groups.get("g")
        assert group is None or group.state is GroupState.EMPTY
        self.acknowledged_commits_are_there()


EXAMPLES, STEPS = 300, 50
GroupCoordinatorMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=STEPS
)
TestGroupCoordinator = GroupCoordinatorMachine.TestCase
