"""A worker by Headrace's consumer and producer: consume, transform, produce, commit in one transaction. Argument: JSON.

The worker ends with code 3 if it was fenced or does not know the result of a transaction. An attempt to process a
record has a value of its own.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import headrace
from headrace import TopicPartition
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    CommitInDoubtError,
    FatalTransactionError,
    TransportError,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.fixtures.history.operations import FAIL, INFO, INVOKE, OK, Journal

FAST: dict[str, Any] = {
    "retry_backoff_ms": 30,
    "retry_backoff_max_ms": 200,
    "request_timeout_ms": 2_500,
}
COMMITS_APART, READS_ALL = "commits apart", "reads all"
"""Faults that a worker commits on purpose, which the checker has to find."""
ENDING = (FatalTransactionError, CommitInDoubtError)
PASSING = (AbortableTransactionError, ApiError, TransportError)


class Worker:
    """One process of the pipeline. It runs until SIGTERM or until it is fenced."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._name: str = settings["name"]
        self._journal = Journal(Path(settings["journal"]), self._name)
        self._fault: str = settings["fault"]
        self._ends = False
        self._attempt = 0
        self._producer = headrace.Producer(
            settings["bootstrap"],
            transactional_id=settings["transactional_id"],
            transaction_timeout_ms=settings["transaction_timeout_ms"],
            linger_ms=1,
            **FAST,
        )
        group: dict[str, Any] = {"group_protocol": "consumer"}
        if settings["protocol"] == "classic":
            group = {
                "assignor": settings["assignor"],
                "group_protocol": "classic",
                "session_timeout_ms": settings["session_timeout_ms"],
                "heartbeat_interval_ms": settings["session_timeout_ms"] // 5,
            }
        self._consumer = headrace.Consumer(
            settings["bootstrap"],
            group=settings["group"],
            client_id=self._name,
            isolation_level="read_uncommitted" if self._fault == READS_ALL else "read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_poll_records=40,
            fetch_max_wait_ms=100,
            **group,
            **FAST,
        )
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._ends = True

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._placed(partitions)

    def _placed(self, partitions: list[TopicPartition]) -> None:
        names = [f"{topic}-{number}" for topic, number in partitions]
        self._journal.write(INVOKE, "assign", names)
        self._journal.write(OK, "assign", names)

    def run(self) -> None:
        """Work until the end is requested."""
        self._producer.init_transactions(20)
        self._consumer.subscribe([self._settings["input"]], listener=self)
        while not self._ends:
            try:
                records = self._consumer.poll(0.2)
            except (ApiError, TransportError) as error:
                print("poll:", repr(error), file=sys.stderr)
                continue
            if records:
                self._transact(records)
        self._consumer.close()
        self._producer.close()

    def _transact(self, records: list[headrace.ConsumerRecord]) -> None:
        self._attempt += 1
        polled: dict[str, list[list[object]]] = defaultdict(list)
        sends: list[list[Any]] = []
        for record in records:
            value = record.value.decode()
            polled[f"{record.topic}-{record.partition}"].append([record.offset, value])
            sends.append(["send", "", f"{value}|{self._name}.{self._attempt}"])
        told = [["poll", polled], *sends]
        faulthandler.dump_traceback_later(self._settings["patience_s"], exit=True)
        self._journal.write(INVOKE, "txn", told)
        try:
            self._pass_through(records, sends)
        except ENDING:
            self._journal.write(INFO, "txn", told)
            raise
        except PASSING as error:
            print("aborted:", repr(error), file=sys.stderr)
            self._journal.write(FAIL, "txn", told)
            self._rewind(records)
        else:
            self._journal.write(OK, "txn", told)
        faulthandler.cancel_dump_traceback_later()

    def _pass_through(self, records: list[headrace.ConsumerRecord], sends: list[list[Any]]) -> None:
        deliveries = []
        with self._producer.transaction() as transaction:
            for record, send in zip(records, sends, strict=True):
                deliveries.append(
                    self._producer.send(
                        self._settings["output"],
                        send[2].encode(),
                        key=record.key,
                    )
                )
            positions = {
                TopicPartition(record.topic, record.partition): record.offset + 1
                for record in records
            }
            if self._fault != COMMITS_APART:
                transaction.send_offsets(positions, self._consumer)
        if self._fault == COMMITS_APART:
            time.sleep(0.1)  # the test kills the process here
            self._consumer.commit(positions)
        for delivery, send in zip(deliveries, sends, strict=True):
            sent = delivery.result(0)
            send[1:] = f"{sent.topic}-{sent.partition}", [sent.offset, send[2]]

    def _rewind(self, records: list[headrace.ConsumerRecord]) -> None:
        """Read the batch again from the partitions that still belong to this member."""
        starts: dict[TopicPartition, int] = {}
        for record in records:
            starts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        mine = self._assignment()
        places = [place for place in starts if place in mine]
        for place in places:
            self._consumer.seek(place, starts[place])
        self._placed(places)

    def _assignment(self) -> set[TopicPartition]:
        """Return the partitions, however long the broker is away."""
        while True:
            try:
                return set(self._consumer.assignment())
            except TransportError as error:
                print("assignment:", repr(error), file=sys.stderr)


try:
    Worker(json.loads(sys.argv[1])).run()
except ENDING as error:
    print(repr(error), file=sys.stderr)
    sys.exit(3)
