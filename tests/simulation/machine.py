"""The machine of a simulation: the broker, its disk, and the schedule of all events, which the seed determines.

The broker is the real one. A power cut loses what its disk has not synced. The broker can be killed, or the power can
fail, in the middle of any disk operation. Group commits take time, and requests arrive meanwhile.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from headrace.broker.broker import Broker
from headrace.broker.coordinators import loading
from headrace.broker.waiting.steps import STEP_COST
from headrace.config.broker import BrokerConfig
from headrace.metadata_stores.memory import MemoryMetadataStore
from tests.fixtures.broker_harness import START_MS, CountingEntropy
from tests.fixtures.crash_files import CrashFileSystem, PowerCut

TRACE_KEPT = 20_000
RECOVERIES_CUT_SHORT = 0.15
"""The share of restarts that fail in the same way as the broker before, during or soon after the start."""

DOWN_MS = (0, 1, 20, 200, 700)


class ViolationError(AssertionError):
    """An invariant is violated."""


class Schedule:
    """Future events by time. Events with the same time run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.events = 0
        self._due: list[tuple[int, int, Callable[[], object]]] = []

    def at(self, when_ms: int, what: Callable[[], object]) -> None:
        self.events += 1
        heapq.heappush(self._due, (max(when_ms, self.now_ms), self.events, what))

    def run_until(self, end_ms: int) -> None:
        due = self._due
        while due and due[0][0] <= end_ms:
            self.now_ms, _, what = heapq.heappop(due)
            what()
        self.now_ms = end_ms


class Journal:
    """Writes the broker's log lines to the trace, and keeps its errors for the checker."""

    def __init__(self, trace: Callable[[str], None]) -> None:
        self._trace = trace
        self.errors: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self._trace(f"broker: {event} {fields}")

    def warning(self, event: str, **fields: object) -> None:
        self._trace(f"broker: warning {event} {fields}")

    def error(self, event: str, **fields: object) -> None:
        self.errors.append(f"{event} {fields}")
        self._trace(f"broker: error {event} {fields}")


@contextmanager
def _loading_in_steps() -> Iterator[None]:
    """Let a broker load nothing before it handles requests, and little in a step."""
    with (
        mock.patch.object(loading, "LOADED_AT_START", 0),
        mock.patch.object(loading, "PAUSE_COST", STEP_COST),
    ):
        yield


class Machine:
    """The machine of the broker. `broker` is None while it is down; `life` counts the starts of the broker."""

    def __init__(
        self,
        chance: random.Random,
        options: dict[str, Any],
        sync_ms: int,
        codec_ms: int = 0,
        *,
        loads_in_steps: bool = False,
    ) -> None:
        self.schedule = Schedule()
        self.chance = chance
        self.lines: deque[str] = deque(maxlen=TRACE_KEPT)
        self.tracing = False
        self.journal = Journal(self.trace)
        self.life = 0
        self.broker: Broker | None = None
        self.after_step: Callable[[Broker], None] = lambda _broker: None
        """Called after every step of the broker."""
        self.after_start: Callable[[Broker], None] = lambda _broker: None
        self.after_fall: Callable[[], None] = lambda: None
        self._files = CrashFileSystem()
        self._metadata = MemoryMetadataStore()
        self._entropy = CountingEntropy()
        self._config = BrokerConfig(**options)
        self.sync_ms = sync_ms
        """The longest time of a group commit, in milliseconds."""
        self.codec_ms = codec_ms
        """The longest time in which a thread compresses a batch, in milliseconds; 0 if the broker has no threads."""
        self._loads_in_steps = loads_in_steps
        """Whether the broker handles requests while it loads the coordinators."""
        self._cut_power = False
        self._stumbles = False
        self._tick_at_ms = 0
        self.start()

    @property
    def now_ms(self) -> int:
        return self.schedule.now_ms

    def trace(self, line: str) -> None:
        if self.tracing:
            self.lines.append(f"{self.now_ms - START_MS:6} {line}")

    # Lives

    def start(self) -> None:
        """Start a broker with the content of the disk. The power may fail during the start."""
        self.life += 1
        self.trace(f"broker: start {self.life}")
        self._tick_at_ms = 0
        if self._stumbles:
            operations = self.chance.randint(1, 30)
            self.schedule_failure(cut_power=self._cut_power, operations=operations)

        try:
            self.broker = broker = Broker(
                self._config,
                files=self._files,
                metadata=self._metadata,
                entropy=self._entropy,
                journal=self.journal,
            )
        except PowerCut:
            self._fallen()
            return

        def opened() -> None:
            broker.open(self.now_ms)
            if self.codec_ms:
                recompressions = broker.services.recompressions
                recompressions.run_aside = self._run_aside
                recompressions.small_bytes = recompressions.at_once = -1
            self.after_start(broker)

        self._run(opened)

    def schedule_failure(self, *, cut_power: bool, operations: int) -> None:
        """End the broker at a later disk operation, with or without a power cut."""
        self._cut_power = cut_power
        self._files.fuse = self._files.operations + operations

    def fall(self, *, cut_power: bool) -> None:
        """End the broker now, with or without a power cut."""
        self._cut_power = cut_power
        self._fallen()

    def calm(self) -> None:
        """End the faults: start the broker if it is down, and keep it running."""
        self.sync_ms = 1
        self.codec_ms = min(self.codec_ms, 1)
        self._files.fuse = None
        self._stumbles = False

    def _fallen(self) -> None:
        self.trace("the power fails" if self._cut_power else "the broker is killed")
        self.broker = None
        self._metadata.close()
        if self._cut_power:
            self._files = self._files.after_power_cut(self.chance.randrange(1 << 30))
        self._files.fuse = None
        self.after_fall()
        self._stumbles = self.chance.random() < RECOVERIES_CUT_SHORT
        down_ms = self.chance.choice(DOWN_MS)
        self.schedule.at(self.now_ms + down_ms, self.start)

    # Steps

    def step(self, what: Callable[[], object]) -> None:
        """Run a step of the broker, unless the broker is down, and schedule what follows from the step."""
        if self.broker is not None:
            self._run(what)

    def _run(self, what: Callable[[], object]) -> None:
        try:
            with _loading_in_steps() if self._loads_in_steps else nullcontext():
                what()
            broker = self.broker
            assert broker is not None
            self._follow(broker)
        except PowerCut:
            self._fallen()
            return
        self.after_step(broker)

    def _follow(self, broker: Broker) -> None:
        if (batch := broker.start_sync()) is not None:
            life = self.life

            def synced() -> None:
                if self.life == life and self.broker is not None:
                    self.step(finish)

            def finish() -> None:
                failure = None
                try:
                    batch.run()
                except OSError as error:
                    failure = error
                broker.finish_sync(batch, failure, self.now_ms)

            self.schedule.at(self.now_ms + self.chance.randint(0, self.sync_ms), synced)
        if broker.compaction_due and (task := broker.start_compaction()) is not None:
            task.run()
            broker.finish_compaction(task, None, self.now_ms)
        due_ms = broker.next_deadline_ms
        if due_ms is not None and (self._tick_at_ms <= self.now_ms or due_ms < self._tick_at_ms):
            self._tick_at_ms = max(due_ms, self.now_ms + 1)
            self.schedule.at(self._tick_at_ms, self._ticker(self._tick_at_ms, self.life))

    def _run_aside(self, work: Callable[[], Any], done: Callable[[Any], object]) -> None:
        """Run work of a thread some time later. The broker continues meanwhile."""
        life, broker = self.life, self.broker
        assert broker is not None

        def complete() -> None:
            done(work())
            broker.tick(self.now_ms)

        def finish() -> None:
            if self.life == life and self.broker is not None:
                self.step(complete)

        self.schedule.at(self.now_ms + self.chance.randint(0, self.codec_ms), finish)

    def _ticker(self, at_ms: int, life: int) -> Callable[[], None]:
        def tick() -> None:
            broker = self.broker
            if broker is not None and (self.life, self._tick_at_ms) == (life, at_ms):
                self._tick_at_ms = 0
                self.step(lambda: broker.tick(self.now_ms))

        return tick
