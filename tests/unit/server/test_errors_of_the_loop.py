"""Errors of asyncio are logged, but not so often that they fill the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.config.broker import parse_broker_config
from headrace.server.process import ServeOptions, _Process


@pytest.mark.parametrize("count", [1, 1_000])
def test_errors_of_the_loop_are_logged_within_a_limit(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing callback of a socket runs in every iteration of the event loop."""
    options = ServeOptions(listeners=(), data=(Path(),), config=parse_broker_config({}))
    process = _Process(options, [])
    loop = asyncio.new_event_loop()
    for _ in range(count):
        process._loop_exception(loop, {"message": "failed", "exception": IndexError("why")})
    loop.close()
    lines = [record for record in caplog.records if record.message == "loop_error"]
    assert 1 <= len(lines) <= min(count, 50)
