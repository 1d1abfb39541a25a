"""A machine with a broker, and the time: everything happens at a moment of one schedule, drawn from one seed.

The broker is the real one. Its disk loses what was not synced when the power fails; it may be killed, or lose its
power, in the middle of any operation on the disk. Group commits take time, and requests arrive meanwhile.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.broker.broker import Broker
from headrace.config.broker import BrokerConfig
from headrace.metadata_stores.memory import MemoryMetadataStore
from tests.fixtures.broker_harness import START_MS, CountingEntropy
from tests.fixtures.crash_files import CrashFileSystem, PowerCut

TRACE_KEPT = 20_000
RECOVERIES_CUT_SHORT = 0.15
"""How many starts after a fall end like the life before, in the middle or soon after."""

DOWN_MS = (0, 1, 20, 200, 700)


class ViolationError(AssertionError):
    """A promise was broken."""


class Schedule:
    """The coming events by time. Events of one moment come in the order in which they were scheduled."""

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
    """Keeps the last lines for a trace, and gives the broker's errors to the checker."""

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


class Machine:
    """The broker's machine. `broker` is None while it is down; `life` counts the broker's lives."""

    def __init__(
        self, chance: random.Random, options: dict[str, Any], sync_ms: int, codec_ms: int = 0
    ) -> None:
        self.schedule = Schedule()
        self.chance = chance
        self.lines: deque[str] = deque(maxlen=TRACE_KEPT)
        self.tracing = False
        self.journal = Journal(self.trace)
        self.life = 0
        self.broker: Broker | None = None
        self.after_step: Callable[[Broker], None] = lambda _broker: None
        """Called when the broker has come to rest, whatever it did."""
        self.after_start: Callable[[Broker], None] = lambda _broker: None
        self.after_fall: Callable[[], None] = lambda: None
        self._files = CrashFileSystem()
        self._metadata = MemoryMetadataStore()
        self._entropy = CountingEntropy()
        self._config = BrokerConfig(**options)
        self.sync_ms = sync_ms
        """How long a group commit may take."""
        self.codec_ms = codec_ms
        """How long a thread may take to compress a batch; 0 when the broker has no threads."""
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
        """Open a broker over what is on the disk; the power may fail in the middle of that."""
        self.life += 1
        self.trace(f"broker: starts for the {self.life}. time")
        broker = Broker(
            self._config,
            files=self._files,
            metadata=self._metadata,
            entropy=self._entropy,
            journal=self.journal,
        )
        self.broker = broker
        self._tick_at_ms = 0
        if self._stumbles:
            operations = self.chance.randint(1, 30)
            self.light_fuse(cut_power=self._cut_power, operations=operations)

        def opened() -> None:
            broker.open(self.now_ms)
            if self.codec_ms:
                recompressions = broker.services.recompressions
                recompressions.run_aside = self._run_aside
                recompressions.small_bytes = recompressions.at_once = -1
            self.after_start(broker)

        self.step(opened)

    def light_fuse(self, *, cut_power: bool, operations: int) -> None:
        """Have the broker end at a coming operation on its disk, and the power with it, or not."""
        self._cut_power = cut_power
        self._files.fuse = self._files.operations + operations

    def fall(self, *, cut_power: bool) -> None:
        """End the broker now."""
        self._cut_power = cut_power
        self._fallen()

    def calm(self) -> None:
        """Let it be from now on: the broker starts, if it is down, and stays."""
        self.sync_ms = 1
        self.codec_ms = min(self.codec_ms, 1)
        self._files.fuse = None
        self._stumbles = False

    def _fallen(self) -> None:
        self.trace("the power fails" if self._cut_power else "the broker is killed")
        self.broker = None
        if self._cut_power:
            self._files = self._files.after_power_cut(self.chance.randrange(1 << 30))
        self._files.fuse = None
        self.after_fall()
        self._stumbles = self.chance.random() < RECOVERIES_CUT_SHORT
        down_ms = self.chance.choice(DOWN_MS)
        self.schedule.at(self.now_ms + down_ms, self.start)

    # Steps

    def step(self, what: Callable[[], object]) -> None:
        """Let the broker do something, unless it is down; then see what follows from it."""
        broker = self.broker
        if broker is None:
            return
        try:
            what()
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
        """Do some work as a thread does, some time later, while the broker goes on."""
        life, broker = self.life, self.broker
        assert broker is not None

        def tell() -> None:
            done(work())
            broker.tick(self.now_ms)

        def finish() -> None:
            if self.life == life and self.broker is not None:
                self.step(tell)

        self.schedule.at(self.now_ms + self.chance.randint(0, self.codec_ms), finish)

    def _ticker(self, at_ms: int, life: int) -> Callable[[], None]:
        def tick() -> None:
            broker = self.broker
            if broker is not None and (self.life, self._tick_at_ms) == (life, at_ms):
                self._tick_at_ms = 0
                self.step(lambda: broker.tick(self.now_ms))

        return tick
