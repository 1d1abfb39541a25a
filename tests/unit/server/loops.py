"""Coroutine tests without a plugin, on both kinds of event loop that a server can use."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

_FACTORIES: list[Callable[[], asyncio.AbstractEventLoop]] = [
    asyncio.new_event_loop,
    uvloop.new_event_loop,
]


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine test on a new event loop, once for each kind of loop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        for factory in _FACTORIES:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(test(*args, **kwargs))

    return run
