"""Compaction in a thread: one step at a time, pauses between steps, errors reach the broker."""

from __future__ import annotations

import asyncio
import threading

from headrace.server.threads.compactor import Compactor
from tests.unit.server.loops import on_loop


class FakeStep:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.gate = threading.Event()
        self.thread = ""

    def run(self) -> None:
        self.thread = threading.current_thread().name
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error


class FakeBroker:
    """A compaction with `steps` steps."""

    def __init__(self, steps: int, error: Exception | None = None) -> None:
        self.left = steps
        self.error = error
        self.started: list[FakeStep] = []
        self.finished: list[tuple[object, Exception | None, int]] = []

    @property
    def compaction_due(self) -> bool:
        return self.left > 0 and len(self.started) == len(self.finished)

    def start_compaction(self) -> FakeStep | None:
        if not self.compaction_due:
            return None
        self.left -= 1
        self.started.append(FakeStep(self.error))
        return self.started[-1]

    def finish_compaction(self, task: object, error: Exception | None, now_ms: int) -> None:
        self.finished.append((task, error, now_ms))


class Setup:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.compactor = Compactor(loop, broker, lambda: 42, after=self.changed.set)

    async def step_done(self) -> None:
        async with asyncio.timeout(10):
            await self.changed.wait()
            self.changed.clear()

    async def started(self, count: int) -> FakeStep:
        async with asyncio.timeout(10):
            while len(self.broker.started) < count:  # noqa: ASYNC110 - a pause is a timer of its own
                await asyncio.sleep(0.001)
        return self.broker.started[-1]


@on_loop
async def test_steps_run_in_a_thread_one_after_the_other() -> None:
    setup = Setup(FakeBroker(3))
    for number in range(1, 4):
        setup.compactor.kick()
        step = await setup.started(number)
        setup.compactor.kick()  # no second step while one runs
        assert len(setup.broker.started) == number
        step.gate.set()
        await setup.step_done()
        assert setup.broker.finished[-1] == (step, None, 42)
        assert step.thread.startswith("headrace-compact")
    setup.compactor.kick()
    assert len(setup.broker.started) == 3
    setup.compactor.close()


@on_loop
async def test_an_error_reaches_the_broker() -> None:
    error = OSError(5, "made up")
    setup = Setup(FakeBroker(1, error))
    setup.compactor.kick()
    (await setup.started(1)).gate.set()
    await setup.step_done()
    assert setup.broker.finished[0][1] is error
    setup.compactor.close()


@on_loop
async def test_close_waits_for_the_step_and_drops_its_result() -> None:
    setup = Setup(FakeBroker(5))
    setup.compactor.kick()
    (await setup.started(1)).gate.set()
    setup.compactor.close()
    setup.compactor.kick()
    await asyncio.sleep(0)
    assert setup.broker.finished == []
    assert len(setup.broker.started) == 1


@on_loop
async def test_no_compaction_starts_if_none_is_due() -> None:
    setup = Setup(FakeBroker(0))
    setup.compactor.kick()
    assert setup.broker.started == []
    setup.compactor.close()
