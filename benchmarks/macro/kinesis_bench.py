"""Provide what the scenarios of the Kinesis comparison use: a fake of AWS in its own process, streams, consumers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import botocore.session

from benchmarks.macro import kinesis_programs
from benchmarks.macro.kinesis_programs import HEADRACE, Settings

REGION: Final = "eu-central-1"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
"""Credentials for the fake, which accepts any."""
PROGRAM: Final = Path(kinesis_programs.__file__)
SERVER: Final = Path(__file__).with_name("kinesis_server.py")
MOST_AT_ONCE: Final = 500
"""The number of records in one PutRecords request."""
MOST_BYTES: Final = 4 << 20
_LOOK_EVERY_S: Final = 0.05


class Event(NamedTuple):
    """A record that a handler received."""

    at_s: float
    """The monotonic time in seconds."""
    pid: int
    text: str


class Aws:
    """The fake of AWS, with clients for it."""

    def __init__(self, *, limits: bool) -> None:
        """Start the fake; `limits` says whether it throttles as AWS does."""
        environment = {**os.environ, **KEYS}
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), "limits" if limits else "none"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()
        session = botocore.session.get_session()
        session.set_credentials("bench", "bench")
        self.kinesis: Any = session.create_client(
            "kinesis", region_name=REGION, endpoint_url=self.endpoint
        )

    def create(self, stream: str, shards: int) -> str:
        """Create a stream, and return its name when it is active."""
        self.kinesis.create_stream(StreamName=stream, ShardCount=shards)
        self.kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
        return stream

    def _ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def calls(self) -> Counter[str]:
        """Return the number of calls of each operation so far, by service and operation."""
        return Counter(self._ask(do="calls"))

    def fail(self, operation: str, times: int) -> None:
        """Throttle the next calls of an operation."""
        self._ask(do="fail", operation=operation, times=times)

    def close(self) -> None:
        """End the process of the fake."""
        self._process.kill()
        self._process.communicate()


class Bench:
    """One stream, its producer, and consumers of one library."""

    def __init__(
        self, aws: Aws, library: str, python: str, shards: int, names: Iterator[int]
    ) -> None:
        self.aws, self.library, self._python = aws, library, python
        self.stream = aws.create(f"bench-{next(names)}", shards)
        self.keys = [self._middle(shard) for shard in self.shards()]
        self._directory = tempfile.TemporaryDirectory(prefix="headrace-bench-")
        self.output = Path(self._directory.name) / "handled"
        self.output.touch()
        self.errors = (Path(self._directory.name) / "errors").open("w+")
        self._numbers = count()
        self.sent: dict[str, float] = {}
        self.consumers: list[subprocess.Popen[str]] = []

    # The stream

    def shards(self) -> list[dict[str, Any]]:
        """Return the open shards of the stream."""
        listed = self.aws.kinesis.list_shards(StreamName=self.stream)["Shards"]
        return [one for one in listed if "EndingSequenceNumber" not in one["SequenceNumberRange"]]

    @staticmethod
    def _middle(shard: Mapping[str, Any]) -> str:
        ends = shard["HashKeyRange"]
        return str((int(ends["StartingHashKey"]) + int(ends["EndingHashKey"])) // 2)

    def put(self, records: int, key: int | None = None, size: int = 0) -> None:
        """Put records into the first shards in turn, or into one of them."""
        while records:
            batch = min(records, MOST_AT_ONCE, MOST_BYTES // max(1, size))
            records -= batch
            self._put([next(self._numbers) for _ in range(batch)], key, size)

    def _put(self, numbers: list[int], key: int | None, size: int) -> None:
        entries = []
        for number in numbers:
            shard = number % len(self.keys) if key is None else key
            text = f"{shard}:{number}".ljust(size, ".")
            self.sent[text] = time.monotonic()
            entry = {"Data": text.encode(), "PartitionKey": str(shard)}
            entries.append({**entry, "ExplicitHashKey": self.keys[shard]})
        while entries:
            answer = self.aws.kinesis.put_records(StreamName=self.stream, Records=entries)
            outcomes = zip(entries, answer["Records"], strict=True)
            entries = [entry for entry, outcome in outcomes if "ErrorCode" in outcome]

    @contextmanager
    def steady(self, rate: int, keys: int | None = None) -> Iterator[None]:
        """Put records at a rate during the block, into the first shards in turn; `None` means all shards."""
        ended = threading.Event()

        def put() -> None:
            due = time.monotonic()
            while not ended.wait(max(0.0, due - time.monotonic())):
                due += 0.1
                for key in range(keys or len(self.keys)):
                    self.put(max(1, rate // 10 // (keys or len(self.keys))), key)

        thread = threading.Thread(target=put)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # Consumers

    def start(self, **settings: Any) -> subprocess.Popen[str]:
        """Start a consumer in its own process."""
        told = Settings(self.stream, self.aws.endpoint, REGION, str(self.output), **settings)
        python = sys.executable if self.library == HEADRACE else self._python
        process = subprocess.Popen(
            [python, str(PROGRAM), self.library, json.dumps(asdict(told))],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **KEYS, "AWS_DEFAULT_REGION": REGION},
        )
        self.consumers.append(process)
        return process

    def events(self) -> list[Event]:
        """Return the records that were handled so far."""
        events = []
        for line in self.output.read_text().splitlines():
            at_ns, pid, text = line.split(" ", 2)
            events.append(Event(int(at_ns) / 1e9, int(pid), text))
        return events

    def wait(self, done: Callable[[list[Event]], bool], timeout_s: float) -> float | None:
        """Wait until a condition on the handled records is true; return the seconds, or None after the time-out."""
        begun = time.monotonic()
        while time.monotonic() - begun < timeout_s:
            if done(self.events()):
                return time.monotonic() - begun
            time.sleep(_LOOK_EVERY_S)
        return None

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait until all sent records are handled, at most `timeout_s`."""
        self.wait(lambda events: {event.text for event in events} >= self.sent.keys(), timeout_s)

    def losses(self) -> int:
        """Return how many records were never handled."""
        return len(self.sent.keys() - {event.text for event in self.events()})

    def duplicates(self) -> int:
        """Return how many records were handled more than once."""
        return sum(times > 1 for times in Counter(event.text for event in self.events()).values())

    def close(self) -> None:
        """End all consumers of the stream."""
        for process in self.consumers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.consumers:
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self.errors.close()
        self._directory.cleanup()
