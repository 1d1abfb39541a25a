"""Small parts of the server: clock, timer, memory budget, log lines, addresses."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from headrace.clock import SteadyClock
from headrace.config.listeners import ListenAddress
from headrace.errors import ConfigError
from headrace.server.connections.budget import MemoryBudget
from headrace.server.listen import bind
from headrace.server.log import LoggingJournal, RateLimited, configure_logging
from headrace.server.timers import BrokerTimer
from tests.unit.server.fakes import RecordingJournal
from tests.unit.server.loops import on_loop

SECOND_NS = 1_000_000_000


class Times:
    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * SECOND_NS
        self.monotonic_ns = 5 * SECOND_NS

    def advance(self, nanoseconds: int) -> None:
        self.wall_ns += nanoseconds
        self.monotonic_ns += nanoseconds

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall_ns, lambda: self.monotonic_ns)


def test_the_clock_starts_at_wall_time_and_advances() -> None:
    times = Times()
    clock = times.clock()
    assert clock.now_ms() == 1_700_000_000_000
    times.advance(1_500_000)
    assert clock.now_ms() == 1_700_000_000_001


@pytest.mark.parametrize("jump_s", [-7200, 7200])
def test_a_jump_of_wall_time_is_caught_up_slowly(jump_s: int) -> None:
    times = Times()
    clock = times.clock()
    times.wall_ns += jump_s * SECOND_NS
    before = clock.now_ms()
    for _ in range(1000):
        times.advance(SECOND_NS)
        clock.slew()
        step = clock.now_ms() - before
        assert 950 <= step <= 1050
        before = clock.now_ms()
    remaining = clock.slew()
    assert abs(abs(remaining) - (7200 - 50) * 1000) <= 2
    times.advance(200_000 * SECOND_NS)
    assert clock.slew() == 0
    assert clock.now_ms() == times.wall_ns // 1_000_000


@on_loop
async def test_the_timer_fires_at_the_deadline_and_is_set_again() -> None:
    loop = asyncio.get_running_loop()
    deadlines = [20, 30]
    fired: list[int] = []
    done = asyncio.Event()
    began = loop.time()

    def now_ms() -> int:
        return int((loop.time() - began) * 1000)

    def tick() -> None:
        fired.append(now_ms())
        while deadlines and deadlines[0] <= now_ms():
            deadlines.pop(0)
        if not deadlines:
            done.set()

    timer = BrokerTimer(loop, now_ms, lambda: deadlines[0] if deadlines else None, tick)
    timer.arm()
    async with asyncio.timeout(10):
        await done.wait()
    assert 1 <= len(fired) <= 2
    assert fired[0] >= 20


@on_loop
async def test_a_cancelled_timer_stays_quiet() -> None:
    ticks: list[int] = []
    timer = BrokerTimer(asyncio.get_running_loop(), lambda: 0, lambda: 0, lambda: ticks.append(1))
    timer.arm()
    timer.cancel()
    timer.arm()
    await asyncio.sleep(0.01)
    assert not ticks


class BudgetUser:
    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.held = 0
        self.wanted = 0

    def take(self, count: int) -> bool:
        self.wanted = 0
        if self.budget.acquire(self, count):
            self.held += count
            return True
        self.wanted = count
        return False

    def memory_available(self) -> None:
        if self.wanted:
            self.take(self.wanted)

    def drop(self) -> None:
        held, self.held = self.held, 0
        self.budget.release(self, held)


def test_one_connection_at_a_time_may_exceed_the_budget() -> None:
    budget = MemoryBudget(100)
    first, second, third = (BudgetUser(budget) for _ in range(3))
    assert first.take(60)
    assert second.take(60)  # the overdraft
    assert second.take(60)  # and more of it, up to its complete request
    assert not third.take(50)
    assert not first.take(1)
    assert budget.contended
    second.drop()
    assert third.held == 50
    first.wanted = 0
    first.drop()
    third.drop()
    assert budget.used == 0


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    stream = io.StringIO()
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising


def test_text_lines_cannot_be_forged(log_stream: io.StringIO) -> None:
    configure_logging("info", "text", log_stream)
    LoggingJournal().warning("event", plain="a-b.c", count=3, hostile="x\n2026 ERROR forged=1")
    (line,) = log_stream.getvalue().splitlines()
    assert line.endswith("WARNING event plain=a-b.c count=3 hostile='x\\n2026 ERROR forged=1'")


def test_errors_carry_the_traceback(log_stream: io.StringIO) -> None:
    configure_logging("info", "text", log_stream)
    try:
        int("no number")
    except ValueError:
        LoggingJournal().error("event")
    assert "ValueError: invalid literal" in log_stream.getvalue()
    assert "Traceback" in log_stream.getvalue()


def test_events_are_logged_as_json_lines_from_the_configured_level(log_stream: io.StringIO) -> None:
    configure_logging("warning", "json", log_stream)
    LoggingJournal().info("hidden")
    LoggingJournal().warning("event", text="a\nb", count=3)
    line = json.loads(log_stream.getvalue())
    assert (line["event"], line["text"], line["count"], line["level"]) == (
        "event",
        "a\nb",
        3,
        "warning",
    )


def test_a_flood_of_one_event_is_cut_and_counted() -> None:
    now_ms = 0
    journal = RecordingJournal()
    limited = RateLimited(journal, lambda: now_ms, burst=5, window_ms=1000)
    for _ in range(100):
        limited.warning("flood")
    limited.warning("other")
    assert [event for event, _ in journal.lines] == ["flood"] * 5 + ["other"]
    now_ms = 1000
    limited.warning("flood")
    assert journal.lines[-2:] == [("lines_suppressed", {"of": "flood", "count": 95}), ("flood", {})]


def test_a_flood_that_has_ended_is_counted_too_and_once() -> None:
    now_ms = 0
    journal = RecordingJournal()
    limited = RateLimited(journal, lambda: now_ms, burst=1, window_ms=1000)
    limited.info("flood")
    limited.info("flood")
    now_ms = 999
    limited.report()
    assert journal.lines == [("flood", {})]
    now_ms = 1000
    limited.report()
    limited.report()
    assert journal.lines[1:] == [("lines_suppressed", {"of": "flood", "count": 1})]


def test_a_taken_port_is_named() -> None:
    (first,) = bind(ListenAddress("127.0.0.1", 0))
    with first:
        first.listen()
        with pytest.raises(ConfigError, match="another server has it"):
            bind(ListenAddress("127.0.0.1", first.getsockname()[1]))
