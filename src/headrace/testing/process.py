"""A broker in a process of its own, for tests that kill it."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace.clients.arguments import checked
from headrace.config.options import Value, render_value
from headrace.errors import HeadraceError

START_S: Final = 30.0
"""Seconds in which the process must accept connections after its start."""
STOP_S: Final = 15.0
"""Seconds in which the process must end after a signal."""

_READY: Final = re.compile(rb"ready kafka=\S+:(?P<port>\d+) .*\n")


class BrokerProcess:
    """`headrace serve` as a child process. A test can stop it, kill it, and start it again with its data.

        with BrokerProcess(tmp_path) as broker:
            use(broker.bootstrap)
            broker.kill()                  # SIGKILL, as when the machine dies
            broker.start()                 # at the same address

    Attributes:
        log_path: The file with the log of the process.
    """

    @checked
    def __init__(
        self, directory: str | Path, *, configs: Mapping[str, Value] | None = None
    ) -> None:
        """Prepare a broker. The process runs after `start`.

        Args:
            directory: The directory for the data and the log.
            configs: The broker's configuration under Kafka's names.
        """
        self.log_path = Path(directory) / "broker.log"
        self._data = Path(directory) / "data"
        self._configs = {
            "group.initial.rebalance.delay.ms": "0",
            **{name: render_value(value) for name, value in (configs or {}).items()},
        }
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients. It stays the same when the broker is started again."""
        assert self._port, "the broker has not been started: call start()"
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None, "the broker has not been started: call start()"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The text that the process has logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> Self:
        """Start the process, and return when it accepts connections.

        Raises:
            HeadraceError: The process has ended, or did not start in time. The message has its log.
        """
        assert not self.running, "the broker is running already"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        settings = [f"--config={key}={value}" for key, value in self._configs.items()]
        where = ["--listen", f"127.0.0.1:{self._port}", "--data", str(self._data)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command, without a shell
                [sys.executable, "-m", "headrace.cli", "serve", *where, *settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        ready = _READY.fullmatch(_read_line(self._process))
        if ready is None:
            self.kill()
            raise HeadraceError(f"the broker did not start; its log:\n{self.log}")
        self._port = int(ready["port"])
        return self

    def stop(self) -> int:
        """Stop the process gracefully (SIGTERM), and return its exit code. 0 is success."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the process (SIGKILL), and return when it has ended. No error is raised if it is not running."""
        return self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop the process gracefully, and start it again."""
        self.stop()
        return self.start()

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Read one line of a child's output; less if the child ends or takes too long."""
    assert process.stdout is not None, "the output of the child is a pipe"
    output = process.stdout.fileno()
    deadline_s = time.monotonic() + START_S
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(deadline_s - time.monotonic()):
                break
            piece = os.read(output, 4096)
            if not piece:
                break
            line += piece
    return line
