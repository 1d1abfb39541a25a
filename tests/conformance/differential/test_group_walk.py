"""Two members of a group do random things; both brokers must give the same answers at every step."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from headrace.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from tests.conformance.differential.members import (
    MEMBER_ID_REQUIRED,
    Member,
    commit,
    heartbeat,
    join,
    leave,
    sync,
)
from tests.conformance.differential.pair import Pair
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
TOPIC = "walk"
WALKS = 12
WALKS_AT_ONCE = 4
STEPS = 40
PATIENCE_S = 10
GRACE_S = 0.15
"""Time for an answer that was in flight when another connection looked at the group, in seconds."""
EMPTY_S = 2.0
"""The seconds in which a group without members becomes empty."""
OFFERS = ((("range", b"1"),), (("range", b"1"), ("sticky", b"2")), (("range", b"3"),))
"""The protocols that a member may offer. No tie is possible, because Kafka breaks ties by the order of a hash map."""


@dataclass
class Walker:
    """A member that may have one request in flight."""

    member: Member
    waits_for: str = ""
    has_joined: bool = False


class Walk:
    """One random walk on one broker. The choices depend on the seed and on what the broker has answered."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer = peer
        self.random = random.Random(seed)
        self.group = self.topic = f"{TOPIC}-{seed}"
        instances = (None, "one") if seed % 2 else (None, None)
        self.walkers = [
            Walker(Member(peer, self.group, name, instance=instance))
            for name, instance in zip(("a", "b"), instances, strict=True)
        ]

    def run(self) -> None:
        for number in range(STEPS):
            # The same number of draws at each step, so that both walks stay together while the answers are the same.
            walker = self.random.choice(self.walkers)
            action = self.random.choice(
                [
                    "join",
                    "join",
                    "sync",
                    "sync",
                    "heartbeat",
                    "commit",
                    "leave",
                    "stale",
                    "stranger",
                    "simple",
                ]
            )
            offer = self.random.choice(OFFERS)
            if walker.waits_for:
                self.collect(number)
                continue
            getattr(self, action)(walker, number, offer)
            self.settle()
            self.collect(number)
            self.look(number)

    # --- the actions of a walker ---

    def join(self, walker: Walker, number: int, offer: tuple[tuple[str, bytes], ...]) -> None:
        member = walker.member
        label = f"{number}: {member.name} joins"
        request = join(self.group, member.member_id, instance=member.instance, protocols=offer)
        self.peer.send(label, request, 9, on=member.name)
        walker.waits_for = "join"

    def sync(self, walker: Walker, number: int, offer: tuple[tuple[str, bytes], ...]) -> None:
        member = walker.member
        assignments = {one: f"{number}".encode() for one in member.members} if member.leads else {}
        request = sync(
            self.group,
            member.member_id,
            member.generation,
            assignments,
            instance=member.instance,
            protocol_type=None,
            protocol_name=None,
        )
        self.peer.send(f"{number}: {member.name} syncs", request, 4, on=member.name)
        walker.waits_for = "sync"

    def heartbeat(self, walker: Walker, number: int, offer: object) -> None:
        walker.member.heartbeat(f"heartbeats at {number}")

    def commit(self, walker: Walker, number: int, offer: object) -> None:
        walker.member.commit(self.topic, number, f"commits at {number}")

    def leave(self, walker: Walker, number: int, offer: object) -> None:
        if walker.has_joined:  # for others see `leave_before_joining`
            walker.member.leave(f"leaves at {number}")
            walker.member.member_id = ""
            walker.has_joined = False

    def stale(self, walker: Walker, number: int, offer: object) -> None:
        member = walker.member
        request = heartbeat(
            self.group, member.member_id, member.generation - 1, instance=member.instance
        )
        self.peer.ask(f"{number}: {member.name} is stale", request, 4, on=member.name)

    def stranger(self, walker: Walker, number: int, offer: object) -> None:
        request = leave(self.group, ("stranger", None))
        self.peer.ask(f"{number}: a stranger leaves", request, 5, on="stranger")

    def simple(self, walker: Walker, number: int, offer: object) -> None:
        self.peer.ask(
            f"{number}: a simple commit", commit(self.group, (self.topic, 0, 1)), 8, on="stranger"
        )

    # --- the answers ---

    def settle(self) -> None:
        """Wait for the answer to every request, except those that have to wait for the other member."""
        deadline = time.monotonic() + PATIENCE_S
        for walker in sorted(self.walkers, key=lambda one: not one.member.leads):
            connection = self.peer.on(walker.member.name)
            while walker.waits_for and not connection.await_answer(0.01):
                if self.is_parked(walker):
                    connection.await_answer(GRACE_S)
                    break
                assert time.monotonic() < deadline, f"no answer to {walker}"

    def is_parked(self, walker: Walker) -> bool:
        state = self.described().group_state
        if walker.waits_for == "join":
            return state == "PreparingRebalance"
        return not walker.member.leads and state == "CompletingRebalance"

    def collect(self, number: int) -> None:
        """Read all answers that have arrived."""
        for walker in self.walkers:
            if walker.waits_for and self.peer.on(walker.member.name).await_answer(0.0):
                kind, walker.waits_for = walker.waits_for, ""
                answer = walker.member.joined() if kind == "join" else walker.member.answer()
                walker.has_joined |= kind == "join" and answer.error_code == 0
                if answer.error_code == MEMBER_ID_REQUIRED:
                    walker.member.member_id = answer.member_id
                elif answer.error_code in {25, 82}:  # unknown member, fenced
                    walker.member.member_id = ""
                    walker.has_joined = False

    def described(self) -> DescribedGroup:
        answer = self.peer.quiet(DescribeGroupsRequest(groups=[self.group]), 5, on="observer")
        group: DescribedGroup = answer.groups[0]
        return group

    def look(self, number: int) -> None:
        group, deadline = self.described(), time.monotonic() + EMPTY_S
        # Kafka shows what its log contains. A group whose last member has left is not empty before the log says it,
        # and a new and empty group may not exist yet.
        while group.group_state == "PreparingRebalance" and not group.members:
            if time.monotonic() > deadline:
                break
            group = self.described()
        state = "Empty" if group.group_state == "Dead" else group.group_state
        self.peer.note(f"{number}: the group", (state, len(group.members)))


def test_headrace_answers_random_group_requests_as_kafka_does(pair: Pair) -> None:
    def compare(seed: int) -> None:
        def group_walk(peer: Peer) -> None:
            peer.create(f"{TOPIC}-{seed}")
            Walk(peer, seed).run()

        pair.compare(group_walk)

    # Most of a walk is waiting: for the other member, or to make sure that no answer comes.
    with ThreadPoolExecutor(WALKS_AT_ONCE) as pool:
        walks = {seed: pool.submit(compare, seed) for seed in range(WALKS)}
    failed = {seed: walk.exception() for seed, walk in walks.items() if walk.exception()}
    assert not failed, "\n".join(f"seed {seed}: {error}" for seed, error in failed.items())
