"""The directory by which terminals see and stop the pipelines of other processes.

A running pipeline has three files: `NAME.json`, what it is and how it goes, replaced as a whole; `NAME.lock`, locked as
long as its process lives, however that ends; and `NAME.stop` when it is asked to stop. So a status whose lock is free
is of a process that is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Literal

from headrace.errors import ConfigError
from headrace.storage.permissions import make_private_directory

State = Literal["starting", "running", "restarting", "stopped", "finished", "failed", "lost"]
ENDED: Final[frozenset[str]] = frozenset({"stopped", "finished", "failed", "lost"})
ATTEMPTS: Final = 5
ATTEMPT_S: Final = 0.02
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True)
class Status:
    """How a pipeline goes.

    Attributes:
        state: "lost" is never written: it is what readers make of a status whose process is gone without a word.
        progress: Of the last batch, `headrace.pipelines.progress.Progress` as a dictionary.
        error: Why it failed, or why it was started again last.
        restarts: How often it was, in this run.
    """

    name: str
    state: State
    pid: int
    started_ms: int
    updated_ms: int
    plan: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] | None = None
    error: str | None = None
    restarts: int = 0

    @property
    def ended(self) -> bool:
        """Whether it does not run any more."""
        return self.state in ENDED


def default_directory() -> Path:
    """Return where the state is unless a user says otherwise, by the XDG convention."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "headrace" / "pipelines"


class StateDirectory:
    """The statuses of all pipelines of a user."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, name: str) -> StatusClaim:
        """Take the name for this process.

        Raises:
            ConfigError: Another process runs a pipeline of that name, or the directory cannot be written.
        """
        lock = self._open(name, "lock")
        if not _lock(lock):
            lock.close()
            status = self._read(name)
            pid = f", pid {status.pid}" if status is not None else ""
            raise ConfigError(
                f"pipeline {name} is running{pid}: `headrace pipeline stop {name}` stops it"
            )
        self._file(name, "stop").unlink(missing_ok=True)
        return StatusClaim(self, name, lock)

    def log_path(self, name: str) -> Path:
        """Return a file for what Spark's processes print.

        Raises:
            ConfigError: It cannot be written.
        """
        self._open(name, "log").close()
        return self._file(name, "log")

    def statuses(self) -> Iterator[Status]:
        """Yield what is known, by name."""
        for path in sorted(self.path.glob("*.json")):
            status = self.status(path.stem)
            if status is not None:
                yield status

    def status(self, name: str) -> Status | None:
        """Return a pipeline's status, "lost" if its process is gone; None if there is none."""
        status = self._read(name)
        if status is None or status.ended or self._held(name):
            return status
        status = self._read(name)  # it may have ended just now, and have said so
        return status if status is None or status.ended else replace(status, state="lost")

    def ask_to_stop(self, name: str) -> None:
        """Have the process that runs it finish its batch and end it."""
        self._file(name, "stop").touch()

    def forget(self, name: str) -> None:
        """Remove the status of a pipeline that does not run.

        Raises:
            ConfigError: It runs.
        """
        claim = self.claim(name)
        self._file(name, "json").unlink(missing_ok=True)
        claim.release()  # the lock stays: removed, it could be held twice

    def _open(self, name: str, kind: str) -> IO[str]:
        try:
            make_private_directory(self.path)
            return self._file(name, kind).open("a")
        except OSError as error:
            raise ConfigError(
                f"the state directory {self.path} cannot be written ({error}): choose another with --state"
            ) from None

    def _held(self, name: str) -> bool:
        """Return whether a process holds the name."""
        try:
            with self._file(name, "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _read(self, name: str) -> Status | None:
        try:
            return Status(**json.loads(self._file(name, "json").read_text()))
        except (OSError, ValueError, TypeError):
            return None  # none, or of another version

    def _file(self, name: str, kind: str) -> Path:
        return self.path / f"{name}.{kind}"


def _lock(file: IO[str]) -> bool:
    """Lock a file, in spite of those who look at this moment whether it is locked; return whether it worked."""
    for _ in range(ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(ATTEMPT_S)
        else:
            return True
    return False


class StatusClaim:
    """A name that this process holds; only it writes the status."""

    def __init__(self, directory: StateDirectory, name: str, lock: IO[str]) -> None:
        self._directory = directory
        self._name = name
        self._lock = lock

    def write(self, status: Status) -> None:
        """Replace the status."""
        path = self._directory.path / f"{self._name}.json"
        new = path.with_suffix(".json.new")
        new.write_text(json.dumps(asdict(status)))
        new.replace(path)

    @property
    def stop_wanted(self) -> bool:
        """Whether somebody has asked for its end."""
        return (self._directory.path / f"{self._name}.stop").exists()

    def release(self) -> None:
        """Give the name back, once; the status stays, for whoever wants to know how it ended."""
        if self._lock.closed:
            return  # the name may be another's by now
        (self._directory.path / f"{self._name}.stop").unlink(missing_ok=True)
        self._lock.close()
