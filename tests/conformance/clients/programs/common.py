"""Shared code of the client programs: JSON lines in and out, and the loop of commands.

A program is started with the bootstrap address. Commands, one JSON object a line on standard input:

* `{"do": "create", "topic", "partitions"}` -> `created`
* `{"do": "produce", "topic", "partitions", "codec", "idempotent", "first", "count", "acks"}` ->
  `produced` with `records`: [n, partition, offset] for each acknowledged record n
* `{"do": "consume", "topic", "partitions", "count"}` -> `consumed` with `records`:
  [partition, offset, key, value, headers, timestamp], read from the start
* `{"do": "member", "name", "group", "topic"}` -> a stream of `assigned`, `revoked`, `records`, `committed`,
  `commit_failed`, until `{"do": "leave"}` -> `left`

The end of the input ends the program. Record n has key `n`, a header `n`, timestamp `BASE_TIMESTAMP + n`, and goes to
partition n modulo partitions; its value is `value_of(n)`.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

BASE_TIMESTAMP = 1_600_000_000_000
SESSION_TIMEOUT_MS = 2000
HEARTBEAT_MS = 300
POLL_S = 0.1
Command = dict[str, Any]


def value_of(number: int) -> str:
    """Return the value of record n, which is long enough for compression."""
    return f"{number}|" + "abcdefgh" * 12


def emit(event: str, **fields: object) -> None:
    """Write an event for the test to standard output."""
    line = {"event": event, "at_ns": time.monotonic_ns(), **fields}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Commands:
    """Commands from standard input, without blocking the client's own loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._queue.put(json.loads(line))
        self._queue.put(None)

    def next(self) -> Command | None:
        """Return the next command; None at the end of the input."""
        return self._queue.get()

    def leave_asked(self) -> bool:
        """Return whether the test sent `leave`, or has ended."""
        try:
            command = self._queue.get_nowait()
        except queue.Empty:
            return False
        return command is None or command["do"] == "leave"


def run(commands: Commands, actions: dict[str, Callable[[Command], None]]) -> None:
    """Run commands until the input ends. An exception becomes an event `error`."""
    while (command := commands.next()) is not None:
        try:
            actions[command["do"]](command)
        except Exception as error:  # noqa: BLE001  # whatever the client raises, the test shall show it
            emit("error", message=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
