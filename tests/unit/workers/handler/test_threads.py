"""The threads of handlers that are plain functions."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from headrace.workers.handler.threads import HandlerThreads

WAIT_S = 10.0


def test_threads_start_when_needed_up_to_the_limit() -> None:
    barrier = threading.Barrier(3)

    async def main() -> None:
        threads = HandlerThreads(3, "test")
        for _ in range(5):
            name = await threads.run(lambda: threading.current_thread().name)
            assert name == "test-1"
        await asyncio.gather(*(threads.run(lambda: barrier.wait(WAIT_S)) for _ in range(3)))
        threads.close()

    asyncio.run(main())


@pytest.mark.parametrize("raised", [ValueError("x"), StopIteration(), SystemExit(3)])
def test_an_exception_in_a_thread_is_raised_in_the_waiting_task(raised) -> None:
    def fail() -> None:
        raise raised

    async def main() -> None:
        threads = HandlerThreads(1, "test")
        expected = ValueError if isinstance(raised, ValueError) else RuntimeError
        with pytest.raises(expected):
            await threads.run(fail)
        assert await threads.run(lambda: 5) == 5
        threads.close()

    asyncio.run(main())


def test_a_function_sees_the_context_of_its_task() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def main() -> None:
        threads = HandlerThreads(1, "test")
        variable.set(7)
        assert await threads.run(variable.get) == 7
        threads.close()

    asyncio.run(main())


def test_a_thread_outlives_its_event_loop_without_an_error() -> None:
    release = threading.Event()

    def wait() -> None:
        release.wait(WAIT_S)

    async def main() -> None:
        threads = HandlerThreads(1, "outliving")
        waiting = asyncio.create_task(threads.run(wait))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        threads.close()

    asyncio.run(main())
    [thread] = [one for one in threading.enumerate() if one.name == "outliving-1"]
    assert thread.daemon
    release.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
