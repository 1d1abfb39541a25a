"""The threads of handlers that are plain functions."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from headrace.workers.threads import HandlerThreads

WAIT_S = 10.0


def test_as_many_run_at_once_as_are_asked_for_and_no_more_threads_are_started_than_needed() -> None:
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
def test_what_a_function_raises_is_raised_to_who_waits_and_ends_no_loop(raised) -> None:
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


def test_a_loop_that_ends_first_is_no_harm() -> None:
    release = threading.Event()

    def wait() -> None:
        release.wait(WAIT_S)

    async def main() -> None:
        threads = HandlerThreads(1, "test")
        waiting = asyncio.create_task(threads.run(wait))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        threads.close()

    asyncio.run(main())
    [thread] = [one for one in threading.enumerate() if one.name == "test-1"]
    assert thread.daemon
    release.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
