"""Coordinators of groups and transactions, and the partitions of the transactions, move between three brokers.

Brokers die, lose power, pause, and lose each other, their sessions and messages. Meanwhile members join and heartbeat,
a client commits and fetches offsets, and producers write transactions. At the end every transaction has one outcome in
all partitions, and no acknowledged commit is lost.
"""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.fixtures.broker_harness import Pending
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.cluster_links import Fate
from tests.fixtures.moving_groups import (
    OFFSETS_OPTIONS,
    TOPIC,
    ClassicMember,
    Committer,
    ConsumerMember,
    is_converged,
)
from tests.fixtures.moving_transactions import PARTITIONS, TransactionalClient, committed_in

PLACES: Final = [(OFFSETS_TOPIC, 0), (TRANSACTIONS_TOPIC, 0), (TOPIC, 0), (TOPIC, 1)]
FATES: Final[tuple[Fate, ...]] = ("request lost", "response lost", "doubled", "late")
FAULTY_MS: Final = 30_000
SHORT_MS: Final = 3_000
QUIET_MS: Final = 120_000
"""The longest time from the end of the faults until everything is as it should be, in milliseconds."""


class Simulation:
    """A cluster, its clients and its faults."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"moving {seed}")
        self.cluster = SimulatedCluster(3, seed=seed, **OFFSETS_OPTIONS)
        everywhere = [(1, 2, 3), (2, 3, 1)]
        self.cluster.create_topic(OFFSETS_TOPIC, replicas=everywhere[:1], min_insync_replicas="2")
        self.cluster.create_topic(
            TRANSACTIONS_TOPIC, replicas=everywhere[1:], min_insync_replicas="2"
        )
        self.cluster.create_topic(
            TOPIC, replicas=everywhere, min_insync_replicas="2", headrace_durability="fsync"
        )
        self.cluster.advance(500)
        for broker in self.cluster.brokers.values():
            broker.sync_ms = self.chance.choice([0, 5, 30])
        kind: Any = self.chance.choice([ClassicMember, ConsumerMember])
        self.members = [kind(self.cluster, f"m{number}") for number in range(2)]
        self.committer = Committer(self.cluster)
        self.producers = [
            TransactionalClient(self.cluster, f"id{number}", number, bumps=number == 1)
            for number in range(2)
        ]

    # Faults

    def fail(self) -> None:
        chance, cluster = self.chance, self.cluster
        running = [each for each, broker in cluster.brokers.items() if broker.is_running]
        down = [each for each in cluster.brokers if each not in running]
        kind = chance.choice(
            ["kill", "power", "elect", "elect", "elect", "lose", "cut", "heal", "pause", "store"]
        )
        if down and chance.random() < 0.5:
            cluster.start(chance.choice(down))
        elif kind in {"kill", "power"} and len(running) == len(cluster.brokers):
            cluster.kill(
                chance.choice(running), power=kind == "power", ends_session=chance.random() < 0.7
            )
        elif kind == "elect":
            self.elect(*chance.choice(PLACES))
        elif kind == "lose":
            source, target = chance.sample([*cluster.brokers], 2)
            way = cluster.links.way(source, target)
            way.fates.extend(chance.choices(FATES, k=chance.randint(1, 3)))
        elif kind == "pause":
            cluster.brokers[chance.choice(running)].pause()
        elif kind == "store":
            cluster.cut_store(chance.choice(running))
        elif kind == "cut":
            source, target = chance.sample([*cluster.brokers], 2)
            cluster.cut(source, target, both_ways=chance.random() < 0.5)
        else:
            cluster.heal()

    def elect(self, name: str, index: int) -> None:
        """Let another in-sync replica lead, as for preferred leaders."""
        state = self.cluster.state(name, index)
        usable = [
            each
            for each in state.isr
            if each != state.leader and self.cluster.brokers[each].is_running
        ]
        if usable and state.leader >= 0:
            self.cluster.elect(name, index, self.chance.choice(usable))

    def run(self, faulty_ms: int = FAULTY_MS) -> None:
        end_ms = self.cluster.now_ms + faulty_ms
        while self.cluster.now_ms < end_ms:
            self.cluster.advance(self.chance.randint(20, 2_500))
            self.fail()
        self.cluster.heal()
        for broker_id, broker in self.cluster.brokers.items():
            if not broker.is_running:
                self.cluster.start(broker_id)
        for producer in self.producers:
            producer.stopping = True
        self.cluster.run_until(lambda: all(each.done for each in self.producers), QUIET_MS)
        self.cluster.run_until(lambda: not self.open_transactions(), QUIET_MS)
        self.cluster.run_until(lambda: is_converged(self.members, PARTITIONS), QUIET_MS)
        fetches = self.committer.fetches
        self.cluster.run_until(lambda: self.committer.fetches > fetches + 2, QUIET_MS)
        self.cluster.run_until(
            lambda: all(self.cluster.is_in_sync(name) for name in {name for name, _ in PLACES}),
            QUIET_MS,
        )

    # Checks

    def open_transactions(self) -> list[str]:
        return [
            f"{name}-{index}: {producer_id}"
            for name, index in PLACES
            for producer_id in self.log_of(name, index).producers.transactions.open
        ]

    def log_of(self, name: str, index: int) -> Any:
        return self.cluster.replica(self.cluster.leader(name, index), name, index).log

    def check(self) -> None:
        assert not self.committer.problems
        found = [
            committed_in(self.cluster.log_of(self.cluster.leader(TOPIC, index), TOPIC, index))
            for index in range(PARTITIONS)
        ]
        for number, producer in enumerate(self.producers):
            prefix = producer.name.encode() + b" "
            seen = [
                [int(value.split()[1]) for value in values if value.startswith(prefix)]
                for values in found
            ]
            assert seen[0] == seen[1], f"{producer.name}: a transaction has two outcomes"
            assert sorted(set(seen[0])) == seen[0], f"{producer.name}: doubled, or out of order"
            assert set(producer.committed) <= set(seen[0])
            assert not set(producer.aborted) & set(seen[0])
            assert self.offset(number) == max(seen[0], default=-1)
        assert all(
            self.log_of(TOPIC, index).last_stable_offset == self.log_of(TOPIC, index).log_end_offset
            for index in range(PARTITIONS)
        )

    def offset(self, partition: int) -> int:
        """Return the offset that the transactions of a producer have committed."""
        wanted = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[partition])
        group = OffsetFetchRequestGroup(group_id="transactions", topics=[wanted])
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        leader = self.cluster.brokers[self.cluster.leader(OFFSETS_TOPIC)]
        pending: Pending = leader.send(request)
        self.cluster.run_until(lambda: pending.done)
        (found,) = pending.response.groups
        assert found.error_code == 0
        return int(found.topics[0].partitions[0].committed_offset)


def test_every_transaction_has_one_outcome_and_no_acknowledged_commit_is_lost() -> None:
    simulation = Simulation(0)
    simulation.run(SHORT_MS)
    simulation.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_every_transaction_has_one_outcome_in_many_runs(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    simulation.check()
