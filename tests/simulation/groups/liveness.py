"""A random history, then well-behaved clients: in the end every partition has one owner, and every producer commits.

The state that a history leaves must not block later clients: former members, unfinished assignments, regular
expressions that were resolved for another member, and open transactions.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from typing import Any, Final

from headrace.errors import ErrorCode
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from tests.fixtures.broker_harness import produce_request
from tests.simulation.groups import requests
from tests.simulation.groups.history import (
    GROUPS,
    PARTITIONS,
    REGEX,
    TOPICS,
    TRANSACTIONAL_IDS,
    History,
    Producer,
)
from tests.simulation.groups.members import ClassicMember, ModernMember
from tests.simulation.groups.requests import Partition

STEPS: Final = (20, 60, 100)
"""The numbers of events in a history."""
STEP_MS: Final = 1_000
"""The heartbeat interval of well-behaved members, in milliseconds."""
PATIENCE_MS: Final = 260_000
"""The longest time in which members of the history may block the group, in milliseconds: their sessions and rebalances,
a minute each, and the rebalances that follow."""
NEWS_MS: Final = 30_000
"""The longest time in which a new partition, or a new topic of a regular expression, may have no owner, in
milliseconds. A rebalance of well-behaved members takes a few heartbeats."""
NEW_TOPIC: Final = "ab"
"""The topic that is created at the end. `REGEX` matches it."""

KINDS: Final = ["classic", "names", "regex"]
CHANGES: Final = 12
"""The number of members that join, leave or restart after the history."""
Member = ClassicMember | ModernMember


class LivenessError(AssertionError):
    """A member or a producer waits for ever."""


class Liveness:
    """A history, and the well-behaved clients after it."""

    def __init__(self, seed: int) -> None:
        self.history = History(seed)
        self.chance = random.Random(f"liveness {seed}")
        self.steps = self.chance.choice(STEPS)
        self.members: list[Member] = []
        self._made = 0

    def run(self) -> None:
        """Run the history, and then the well-behaved clients.

        Raises:
            LivenessError: In the end a partition has no owner or two owners, a producer cannot commit, or a group is
                not stable.
        """
        self.history.run(self.steps)
        if self.chance.random() < 0.5:
            self.history.harness.restart()
        for group in GROUPS:
            for _ in range(self.chance.choice([1, 2, 3])):
                self._join(group)
        if self.chance.random() < 0.5:
            self._until_settled(PATIENCE_MS, "after the history")
        for _ in range(CHANGES):
            self._change(self.chance.choice(GROUPS))
            for _ in range(self.chance.choice([0, 1, 3, 10])):
                self._step()
        self._until_settled(PATIENCE_MS, "after the members have changed")
        self._grow()
        self._until_settled(NEWS_MS, "after the topics have grown")
        self._commit_everywhere()

    def _join(self, group: str, instance: str | None = None, kind: str | None = None) -> None:
        chance, harness = self.chance, self.history.harness
        if instance is None:
            held = {member.instance for member in self.members if member.group == group}
            instance = chance.choice([None, *sorted({"i0", "i1"} - held)])
        kind = kind or chance.choice(KINDS)
        if kind == "classic":
            self.members.append(ClassicMember(harness, group, instance, TOPICS))
            return
        self._made += 1
        member_id = f"{group}-{self._made}"
        topics, regex = ((), REGEX) if kind == "regex" else (TOPICS, None)
        self.members.append(
            ModernMember(harness, group, instance, member_id, topics=topics, regex=regex)
        )

    def _change(self, group: str) -> None:
        """Let a member join, leave, or restart. A static member may restart with the other protocol."""
        members = [member for member in self.members if member.group == group]
        what = self.chance.choice(["join", "leave", "restart", "restart"])
        if what == "join" or (len(members) == 1 and what == "leave"):
            self._join(group)
            return
        member = self.chance.choice(members)
        self.members.remove(member)
        member.leave()
        if what == "restart":
            self._join(group, member.instance)

    def _grow(self) -> None:
        self.history.grow(self.chance.choice(TOPICS))
        self.history.harness.create_topic(NEW_TOPIC, partitions=2)

    def _until_settled(self, patience_ms: int, when: str) -> None:
        problem: str | None = ""
        for _ in range(patience_ms // STEP_MS):
            self._step()
            problem = self._problem()
            if problem is None:
                return
        raise LivenessError(f"{when}, {patience_ms} ms of well-behaved members: {problem}")

    def _step(self) -> None:
        self.history.advance(STEP_MS)
        for member in self.members:
            member.step()

    def _problem(self) -> str | None:
        listed = self.history.call(ListGroupsRequest())
        states = {group.group_id: group.group_state for group in listed.groups}
        for group in GROUPS:
            members = [member for member in self.members if member.group == group]
            owners = Counter(partition for member in members for partition in member.owned)
            wanted = self._wanted(group)
            if (
                states.get(group) == "Stable"
                and set(owners) == wanted
                and max(owners.values()) == 1
            ):
                continue
            nobodys = sorted(wanted - set(owners))
            doubled = [partition for partition, count in owners.items() if count > 1]
            answers = [member.answers[-5:] for member in members]
            return (
                f"group {group} of {[type(member).__name__ for member in members]} is {states.get(group)}: "
                f"without an owner {nobodys}, with two owners {doubled}, unknown {sorted(set(owners) - wanted)}; "
                f"last errors {answers}"
            )
        return None

    def _wanted(self, group: str) -> set[Partition]:
        names = set(TOPICS)
        if any(member.regex for member in self.members if member.group == group):
            names.add(NEW_TOPIC)
        return {
            (topic.name, index)
            for topic in map(self.history.harness.broker.services.topics.get, names)
            if topic is not None
            for index in range(topic.partitions_count)
        }

    # --- transactions ---

    @property
    def _places(self) -> list[Partition]:
        return [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]

    def _commit_everywhere(self) -> None:
        """Commit a record in every partition with each transactional id."""
        for transactional_id in TRANSACTIONAL_IDS:
            answers: list[Any] = []
            for _ in range(60):
                if self._commit(transactional_id, answers):
                    break
                self.history.advance(STEP_MS)
            else:
                raise LivenessError(f"{transactional_id} cannot commit: {answers[-5:]}")
        self.history.advance(STEP_MS)
        for topic, partition in self._places:
            ends = {
                self.history.call(requests.end_offset(topic, partition, isolation))
                .topics[0]
                .partitions[0]
                .offset
                for isolation in (0, 1)
            }
            if len(ends) > 1:
                raise LivenessError(
                    f"{topic}-{partition}: read_committed readers stop before the end"
                )

    def _commit(self, transactional_id: str, answers: list[Any]) -> bool:
        call = self.history.call
        begun = call(
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        )
        answers.append(("init", begun.error_code))
        if begun.error_code != ErrorCode.NONE:
            return False
        producer = Producer(transactional_id, begun.producer_id, begun.producer_epoch, modern=True)
        for topic, partition in self._places:
            batch = requests.transactional_batch(producer.producer_id, producer.epoch, 0)
            written = call(
                produce_request(topic, partition, batch, transactional_id=transactional_id), 12
            )
            code = written.responses[0].partition_responses[0].error_code
            answers.append(("produce", code))
            if code != ErrorCode.NONE:
                return False
        ended = call(
            EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=True,
            )
        )
        answers.append(("end", ended.error_code))
        return bool(ended.error_code == ErrorCode.NONE)


def run_seed(seed: int) -> tuple[int, str, Counter[str]]:
    """Do one run; return the seed, the failure ("" for none), and counts of events."""
    run = Liveness(seed)
    try:
        run.run()
    except AssertionError as error:
        return seed, str(error)[:2000], run.history.counts
    except Exception:  # noqa: BLE001 - any error is a failure of the seed
        return seed, traceback.format_exc()[-2000:], run.history.counts
    return seed, "", run.history.counts
