"""The commands of docs/start/security-walk.md run in order in a shell and print what the page shows."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from headrace.errors import ApiError, ErrorCode
from tests.docs.console import Step, run_shell, steps, users_environment
from tests.fixtures.kafka import free_ports
from tests.fixtures.processes import READY_LINE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "start" / "security-walk.md").read_text()
STEPS = list(steps(PAGE))


class Walk:
    """The directory, the exported variables and the broker of one run of the page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_ports(1)[0]
        self.broker: subprocess.Popen[str] | None = None
        self.environment = users_environment()

    def here(self, text: str) -> str:
        """Return a text of the page with a free port in place of the page's port."""
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
        done = run_shell(step.text, self.directory, self.environment)
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


def test_this_file_runs_every_step() -> None:
    assert [step.name for step in STEPS if step.kind == "properties"] == [
        "server.properties",
        "admin.properties",
    ]
    assert {step.kind for step in STEPS} == {"console", "properties", "python"}
    assert sum("Error" in line for step in STEPS for line in step.shown) >= 5


def test_the_commands_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    # Python 3.13 sets this flag by default.
    subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "server.crt"],
        check=True,
        capture_output=True,
    )
