"""A worker by librdkafka: consume, transform, produce, commit in one transaction. Its one argument is JSON.

The worker ends with code 3 if it was fenced, 4 if it has lost its position, and 1 if a transaction hangs.

An attempt to process a record has a value of its own, so that the checker distinguishes aborted attempts from committed
ones.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.fixtures.history.operations import FAIL, INFO, INVOKE, OK, Journal

BATCH = 40
CALL_S = 5.0
FAST = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 4,
    "retry.backoff.ms": 30,
    "retry.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 5_000,
    "allow.auto.create.topics": "false",
    "metadata.recovery.strategy": "none",  # "rebootstrap" forgets the only broker, and what waits for it hangs
}
DEBUG = os.environ.get("HEADRACE_CHAOS_DEBUG")
"""The value of librdkafka's `debug` for the worker's .err file, for example `eos,broker,protocol`; empty for none."""
T = TypeVar("T")
ASTRAY = 4
"""The message of a known fault of librdkafka.

(1) The assignment changes while a transaction holds the committed offset pending. (2) librdkafka forgets to ask for the
offset again, and assumes that there is none. (3) With "earliest" it would read everything again.
"""


def _is_astray(message: Message) -> bool:
    error = message.error()
    return error is not None and bool(error.code() == KafkaError._AUTO_OFFSET_RESET)


class Worker:
    """One process of the pipeline, until SIGTERM or a fatal error."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._name: str = settings["name"]
        self._journal = Journal(Path(settings["journal"]), self._name)
        self._ends = False
        self._attempt = 0
        self._metadata: Any = None
        common = {"bootstrap.servers": settings["bootstrap"], **FAST}
        transaction_ms = settings["transaction_timeout_ms"]
        self._producer = Producer(
            {
                **common,
                **({"debug": DEBUG} if DEBUG else {}),
                "transactional.id": settings["transactional_id"],
                "transaction.timeout.ms": transaction_ms,
                "message.timeout.ms": transaction_ms,
                "socket.timeout.ms": transaction_ms - 500,
                "linger.ms": 1,
                "partitioner": "murmur2_random",
            }
        )
        self._consumer = Consumer({**common, **self._group_settings(settings)})
        signal.signal(signal.SIGTERM, self._end)

    def _group_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        own = {
            "group.id": settings["group"],
            "client.id": self._name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
        }
        if settings["protocol"] == "consumer":
            return {**own, "group.protocol": "consumer"}
        return {
            **own,
            "session.timeout.ms": settings["session_timeout_ms"],
            "heartbeat.interval.ms": settings["session_timeout_ms"] // 5,
            "partition.assignment.strategy": settings["assignor"],
        }

    def _end(self, *_: object) -> None:
        self._ends = True

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._refresh()
        self._placed(partitions)

    def _placed(self, partitions: list[TopicPartition]) -> None:
        names = [f"{place.topic}-{place.partition}" for place in partitions]
        self._journal.write(INVOKE, "assign", names)
        self._journal.write(OK, "assign", names)

    def _refresh(self) -> None:
        """Take the group's metadata before reading the positions, so that a member that lost its partitions does not
        look newer."""
        self._metadata = self._consumer.consumer_group_metadata()

    def _is_member(self) -> bool:
        """Return whether the metadata have a generation. Otherwise commits of former members are accepted."""
        magic = b"CGMDv2:"
        assert self._metadata.startswith(magic), self._metadata
        return bool(struct.unpack_from("<i", self._metadata, len(magic))[0] >= 0)

    def run(self) -> None:
        """Work until the end is requested."""
        self._repeat(lambda: self._producer.init_transactions(CALL_S))
        self._consumer.subscribe([self._settings["input"]], on_assign=self._assigned)
        while not self._ends:
            self._refresh()
            polled = self._consumer.consume(BATCH, 0.2)
            if any(_is_astray(message) for message in polled):
                sys.exit(ASTRAY)
            messages = [message for message in polled if message.error() is None]
            if messages and self._is_member():
                self._transact(messages)
            elif messages:
                self._rewind(messages)
        self._consumer.close()

    def _repeat(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                print("again:", error, file=sys.stderr, flush=True)

    def _transact(self, messages: list[Message]) -> None:
        self._attempt += 1
        polled: dict[str, list[list[object]]] = defaultdict(list)
        sends: list[list[Any]] = []
        for message in messages:
            value = message.value().decode()
            polled[f"{message.topic()}-{message.partition()}"].append([message.offset(), value])
            sends.append(["send", "", f"{value}|{self._name}.{self._attempt}"])
        value = [["poll", polled], *sends]
        faulthandler.dump_traceback_later(self._settings["patience_s"], exit=True)
        self._journal.write(INVOKE, "txn", value)
        try:
            self._pass_through(messages, sends)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                self._repeat(lambda: self._producer.abort_transaction(CALL_S))
                self._journal.write(FAIL, "txn", value)
                faulthandler.cancel_dump_traceback_later()
                self._rewind(messages)
                return
            self._journal.write(INFO, "txn", value)
            raise
        self._journal.write(OK, "txn", value)
        faulthandler.cancel_dump_traceback_later()

    def _pass_through(self, messages: list[Message], sends: list[list[Any]]) -> None:
        self._producer.begin_transaction()
        positions: dict[int, int] = {}
        for message, send in zip(messages, sends, strict=True):
            self._producer.produce(
                self._settings["output"],
                send[2],
                message.key(),
                on_delivery=partial(self._delivered, send),
            )
            positions[message.partition()] = message.offset() + 1
        offsets = [TopicPartition(self._settings["input"], *place) for place in positions.items()]
        self._repeat(
            lambda: self._producer.send_offsets_to_transaction(offsets, self._metadata, CALL_S)
        )
        self._repeat(lambda: self._producer.commit_transaction(CALL_S))

    def _delivered(self, send: list[Any], error: object, message: Message) -> None:
        if error is None:
            send[1:] = f"{message.topic()}-{message.partition()}", [message.offset(), send[2]]

    def _rewind(self, messages: list[Message]) -> None:
        """Read the batch again from the partitions that still belong to this member."""
        starts: dict[int, int] = {}
        for message in messages:
            starts.setdefault(message.partition(), message.offset())
        mine = {place.partition for place in self._consumer.assignment()}
        places = [
            TopicPartition(self._settings["input"], number, offset)
            for number, offset in starts.items()
            if number in mine
        ]
        for place in places:
            self._consumer.seek(place)
        self._placed(places)


try:
    Worker(json.loads(sys.argv[1])).run()
except KafkaException as error:
    print(error, file=sys.stderr)
    sys.exit(3 if error.args[0].fatal() else 2)
