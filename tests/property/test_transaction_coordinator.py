"""Transactions against a slow model: requests that come twice, late or not at all, crashes between any two steps.

The world is the coordinator, partitions whose appends are verified, and producers, each with the connection that it has
now and what earlier producers of its id have left on the way. Whatever happens:

* a transaction is visible in all its partitions or in none, and all of it only if its producer asked for the commit;
* one whose commit was acknowledged is visible, one that was acknowledged as aborted is not;
* of two producers of an id only the later one writes, once it knows that it is the producer;
* left in peace, every transaction ends.

That the check can fail is shown by switching five defences off, one at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.coordinator.runtime import NOTHING
from headrace.core.coordinator.transaction import shard, transactions
from headrace.core.coordinator.transaction.producers import NOBODY, Producer
from headrace.core.coordinator.transaction.shard import Outcome
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from tests.fixtures.transaction_world import TIMEOUT_MS, TransactionWorld

SEEDS = 60
STEPS = 300
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
RETRIED = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class ViolationError(AssertionError):
    """A promise was broken."""


class Partition:
    """A partition: what is open, what is decided; it fences by epoch as a log does."""

    def __init__(self) -> None:
        self.epoch = -1
        self.open: list[str] = []
        self.outcomes: dict[str, bool] = {}

    def append(self, epoch: int, transaction: str) -> bool:
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        if transaction not in self.open:
            self.open.append(transaction)
        return True

    def mark(self, outcome: Outcome) -> None:
        if outcome.producer_epoch < self.epoch:
            return
        self.epoch = outcome.producer_epoch
        for transaction in self.open:
            self.outcomes[transaction] = outcome.committed
        self.open = []


class Client:
    """One producer of the id "id", which has one request under way at a time, as clients have."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.me: Producer | None = None
        self.dead = False
        self.count = 0
        self.transaction = ""
        self.added: list[TopicPartition] = []
        self.ending: bool | None = None
        self.waiting: Deferred[Any] | None = None
        self.then: Callable[[Any], None] = lambda _: None

    def step(self, chance: random.Random) -> None:
        if self.dead:
            return
        if self.waiting is not None:
            self._look(chance)
        elif self.me is None:
            self._ask(lambda: self.world.at.init(NOBODY), self._became)
        elif self.ending is not None:
            me, committed = self.me, self.ending
            self._ask(lambda: self.world.at.end(me, committed=committed), self._ended)
        elif not self.transaction or chance.random() < 0.3:
            self._add(chance.choice(PARTITIONS))
        elif self.added and chance.random() < 0.6:
            self.write(chance.choice(self.added))
        elif self.added:
            self.ending = chance.random() < 0.7
            if self.ending:
                self.world.wanted.add(self.transaction)

    def write(self, partition: TopicPartition) -> None:
        """Append to a partition, if that lets it."""
        assert self.me is not None
        if self.world.at.verify(self.me, partition) is ErrorCode.NONE:
            self.world.append(self, self.me, partition)

    def _add(self, partition: TopicPartition) -> None:
        if not self.transaction:
            self.count += 1
            self.transaction = f"{self.name}-{self.count}"
        me = self.me
        assert me is not None
        self._ask(
            lambda: self.world.at.add(me, partition), lambda code: self._was_added(partition, code)
        )

    def _ask(self, send: Callable[[], Any], then: Callable[[Any], None]) -> None:
        reply = send()
        self.world.remember(send)
        self.then = then
        if isinstance(reply, Deferred):
            self.waiting = reply
        else:
            then(reply)

    def _look(self, chance: random.Random) -> None:
        assert self.waiting is not None
        if self.waiting.done:
            reply, self.waiting = self.waiting, None
            if chance.random() < 0.95:  # else the answer is lost, and the request sent again
                self.then(reply.value)
        elif chance.random() < 0.05:
            self.waiting = None  # it does not wait any longer, and asks again

    def _became(self, reply: Producer | ErrorCode) -> None:
        if isinstance(reply, Producer):
            self.me = reply
            self.world.newest(self, reply)

    def _was_added(self, partition: TopicPartition, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self.added.append(partition)
        elif code not in RETRIED:
            self.dead = True

    def _ended(self, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            assert self.ending is not None
            self.world.acknowledged[self.transaction] = self.ending
            self.transaction, self.added, self.ending = "", [], None
        elif code not in RETRIED:
            self.dead = True


class World:
    """All of it, driven by one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.at = TransactionWorld(manual=True)
        self.at.markers.held = True
        self.partitions = {partition: Partition() for partition in PARTITIONS}
        self.members: dict[str, set[TopicPartition]] = {}
        self.wanted: set[str] = set()
        self.acknowledged: dict[str, bool] = {}
        self.late: list[Callable[[], Any]] = []
        self.clients = [Client(self, "a")]
        self.current: Producer | None = None

    def remember(self, send: Callable[[], Any]) -> None:
        """Keep a request of a producer that may arrive once more, when it has been replaced."""
        self.late = [*self.late[-3:], send]

    def newest(self, client: Client, producer: Producer) -> None:
        if self.current is not None and producer <= self.current:
            raise ViolationError(f"{client.name} is {producer} after {self.current}")
        self.current = producer

    def append(self, client: Client, producer: Producer, partition: TopicPartition) -> None:
        if self.current is not None and producer < self.current:
            raise ViolationError(f"{client.name} has written after it was replaced")
        if self.partitions[partition].append(producer.producer_epoch, client.transaction):
            self.members.setdefault(client.transaction, set()).add(partition)

    def step(self) -> None:
        chance = self.chance
        what = chance.random()
        if what < 0.6:
            older = self.clients if chance.random() < 0.3 else self.clients[-1:]
            chance.choice(older).step(chance)
        elif what < 0.78:
            self.at.sync()
        elif what < 0.9:
            self.deliver()
        elif what < 0.93:
            self.at.restart()
        elif what < 0.94:
            self.replace()
        elif what < 0.945:
            self.at.advance(TIMEOUT_MS)
        else:
            self.at.advance(100)

    def deliver(self) -> None:
        """A marker reaches its partition, which may say so, or not be able to."""
        begun = self.at.markers.begun
        if not begun:
            return
        write = begun.pop(self.chance.randrange(len(begun)))
        self.partitions[write.partition].mark(write.marker)
        lost = self.chance.random() < 0.2
        write.done(ErrorCode.KAFKA_STORAGE_ERROR if lost else ErrorCode.NONE)

    def replace(self) -> None:
        """A new producer with the same id; what the one before has sent may still arrive."""
        if len(self.clients) < 4 and self.clients[-1].me is not None:
            self.clients.append(Client(self, "abcd"[len(self.clients)]))
        elif self.late and self.clients[-1].me is None:
            self.chance.choice(self.late)()

    def settle(self) -> None:
        for client in self.clients:
            client.dead = True
        for _ in range(40):
            self.at.sync()
            while self.at.markers.begun:
                self.deliver()
            self.at.advance(TIMEOUT_MS // 10)

    def check(self) -> None:
        for partition in self.partitions.values():
            if partition.open:
                raise ViolationError(f"{partition.open} never end")
        for transaction, members in self.members.items():
            outcomes = {self.partitions[each].outcomes[transaction] for each in members}
            if len(outcomes) > 1:
                raise ViolationError(f"{transaction} is committed in some partitions")
            (committed,) = outcomes
            if committed and transaction not in self.wanted:
                raise ViolationError(f"{transaction} is committed, and nobody wanted that")
            told = self.acknowledged.get(transaction, committed)
            if told is not committed:
                raise ViolationError(f"{transaction}: {told} was acknowledged")


def run(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    world.check()


@pytest.mark.parametrize("block", range(4))
def test_transactions_are_all_or_nothing_whatever_is_lost(block: int) -> None:
    for seed in range(block * SEEDS // 4, (block + 1) * SEEDS // 4):
        run(seed)


def _markers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shard.TransactionShard, "when_durable", lambda _self, then, _now_ms: then(ErrorCode.NONE)
    )


def _no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "unverified", lambda *_: ErrorCode.NONE)


def _no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard.TransactionShard, "loaded", lambda _self, _now_ms: [])


def _no_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "time_is_up", lambda *_: NOTHING)


def _no_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(self: Any, transactional_id: str, _producer_id: int, _epoch: int) -> Any:
        return self.transactions[transactional_id]

    monkeypatch.setattr(shard.TransactionShard, "find", find)


DEFENCES = [_markers_at_once, _no_verification, _no_recovery, _no_time_out, _no_fencing]


@pytest.mark.parametrize("switch_off", DEFENCES, ids=lambda each: each.__name__.strip("_"))
def test_without_a_defence_a_violation_is_found(
    monkeypatch: pytest.MonkeyPatch, switch_off: Callable[[pytest.MonkeyPatch], None]
) -> None:
    switch_off(monkeypatch)
    for seed in range(400):
        try:
            run(seed)
        except ViolationError:
            return
    pytest.fail("nothing was found")
