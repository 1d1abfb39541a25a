"""docs/security-walk.md is walked: its commands are run in order, by a shell of its own, and print what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.errors import ApiError, ErrorCode
from tests.fixtures.kafka import free_ports
from tests.fixtures.processes import READY_LINE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security-walk.md").read_text()
TIMEOUT_S = 120


@dataclass
class Step:
    """A command and what it prints, or a file or program and its text."""

    kind: str
    text: str
    name: str = ""
    shown: list[str] = field(default_factory=list)


def steps(page: str) -> Iterator[Step]:
    """The steps of the page, in order; a file is named in the text before its block."""
    for kind, text, before in _blocks(page):
        if kind != "console":
            [*_, name] = re.findall(r"`([\w.]+\.\w+)`", before) or [""]
            yield Step(kind, text, name)
            continue
        step: Step | None = None
        for line in text.splitlines():
            if line.startswith("$ "):
                if step is not None:
                    yield step
                step = Step(kind, line[2:])
            else:
                assert step is not None
                step.shown.append(line)
        assert step is not None
        yield step


def _blocks(page: str) -> Iterator[tuple[str, str, str]]:
    end = 0
    for match in re.finditer(r"```(\w+)\n(.*?)```", page, re.DOTALL):
        yield match[1], match[2], page[end : match.start()]
        end = match.end()


STEPS = list(steps(PAGE))


class Walk:
    """A directory, what was exported, and the broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_ports(1)[0]
        self.broker: subprocess.Popen[str] | None = None
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")
        } | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def here(self, text: str) -> str:
        """The one liberty: a port that is free."""
        return text.replace("9093", str(self.port))

    def take(self, step: Step) -> None:
        if step.kind == "properties":
            (self.directory / step.name).write_text(self.here(step.text))
        elif step.text.endswith("&"):
            self.serve(step)
        elif step.text.startswith("export "):
            name, value = step.text.removeprefix("export ").split("=")
            self.environment[name] = value
        else:
            self.run(step)

    def serve(self, step: Step) -> None:
        self.broker = subprocess.Popen(
            ["bash", "-c", f"umask 077; exec {step.text.removesuffix('&')}"],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.broker.stdout is not None
        line = self.broker.stdout.readline()
        log = (self.directory / "server.log").read_text()
        shown = READY_LINE.fullmatch(self.here(step.shown[0] + "\n").encode())
        printed = READY_LINE.fullmatch(line.encode())
        assert shown is not None
        assert printed is not None, f"{line}{log}"
        assert printed.groupdict() | {"pid": b""} == shown.groupdict() | {"pid": b""}

    def run(self, step: Step) -> None:
        done = subprocess.run(
            ["bash", "-uo", "pipefail", "-c", f"umask 077; {step.text}"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if step.text.startswith("openssl"):
            assert done.returncode == 0, done.stderr
            return
        shown = [self.here(line) for line in step.shown]
        assert (done.stdout + done.stderr).splitlines() == shown, step.text
        assert done.returncode == any(line.startswith("Error") for line in shown), step.text

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.send_signal(signal.SIGTERM)
            assert self.broker.wait(15) == 0
            assert self.broker.stdout is not None
            self.broker.stdout.close()


def test_the_steps_are_those_this_test_knows() -> None:
    assert [step.name for step in STEPS if step.kind == "properties"] == [
        "server.properties",
        "admin.properties",
    ]
    assert {step.kind for step in STEPS} == {"console", "properties", "python"}
    assert sum("Error" in line for step in STEPS for line in step.shown) >= 5


def test_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    walk = Walk(tmp_path)
    try:
        for step in STEPS:
            if step.kind != "python":
                walk.take(step)
                continue
            program = compile(walk.here(step.text), "security-walk.md", "exec")
            with pytest.raises(ApiError) as refused:
                exec(program, {})
            assert refused.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    finally:
        walk.stop()
    log = (tmp_path / "server.log").read_text()
    for name in ("admin", "ann", "bob", "carol"):
        password = (tmp_path / f"{name}.password").read_text().strip()
        assert password not in log
        assert password.encode() not in (tmp_path / "data" / "metadata.sqlite").read_bytes()
    # As strict as Python 3.13 is by itself.
    subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "server.crt"],
        check=True,
        capture_output=True,
    )
