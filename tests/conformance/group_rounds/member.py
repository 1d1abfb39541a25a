"""A member of the group, as a process: ADDRESS GROUP TOPIC NAME ASSIGNOR LEDGER; it writes down what it does.

`take GENERATION PARTITION` and `give ...` are its listener's; `poll GENERATION` says that it got records; `handle
GENERATION PARTITION OFFSET VALUE` comes before a record is worked on and `done ...` after it; `commit GENERATION
PARTITION OFFSET` after the broker has said yes, `fenced GENERATION CODE` after it has said no. Every line begins with
the time, which all processes of a machine share.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import IO, Any

import headrace
from headrace import TopicPartition
from headrace.errors import ApiError, ErrorCode, HeadraceError, NotAssignedError, TransportError

ADDRESS, GROUP, TOPIC, NAME, ASSIGNOR, LEDGER = sys.argv[1:]
WORK_S = 0.002


class Program:
    """Polls, handles and commits records until SIGTERM."""

    def __init__(self, ledger: IO[str]) -> None:
        self._ledger = ledger
        self._ends = False
        self._finished: dict[TopicPartition, int] = {}
        protocol: dict[str, Any] = {"group_protocol": "consumer"}
        if ASSIGNOR != "server-side":
            protocol = {
                "assignor": ASSIGNOR,
                "session_timeout_ms": 2_000,
                "heartbeat_interval_ms": 300,
            }
        self._consumer = headrace.Consumer(
            ADDRESS,
            group=GROUP,
            client_id=NAME,
            **protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=20,
            max_poll_interval_ms=3_000,
            request_timeout_ms=5_000,
            retry_backoff_ms=50,
            retry_backoff_max_ms=300,
            fetch_max_wait_ms=100,
        )
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._ends = True

    def write(self, what: str, *words: object) -> None:
        generation = self._consumer.group_metadata().generation_id
        moment = time.clock_gettime(time.CLOCK_MONOTONIC)
        print(f"{moment:.6f}", what, generation, *words, file=self._ledger, flush=True)

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        for _, number in partitions:
            self.write("take", number)

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._commit()
        self.on_lost(partitions)

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._finished.pop(one, None)
            self.write("give", one.partition)

    def run(self) -> None:
        self._consumer.subscribe([TOPIC], listener=self)
        while not self._ends:
            try:
                records = self._consumer.poll(0.2)
            except (TransportError, ApiError) as error:
                self.write("trouble", type(error).__name__)
                continue
            if records:
                self.write("poll")
            for record in records:
                self.write("handle", record.partition, record.offset, record.value.decode())
                time.sleep(self._work_s(record))
                self.write("done", record.partition, record.offset)
                self._finished[TopicPartition(TOPIC, record.partition)] = record.offset + 1
            self._commit()
        self._consumer.close()

    def _work_s(self, record: headrace.ConsumerRecord) -> float:
        """Return the seconds for a record. It is slow for its first member only; others must be able to commit it."""
        mark = Path(LEDGER).with_name(f"slow-{record.partition}-{record.offset}")
        if not record.headers or mark.exists():
            return WORK_S
        mark.touch()
        return float(record.headers[0][1] or b"0")

    def _commit(self) -> None:
        if not self._finished:
            return
        try:
            self._consumer.commit(dict(self._finished), timeout_s=3)
        except NotAssignedError:
            self.write("fenced", "NOT_ASSIGNED")
        except ApiError as error:
            self.write("fenced", error.code.name)
            if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                return  # partitions that are kept through the rebalance have to be committed after it
        except HeadraceError as error:
            self.write("trouble", type(error).__name__)
            return
        else:
            for (_, number), offset in self._finished.items():
                self.write("commit", number, offset)
        self._finished.clear()


with Path(LEDGER).open("a") as opened:
    Program(opened).run()
