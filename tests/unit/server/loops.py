"""Coroutine tests without a plugin, on both event loops that a server may run on."""

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
    """Run a coroutine test on a loop of its own, once for each kind of loop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        for factory in _FACTORIES:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(test(*args, **kwargs))

    return run
