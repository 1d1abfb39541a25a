"""The demo's own broker: `headrace serve` as a child process, on a free port of the loopback address."""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace.errors import HeadraceError

START_TIMEOUT_S: Final = 30
STOP_TIMEOUT_S: Final = 15
LOG_LINES: Final = 10


class BrokerChildError(HeadraceError):
    """The broker did not start; it has the last lines of the broker's log."""

    def __init__(self, log: Sequence[str]) -> None:
        super().__init__("the broker did not start:\n" + "\n".join(log))
        self._lines = ("the broker did not start:", *log)

    @property
    def lines(self) -> Sequence[str]:
        """The state and the log lines of the child process."""
        return self._lines


class BrokerChild:
    """A context manager that runs the broker inside the block, and ends it after the block."""

    def __init__(self, data: Path, log_path: Path) -> None:
        self._data = data
        self._log_path = log_path
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "headrace.cli", "serve"]
        command += ["--listen", "127.0.0.1:0", "--data", str(self._data)]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Only the demo receives Ctrl-C of the terminal. It stops the broker when it no longer needs it.
                start_new_session=True,
            )
        try:
            self.bootstrap = self._wait_ready(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _wait_ready(self, process: subprocess.Popen[str]) -> str:
        """Return the address of the ready line."""
        assert process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            came = selector.select(deadline - time.monotonic())
        line = process.stdout.readline() if came else ""
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if not line.startswith("ready ") or "kafka" not in words:
            tail = self._log_path.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise BrokerChildError(tail)
        return words["kafka"]

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
