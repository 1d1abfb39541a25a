"""The programs of docs/guides/clients.md run, and the page has every field of a record."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "clients.md"
TEXT = PAGE.read_text()


def test_the_first_program_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    section = TEXT.partition("## Write and read")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {"__name__": "orders"}
    exec(compile(program, "docs/guides/clients.md", "exec", dont_inherit=True), names)
    names["broker"].close()
    assert capsys.readouterr().out == "0\n[1, 2, 3]\n"


def test_a_callback_that_takes_the_lock_of_send_deadlocks_unless_it_is_an_rlock() -> None:
    assert "`with lock: producer.send(...)`" in TEXT
    with headrace.Broker() as broker, headrace.Producer(broker, linger_ms=0) as producer:
        broker.create_topic("t", 1)
        for make, got_it in ((threading.Lock, False), (threading.RLock, True)):
            lock: Any = make()
            outcomes: list[bool] = []

            def called(_: Any, lock: Any = lock, outcomes: list[bool] = outcomes) -> None:
                outcomes.append(lock.acquire(timeout=0.01))

            with lock:
                while not outcomes:
                    producer.send("t", b"x", on_delivery=called)
            assert outcomes[0] is got_it
            producer.flush()


def test_the_program_with_records_prints_what_the_page_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = TEXT.partition("## Records and their types")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(
        compile(program, "docs/guides/clients.md", "exec", dont_inherit=True),
        {"__name__": "orders"},
    )
    assert capsys.readouterr().out.strip() == program.partition("it printed: ")[2].strip()


def test_the_page_names_every_field_of_a_record() -> None:
    section = TEXT.partition("## Records and their types")[2].partition("\n## ")[0]
    named = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    )
    has = {name for name in vars(headrace.ConsumerRecord) if not name.startswith("_")}
    assert named == has - {"decoded_bytes"}
