"""The progress of long work, which is shown on a terminal only."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.output import progress as progress_module
from headrace.cli.output.progress import Progress, size_text
from headrace.testing import Broker

pytestmark = pytest.mark.slow  # not in `make check`

TIMEOUT_S = 60
RECORDS = 300


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t", partitions=1)
        yield running


def headrace(broker: Broker, *arguments: str, given: Path, out: Path) -> str:
    """Run a command with files for its input and output and a terminal for errors; return what the terminal got."""
    master, slave = pty.openpty()
    code = "import headrace.cli.output.progress as p; p.EVERY_S = 0; from headrace.cli import main; main()"
    with given.open("rb") as read, out.open("wb") as write:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdin=read,
            stdout=write,
            stderr=slave,
            env={**os.environ, "HEADRACE_BOOTSTRAP": broker.bootstrap},
            timeout=TIMEOUT_S,
            check=True,
        )
    os.close(slave)
    seen = b""
    try:
        while piece := os.read(master, 65_536):
            seen += piece
    except OSError:
        pass  # the other end is closed
    os.close(master)
    assert done.returncode == 0
    return seen.decode()


def test_an_import_and_an_export(broker: Broker, tmp_path: Path) -> None:
    lines, out = tmp_path / "lines", tmp_path / "out"
    lines.write_text("a line\n" * RECORDS)
    seen = headrace(broker, "produce", "t", given=lines, out=out)
    assert f"{RECORDS} records written, 2.1 kB, 100% of the input, " in seen
    assert len(out.read_text().splitlines()) == RECORDS
    seen = headrace(broker, "consume", "t", "-e", "-f", "%v\\n", given=lines, out=out)
    assert re.search(rf"{RECORDS} records read, 2\.1 kB, [\d,]+ records/s, \d+ s\r?\n$", seen)
    assert out.read_text() == lines.read_text()
    for command in (("produce", "t"), ("consume", "t", "-e")):
        assert headrace(broker, *command, "--quiet", given=lines, out=out) == ""


def test_dead_letters_that_are_sent_back(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("dlq.t")
    for _ in range(100):
        broker.publish("dlq.t", b"x")
    (tmp_path / "none").touch()
    arguments = ("dlq", "redrive", "t", "--to", "t", "--dry-run")
    seen = headrace(broker, *arguments, given=tmp_path / "none", out=tmp_path / "out")
    assert "100 records looked at" in seen
    seen = headrace(broker, *arguments, "-q", given=tmp_path / "none", out=tmp_path / "out")
    assert "looked at" not in seen


def test_no_progress_is_drawn_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "EVERY_S", 0)
    with Progress("read") as progress:
        progress.add(1000, 10)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_module, "is_terminal", lambda _stream: True)
    with Progress("read", wanted=False) as progress:
        progress.add(1000, 10)
    assert capsys.readouterr().err == ""
    with Progress("read") as progress:
        progress.add(1000, 10)
    assert "1,000 records read, 10 B" in capsys.readouterr().err


def test_short_work_draws_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "is_terminal", lambda _stream: True)
    monkeypatch.setattr(progress_module, "EVERY_S", 3600)
    with Progress("read") as progress:
        progress.add(1000, 10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e15, "2500.0 TB")]
)
def test_sizes_are_printed_with_units(size: float, text: str) -> None:
    assert size_text(size) == text
