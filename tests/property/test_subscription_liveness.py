"""Consumers of both protocols join, leave and change subscriptions; in the end every subscribed partition is read.

Real consumers run with default settings in virtual time. Topics are created and extended meanwhile, and the broker is
killed. Then the remaining consumers continue: each subscribed partition has one owner, and all its records are read.
HEADRACE_SUBSCRIPTION_ROUNDS=1000 runs more seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program
from tests.simulation.groups.defences import without

pytestmark = pytest.mark.slow  # not in `make check`

ROUNDS = int(os.environ.get("HEADRACE_SUBSCRIPTION_ROUNDS", "15"))
GROUP = "g"
PATTERN = "t.*"
KINDS: dict[str, dict[str, Any]] = {
    "topics": {"topics": ["t1", "t2"]},
    "pattern that the broker matches": {"pattern": PATTERN},
    "pattern that the consumer matches": {"pattern": PATTERN, "exclude": ["tx"]},
    "attached": {},
}
PROTOCOLS = [["classic"], ["consumer"], ["classic", "consumer"]]
SUBSCRIPTIONS = [*([kind] for kind in KINDS), list(KINDS)]
GROUP_RESOURCE = 32
STEPS = 30
PATIENCE_S = 150
"""The longest time until all partitions have owners, in seconds. The session of a killed member takes 45 s; then the
others may wait for that member in a rebalance, and then for each other."""
NEWS_S = 30
"""The longest time until new partitions and topics have owners, in seconds: a few heartbeats and a rebalance."""
MOST_TOPICS = 6


class Round:
    """One random history of consumers with subscriptions."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"subscriptions {seed}")
        self.harness = ConsumerSimulation()
        self.topics = {"t1": 2, "t2": 3}
        for name, count in self.topics.items():
            self.harness.broker.create_topic(name, partitions=count)
        self._attach()
        # In a group of one kind no member of another kind can hide a change that the first kind misses.
        self.protocols = PROTOCOLS[seed % len(PROTOCOLS)]
        self.kinds = SUBSCRIPTIONS[seed % len(SUBSCRIPTIONS)]
        self.members: dict[Program, str] = {}
        self.seen: Counter[bytes] = Counter()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        self._join()
        for _ in range(STEPS):
            (event,) = self.chance.choices(
                [
                    self._join,
                    self._leave,
                    self._die,
                    self._change,
                    self._create,
                    self._grow,
                    self._fall,
                ],
                [5, 2, 2, 3, 1, 1, 1],
            )
            self.counts[event.__name__] += 1
            event()
            for _ in range(self.chance.choice([0, 1, 4, 12])):
                self._second()
        while len(self.members) < 2:
            self._join()
        self._until_owned(PATIENCE_S, "after the history")
        self._create()
        for name in ("t1", "t2"):
            self._add_partition(name)
        self._until_owned(NEWS_S, "after a topic was created and one has grown")
        self._read_everything()

    # --- events ---

    def _join(self) -> None:
        if len(self.members) >= 5:
            return
        member = self.harness.consumer(
            group=GROUP,
            auto_offset_reset="earliest",
            group_protocol=self.chance.choice(self.protocols),
        )
        self.members[member] = self.chance.choice(self.kinds)
        member.subscribe(**KINDS[self.members[member]])

    def _leave(self) -> None:
        if len(self.members) > 1:
            member = self.chance.choice(list(self.members))
            del self.members[member]
            member.close()

    def _die(self) -> None:
        if len(self.members) > 1:
            member = self.chance.choice(list(self.members))
            del self.members[member]
            member.die()

    def _change(self) -> None:
        """Change the subscription of a member, or let it assign a partition to itself for a while."""
        member = self.chance.choice(list(self.members))
        member.run(member.core.unsubscribe(10_000))
        if self.chance.random() < 0.3:
            member.assign([TopicPartition("t1", 0)])
            self._second()
            member.run(member.core.unsubscribe(10_000))
        self.members[member] = self.chance.choice(self.kinds)
        member.subscribe(**KINDS[self.members[member]])

    def _create(self) -> None:
        if len(self.topics) < MOST_TOPICS:
            name = f"t{len(self.topics) + 1}"
            self.topics[name] = 2
            self.harness.broker.create_topic(name, partitions=2)

    def _grow(self) -> None:
        self._add_partition(self.chance.choice(list(self.topics)))

    def _add_partition(self, name: str) -> None:
        self.topics[name] += 1
        added = CreatePartitionsTopic(name=name, count=self.topics[name], assignments=None)
        answer = self.harness.broker.call(CreatePartitionsRequest(topics=[added], timeout_ms=1000))
        assert answer.results[0].error_code == 0

    def _fall(self) -> None:
        self.harness.restart_broker(crash=self.chance.random() < 0.5)

    def _attach(self) -> None:
        config = AlterableConfig(name="headrace.pattern", config_operation=0, value=PATTERN)
        resource = AlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=[config]
        )
        answer = self.harness.broker.call(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0, answer

    def _second(self) -> None:
        for member in list(self.members):
            self.seen.update(record.value for record in member.poll(20))
        self.harness.advance(1000)

    # --- checks ---

    @property
    def wanted(self) -> set[TopicPartition]:
        only_names = set(self.members.values()) == {"topics"}
        names = ["t1", "t2"] if only_names else list(self.topics)
        return {TopicPartition(name, index) for name in names for index in range(self.topics[name])}

    def _until_owned(self, patience_s: int, when: str) -> None:
        owners: Counter[TopicPartition] = Counter()
        for _ in range(patience_s):
            self._second()
            owners = Counter(name for member in self.members for name in member.assignment())
            if set(owners) == self.wanted and max(owners.values()) == 1:
                return
        kinds = [(kind, member.config.group_protocol) for member, kind in self.members.items()]
        missing = sorted(self.wanted - set(owners))
        warnings = [member.warnings[-2:] for member in self.members]
        raise AssertionError(f"{when}: {kinds}: without an owner: {missing}; {owners}; {warnings}")

    def _read_everything(self) -> None:
        values = set()
        for name, index in sorted(self.wanted):
            value = f"{name}-{index}".encode()
            assert self.harness.broker.produce(name, value, partition=index).error_code == 0
            values.add(value)
        for _ in range(30):
            self._second()
            if values <= set(self.seen):
                return
        raise AssertionError(f"not read: {sorted(values - set(self.seen))}")


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_subscribed_partition_is_read_in_the_end(seed: int) -> None:
    Round(seed).run()


@pytest.mark.parametrize(
    ("seed", "defence"),
    [
        (0, "classic groups see new partitions"),
        (2, "a topic of one member's expression raises the epoch"),
    ],
)
def test_a_missing_defence_is_found_with_real_consumers(seed: int, defence: str) -> None:
    with without(defence), pytest.raises(AssertionError, match="without an owner"):
        Round(seed).run()
