"""Work in a thread beside the event loop: run in the thread, finished on the event loop."""

from __future__ import annotations

import asyncio
import threading

from headrace.server.threads.aside import Aside
from tests.unit.server.loops import on_loop


@on_loop
async def test_work_is_done_in_a_thread_and_finished_on_the_loop():
    loop = asyncio.get_running_loop()
    happened: list[object] = []
    aside = Aside(loop, lambda: happened.append("before"), lambda: happened.append("after"))
    done = loop.create_future()

    def finish(result):
        happened.append(threading.current_thread() is threading.main_thread())
        done.set_result(result)

    aside.run(threading.current_thread, finish)
    assert happened == []
    worker = await asyncio.wait_for(done, 10)
    assert worker is not threading.main_thread()
    assert happened == ["before", True, "after"]
    aside.close()


@on_loop
async def test_close_drops_work_that_has_not_begun():
    loop = asyncio.get_running_loop()
    finished: list[object] = []
    aside = Aside(loop, lambda: None, lambda: None)
    gate, began = threading.Event(), threading.Barrier(3)

    def wait():
        began.wait(10)
        gate.wait(10)

    for _ in range(2):
        aside.run(wait, finished.append)
    aside.run(lambda: finished.append("late"), finished.append)
    began.wait(10)
    assert aside.busy
    aside.close()
    gate.set()
    async with asyncio.timeout(10):
        while len(finished) < 2:  # noqa: ASYNC110 - threads notify no future
            await asyncio.sleep(0.01)
    assert finished == [None, None]
    assert not aside.busy


@on_loop
async def test_cancelled_work_is_not_begun_and_not_reported():
    loop = asyncio.get_running_loop()
    happened: list[object] = []
    finished = asyncio.Event()
    aside = Aside(loop, lambda: None, lambda: None)
    gate, began = threading.Event(), threading.Barrier(3)

    def wait():
        began.wait(10)
        gate.wait(10)

    for _ in range(2):
        aside.run(wait, happened.append)
    give_up = aside.run(lambda: happened.append("begun"), happened.append)
    aside.run(lambda: "last", lambda _: finished.set())
    began.wait(10)
    give_up()
    await asyncio.sleep(0)  # the thread pool learns of it in the next iteration of the event loop
    gate.set()
    async with asyncio.timeout(10):
        await finished.wait()
    assert "begun" not in happened
    aside.close()
