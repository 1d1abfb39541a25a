"""The programs in the guides to workers and their examples run, with the results that the pages show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from headrace.dead_letters import letter_headers
from headrace.workers.monitoring.counters import Counters

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
NAMES = ("workers", "dead-letters", "exactly-once", "duplicates")
PAGES = {name: (GUIDES / f"{name}.md").read_text() for name in NAMES}
TEXT = "".join(PAGES.values())


def test_the_programs_of_the_pages_run() -> None:
    app, test, once, seen = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    apart: dict[str, Any] = {"__name__": "billing"}
    exec(compile(app + once + seen, "docs/guides", "exec"), apart)
    assert list(apart["app"].counters) == ["bill", "bill-2", "bill-3"]
    names: dict[str, object] = {"__name__": "billing"}
    exec(compile(app, "docs/guides/workers.md", "exec"), names)
    exec(compile(test, "docs/guides/workers.md", "exec"), names)
    function = names["test_negative_orders_are_dead_letters"]
    assert callable(function)
    function()


def test_the_pages_name_every_counter_and_header() -> None:
    for name in [
        *Counters().as_dict(),
        letter_headers.ERROR_TYPE,
        letter_headers.ERROR_MESSAGE,
        letter_headers.ATTEMPTS,
        letter_headers.TRACEBACK,
        letter_headers.LEFT_OUT,
    ]:
        assert f"`{name}`" in TEXT
    assert f"`{letter_headers.GROUP}`" in TEXT
    assert f"`{letter_headers.LETTER}topic`" in TEXT


def test_the_example_shows_each_step() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/billing.py"], capture_output=True, text=True, check=True
    )
    assert '{"order":1,"customer":"bob","euros":18.0}' in done.stdout
    assert "SerializationError not even JSON" in done.stdout
    assert 'DeadLetter {"id":2' in done.stdout
    assert "revenue: {'alice': 12.5, 'bob': 18.0}" in done.stdout
    assert "failed in attempt 1 with" in done.stderr


def test_the_exactly_once_example_writes_both_bookings_of_each_transfer() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/exactly_once.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    bookings = [line for line in done.stdout.splitlines() if line.startswith("booking:")]
    assert len(bookings) == 6
    assert "attempts: [1, 2, 2, 3]" in done.stdout
    assert "balance: {'bookings': 6, 'moved': 4200, 'sum': 0}" in done.stdout
    assert "failed in attempt 1 with" in done.stderr
