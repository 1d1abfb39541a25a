"""The processes of a run: idempotent producers, group members that transform records, and readers."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial
from typing import Any

from headrace.clients.assignors import choose_assignors
from headrace.clients.config import ClientConfig, ConsumerConfig, ProducerConfig
from headrace.clients.consumer.core import ConsumerCore
from headrace.clients.producer.core import ProducerCore
from headrace.clients.producer.delivery import Delivery
from headrace.errors import HeadraceError
from headrace.types import TopicPartition
from tests.fixtures.history.operations import FAIL, INFO, INVOKE, OK
from tests.simulation.checker import Checker, Transaction
from tests.simulation.clients import Client, Process, Program
from tests.simulation.history import place, polled, sent
from tests.simulation.knobs import CALL_LIMIT_MS, Knobs
from tests.simulation.machine import ViolationError
from tests.simulation.network import Network
from tests.simulation.producers import (
    LONG_MS,
    FailedError,
    FencedError,
    Ours,
    Producer,
    Raw,
)
from tests.simulation.raw import RawProducer

GROUP = "g"


class Plain(Process):
    """An idempotent producer of the input."""

    def __init__(
        self, network: Network, name: str, knobs: Knobs, checker: Checker, seed: str
    ) -> None:
        super().__init__(network, name)
        self._chance = chance = random.Random(seed)
        self._knobs = knobs
        self._checker = checker
        config = ProducerConfig(
            client_id=name,
            linger_ms=chance.choice([0, 5, 30]),
            delivery_timeout_ms=1500,
            **knobs.client,
        )
        self._client = Client(self, config, speaks_v2=knobs.speaks_v2(name))
        self._core = ProducerCore(
            self._client.engine, config, delivery=partial(Delivery, None), choose=chance.randrange
        )
        self._count = 0
        self.stopping = False
        self.start(self._live())

    def _live(self) -> Program:
        while not self.stopping:
            for _ in range(self._chance.randint(1, 4)):
                partition = self._chance.randrange(self._knobs.inputs)
                yield from self._send(partition)
            yield self._chance.randint(1, self._knobs.produce_ms)
        while self._core.sender.active:
            yield 20

    def _send(self, partition: int) -> Program:
        self._count += 1
        value = b"%s-%d" % (self.name.encode(), self._count)
        while True:
            delivery = self._core.send(
                "in",
                value,
                key=None,
                headers=(),
                timestamp_ms=None,
                partition=partition,
                on_delivery=partial(self._delivered, partition, value),
            )
            if delivery is not None:
                step = sent(TopicPartition("in", partition), value)
                self._checker.history.write(value.decode(), INVOKE, "send", [step])
                self._client.follow()
                return
            try:
                yield self._client, self._core.prepare("in", partition), CALL_LIMIT_MS
            except HeadraceError:
                yield 20

    def _delivered(self, partition: int, value: bytes, delivery: Delivery) -> None:
        if delivery.exception() is None:
            offset = delivery.metadata().offset
            step = sent(TopicPartition("in", partition), value, offset)
            self._checker.history.write(value.decode(), OK, "send", [step])
            self._checker.plain_acknowledged.add(value)
            self._checker.counts["produced"] += 1
        else:
            self._checker.counts["not produced"] += 1


class Reader(Process):
    """A reader of the output without a group; it reports all records to the checker."""

    def __init__(
        self, network: Network, name: str, knobs: Knobs, checker: Checker, *, committed: bool
    ) -> None:
        super().__init__(network, name)
        self._checker = checker
        self._chance = random.Random(name)
        self.committed = committed
        self.names = [TopicPartition("out", number) for number in range(knobs.outputs)]
        self.got: dict[TopicPartition, list[tuple[int, bytes | None]]] = defaultdict(list)
        config = ConsumerConfig(
            client_id=name,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if committed else "read_uncommitted",
            fetch_max_wait_ms=200,
            max_partition_fetch_bytes=self._chance.choice([100, 1 << 20]),
            **knobs.client,
        )
        self._client = Client(self, config)
        self._core = ConsumerCore(self._client.engine, config, new_id=lambda: name)
        self.start(self._live())

    def _live(self) -> Program:
        while True:
            try:
                yield self._client, self._core.assign(dict.fromkeys(self.names, 0)), CALL_LIMIT_MS
                break
            except HeadraceError:
                yield 20
        while True:
            try:
                yield self._client, self._core.poll(500), CALL_LIMIT_MS
                records = self._core.take(None)
                if records and self.committed:
                    self._checker.history.at_once(self.name, "poll", [polled(records)])
                for record in records:
                    self._got(record)
                self._client.follow()
            except HeadraceError as error:
                self.network.machine.trace(f"{self.name}: {error!r}")
                yield 20

    def _got(self, record: Any) -> None:
        name = TopicPartition(record.topic, record.partition)
        got = self.got[name]
        if got and record.offset <= got[-1][0]:
            raise ViolationError(f"{self.name} got {name}@{record.offset} after {got[-1][0]} (7)")
        got.append((record.offset, record.value))
        self._checker.read(name, record.offset, record.value)
        self._checker.counts["read"] += 1


class Listener:
    """A listener that reports owners of partitions to the checker."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._member.assigned(partitions)


class Member(Process):
    """Consumes the input in a group, transforms it, and produces the output, in transactions."""

    def __init__(
        self, network: Network, name: str, knobs: Knobs, checker: Checker, life: int
    ) -> None:
        super().__init__(network, f"{name}.{life}")
        self._checker = checker
        self._knobs = knobs
        self._chance = chance = random.Random(f"{knobs.seed} {name} {life}")
        self._transactions = 0
        config = ConsumerConfig(
            client_id=self.name,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            **knobs.membership,
            max_poll_interval_ms=knobs.rebalance_ms,
            fetch_max_wait_ms=200,
            **knobs.client,
        )
        speaks_v2 = knobs.speaks_v2(name)
        self._reading = Client(self, config)
        self._consumer = ConsumerCore(
            self._reading.engine,
            config,
            new_id=lambda: f"{self.name}-{chance.randrange(1 << 40)}",
            assignors=None if knobs.new_groups else choose_assignors(knobs.assignor),
        )
        timeout_ms = chance.choice(knobs.transactions_ms)
        self._producer: Producer
        if not speaks_v2 and chance.random() < 0.5 and knobs.raw_producers:
            self._producer = Raw(self, name, timeout_ms, knobs.client)
        else:
            self._producer = Ours(
                self, name, timeout_ms, knobs.client, speaks_v2=speaks_v2, chance=chance
            )
        self.start(self._live())

    def assigned(self, partitions: list[TopicPartition]) -> None:
        generation = self._consumer.group_metadata().generation_id
        if not self._knobs.new_groups:  # in KIP-848 groups each member has its own epoch
            self._checker.assigned(self.name, generation, partitions)
        self._checker.history.at_once(self.name, "assign", [place(name) for name in partitions])

    def _live(self) -> Program:
        while True:
            try:
                yield (
                    self._reading,
                    self._consumer.subscribe(["in"], listener=Listener(self)),
                    CALL_LIMIT_MS,
                )
                break
            except HeadraceError:
                yield 20
        while True:
            try:
                yield self._reading, self._consumer.poll(300), CALL_LIMIT_MS
                records = self._consumer.take(
                    50 if self._knobs.calm else self._chance.choice([1, 3, 10])
                )
                self._reading.follow()
                if records:
                    yield from self._recorded(records)
            except FencedError as error:
                self.network.machine.trace(f"{self.name}: {error!r}")
                self._checker.counts["fenced"] += 1
                return
            except (HeadraceError, FailedError) as error:
                self.network.machine.trace(f"{self.name}: {error!r}")
                self._checker.counts["failed"] += 1
                yield from self._rewind()

    def _recorded(self, records: list[Any]) -> Program:
        """Run one transaction, and record it in the history."""
        self._transactions += 1
        transaction = Transaction(f"{self.name}-{self._transactions}")
        self._checker.transactions[transaction.name] = transaction
        history = self._checker.history
        history.write(self.name, INVOKE, "transaction", transaction.steps)
        try:
            yield from self._transact(records, transaction)
        except Exception:
            history.write(self.name, INFO, "transaction", transaction.steps)
            raise
        outcome = OK if transaction.told else FAIL
        history.write(self.name, outcome, "transaction", transaction.steps)
        if not transaction.told:
            yield from self._rewind()

    def _transact(self, records: list[Any], transaction: Transaction) -> Program:
        chance, checker = self._chance, self._checker
        transaction.steps.append(polled(records))
        transaction.sources = [(record.partition, record.offset) for record in records]
        offsets: dict[TopicPartition, int] = {}
        outputs: dict[TopicPartition, list[bytes]] = defaultdict(list)
        for record in records:
            offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
            name = TopicPartition("out", chance.randrange(self._knobs.outputs))
            value = f"{transaction.name}|{record.partition}|{record.offset}"
            outputs[name].append(value.encode() + b"|" + b"x" * chance.choice([0, 40]))
            transaction.steps.append(sent(name, outputs[name][-1]))
        group = self._consumer.group_metadata()
        yield from self._producer.begin()
        for name, values in outputs.items():
            yield from self._producer.write(name, values)
            transaction.acknowledged += values
            if chance.random() < 0.1 and not self._knobs.calm:
                yield chance.randint(0, 2 * self._knobs.transaction_ms)
        yield from self._producer.send_offsets(offsets, group)
        transaction.wanted = self._knobs.calm or chance.random() < 0.85
        self.network.machine.trace(f"{transaction.name}: ends, {transaction.wanted}")
        yield from self._producer.end(committed=transaction.wanted)
        transaction.told = transaction.wanted
        if transaction.wanted:
            checker.ended(transaction)

    def _rewind(self) -> Program:
        """Seek to the committed offsets."""
        while True:
            owned = sorted(self._consumer.assigned)
            try:
                found = yield self._reading, self._consumer.committed(owned), CALL_LIMIT_MS
            except HeadraceError:
                yield 20
                continue
            for name, at in found.items():
                if name in self._consumer.assigned:
                    self._consumer.positions.seek(name, 0 if at is None else at.offset)
            self._checker.history.at_once(self.name, "assign", [place(name) for name in found])
            return


class Careless(Process):
    """A transactional producer that ends transactions while batches are in flight, and continues."""

    def __init__(self, network: Network, knobs: Knobs, checker: Checker) -> None:
        super().__init__(network, "z")
        self._checker = checker
        self._knobs = knobs
        self._chance = random.Random(f"{knobs.seed} careless")
        configs = [ClientConfig(client_id=f"z{number}", **knobs.client) for number in range(2)]
        self._slow, self._fast = (Client(self, each, speaks_v2=False) for each in configs)
        self._producer = RawProducer(self._fast.state, "z", knobs.transaction_ms)
        self.start(self._live())

    def _live(self) -> Program:
        count = 0
        known = False
        while not self._knobs.calm:
            try:
                if not known:
                    yield self._fast, self._producer.init(), LONG_MS
                    known = True
                name = TopicPartition("out", self._chance.randrange(self._knobs.outputs))
                yield self._fast, self._producer.add(name), 1000
                count += 1
                value = b"z%d|-|-" % count
                self._checker.history.write(f"z{count}", INVOKE, "send", [sent(name, value)])
                self._slow.engine.spawn(
                    self._producer.write(name, [value], self._fast.engine.now_ms), timeout_ms=1000
                )
                self._slow.follow()
                self._delay()
                yield self._chance.choice([0, 3, 30])
                yield self._fast, self._producer.end(committed=self._chance.random() < 0.5), 1000
                yield self._chance.choice([5, 200])
            except HeadraceError as error:
                self.network.machine.trace(f"z: {error!r}")
                known = False
                yield 50

    def _delay(self) -> None:
        """Delay the last requests, so that later requests overtake them."""
        machine = self.network.machine
        for wire in self.network.wires:
            if wire.client is self._slow and self._chance.random() < 0.5:
                wire.stalled_until_ms = machine.now_ms + self._chance.choice([20, 100, 500])
