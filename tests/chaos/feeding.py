"""The feeder of the pipeline and the readers of its output. Each records its operations."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.fixtures.history.operations import FAIL, INVOKE, OK, Journal

INPUT, OUTPUT = "input", "output"
PARTITIONS = 16
KEYS = 3  # of each partition
ABORTED = 0.15  # of the feeder's transactions, on purpose
PAUSE_S = 0.03
FAST = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
    "metadata.recovery.strategy": "none",  # there is one broker, and it restarts at the same address
}
CALL_S = 5.0


class Background:
    """A thread that runs until it is stopped. It keeps the exception that ended it."""

    def __init__(self, name: str) -> None:
        self.trouble: BaseException | None = None
        self.ends = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        """Stop the thread, and wait until it has ended."""
        self.ends.set()
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the owner of the thread raises it
            self.trouble = error

    def run(self) -> None:
        raise NotImplementedError


class Feeder(Background):
    """Sends numbers in order to every partition: `partition:number:attempt`. Some transactions are aborted."""

    def __init__(self, bootstrap: str, journal: Path, seed: int, *, transactional: bool) -> None:
        super().__init__("feeder")
        self.sent = [0] * PARTITIONS
        """Number of records in each partition, as far as they are acknowledged."""
        self._random = random.Random(seed)
        self._journal = Journal(journal, "feeder")
        self._transactional = transactional
        self._attempt = 0
        self._bootstrap = bootstrap
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        own = {"transactional.id": "feeder", "transaction.timeout.ms": 60_000}
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                **FAST,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 30,
                "message.timeout.ms": 60_000,
                **(own if self._transactional else {}),
            }
        )

    def run(self) -> None:
        if self._transactional:
            _repeat(partial(self._producer.init_transactions, CALL_S))
        while not self.ends.wait(PAUSE_S):
            self._attempt += 1
            batch = [self._random.randrange(PARTITIONS) for _ in range(self._random.randint(1, 24))]
            self._send(batch)

    def _send(self, batch: list[int]) -> None:
        following = list(self.sent)
        sends: list[list[Any]] = []
        for number in batch:
            value = f"{number}:{following[number]}:{self._attempt}"
            sends.append(["send", f"{INPUT}-{number}", value])
            following[number] += 1
        self._journal.write(INVOKE, "txn", sends)
        if self._transactional:
            self._producer.begin_transaction()
        for number, send in zip(batch, sends, strict=True):
            key = f"{number}.{self._random.randrange(KEYS)}"
            self._producer.produce(
                INPUT, send[2], key, number, on_delivery=partial(_delivered, send)
            )
        if self._end():
            assert all(isinstance(send[2], list) for send in sends), sends
            self._journal.write(OK, "txn", sends)
            self.sent = following
        else:
            self._journal.write(FAIL, "txn", sends)

    def _end(self) -> bool:
        """Return whether the sent records are committed."""
        if not self._transactional:
            while self._producer.flush(CALL_S):
                pass
            return True
        try:
            if self._random.random() > ABORTED:
                _repeat(partial(self._producer.commit_transaction, CALL_S))
                return True
            while self._producer.flush(CALL_S):
                pass  # records of a deliberate abort stay in the log, and readers skip them
        except KafkaException as error:
            if not (error.args[0].txn_requires_abort() or self._is_lost(error)):
                raise
        self._abort()
        return False

    def _is_lost(self, error: KafkaException) -> bool:
        """Return whether the producer failed before it requested the commit."""
        return bool(error.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def _abort(self) -> None:
        try:
            _repeat(partial(self._producer.abort_transaction, CALL_S))
        except KafkaException as error:
            # librdkafka becomes unusable in two cases. (1) The beginning of a transaction is lost with the broker, and
            # EndTxn fails with INVALID_TXN_STATE. (2) An abort drops records that have reached the broker,
            # and librdkafka uses their sequence numbers again.
            if not error.args[0].fatal():
                raise
            self._producer = self._new_producer()
            _repeat(partial(self._producer.init_transactions, CALL_S))


def _repeat(call: Any) -> None:
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def _delivered(send: list[Any], error: KafkaError | None, message: Message) -> None:
    if error is None:
        send[2] = [message.offset(), send[2]]


class Watcher(Background):
    """Reads the committed records of a topic from its beginning, without a group."""

    def __init__(self, bootstrap: str, journal: Path, topic: str) -> None:
        super().__init__(f"watcher of {topic}")
        self._bootstrap, self._topic = bootstrap, topic
        self._journal = Journal(journal, f"watcher-{topic}")

    def run(self) -> None:
        consumer = reader(self._bootstrap)
        try:
            places = [TopicPartition(self._topic, number, 0) for number in range(PARTITIONS)]
            consumer.assign(places)
            while not self.ends.is_set():
                polled(self._journal, consumer.consume(500, 0.3))
        finally:
            consumer.close()


def reader(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            **FAST,
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
        }
    )


def polled(journal: Journal, messages: list[Message]) -> None:
    """Write down a poll."""
    found: dict[str, list[list[object]]] = defaultdict(list)
    for message in messages:
        if message.error() is None:
            place = f"{message.topic()}-{message.partition()}"
            found[place].append([message.offset(), message.value().decode()])
    if found:
        journal.write(INVOKE, "poll", [["poll"]])
        journal.write(OK, "poll", [["poll", found]])


def read_all(bootstrap: str, topic: str, journal: Path) -> dict[int, list[Message]]:
    """Everything that is committed, by partition, up to the ends that the log has now."""
    found: dict[int, list[Message]] = {number: [] for number in range(PARTITIONS)}
    consumer, open_ = reader(bootstrap), set(found)
    last = time.monotonic()
    notes = Journal(journal, f"reader-{topic}")
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in found])
        while open_:
            messages = consumer.consume(2000, 0.3)
            last = time.monotonic() if messages else last
            assert time.monotonic() < last + 20, f"nothing comes from {topic} {sorted(open_)}"
            for message in messages:
                if message.error() is None:
                    found[message.partition()].append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    open_.discard(message.partition())
            polled(notes, messages)
    finally:
        consumer.close()
        notes.close()
    return found
