"""The state directory, with which commands show and stop the pipelines of other processes.

A running pipeline has up to three files: `NAME.json` with its status, which is replaced atomically; `NAME.lock`, which
is locked while its process lives; and `NAME.stop` after a stop was requested. If the lock of a status is free, its
process has ended.
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
    """The status of a pipeline.

    Attributes:
        state: The state. "lost" is never written: readers report it if the process ended without writing a last status.
        progress: The progress of the last batch, a `BatchProgress` as a dictionary; None before the first batch.
        error: The cause of the failure or of the last restart; None if there is none.
        restarts: The number of restarts in this run.
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
        """Whether the pipeline has ended."""
        return self.state in ENDED


def default_directory() -> Path:
    """Return the default state directory by the XDG convention."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "headrace" / "pipelines"


class StateDirectory:
    """The state directory of a user's pipelines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, name: str) -> StatusClaim:
        """Lock the name of a pipeline for this process.

        Raises:
            ConfigError: Another process runs a pipeline with this name, or the directory cannot be written.
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
        """Return the path of a file for the output of Spark's processes.

        Raises:
            ConfigError: The file cannot be written.
        """
        self._open(name, "log").close()
        return self._file(name, "log")

    def statuses(self) -> Iterator[Status]:
        """Yield the statuses of all pipelines, sorted by name."""
        for path in sorted(self.path.glob("*.json")):
            status = self.status(path.stem)
            if status is not None:
                yield status

    def status(self, name: str) -> Status | None:
        """Return a pipeline's status, "lost" if its process is gone; None if there is none."""
        status = self._read(name)
        if status is None or status.ended or self._held(name):
            return status
        status = self._read(
            name
        )  # the process may have written its last status and ended since the first read
        return status if status is None or status.ended else replace(status, state="lost")

    def ask_to_stop(self, name: str) -> None:
        """Request that the pipeline's process finishes its batch and stops the pipeline."""
        self._file(name, "stop").touch()

    def forget(self, name: str) -> None:
        """Remove the status of a pipeline that does not run.

        Raises:
            ConfigError: The pipeline is running.
        """
        claim = self.claim(name)
        self._file(name, "json").unlink(missing_ok=True)
        claim.release()  # the lock file stays: if it were deleted, two processes could lock the name

    def _open(self, name: str, kind: str) -> IO[str]:
        try:
            make_private_directory(self.path)
            return self._file(name, kind).open("a")
        except OSError as error:
            raise ConfigError(
                f"the state directory {self.path} cannot be written ({error}): choose another with --state"
            ) from None

    def _held(self, name: str) -> bool:
        """Return whether a process has locked the name."""
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
            return None  # there is no status, or another version wrote it

    def _file(self, name: str, kind: str) -> Path:
        return self.path / f"{name}.{kind}"


def _lock(file: IO[str]) -> bool:
    """Lock a file, with retries, because readers lock it for a moment to test it. Return whether it is locked."""
    for _ in range(ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(ATTEMPT_S)
        else:
            return True
    return False


class StatusClaim:
    """A name that this process has locked. Only this process writes the pipeline's status."""

    def __init__(self, directory: StateDirectory, name: str, lock: IO[str]) -> None:
        self._directory = directory
        self._name = name
        self._lock = lock

    def write(self, status: Status) -> None:
        """Replace the status atomically."""
        path = self._directory.path / f"{self._name}.json"
        new = path.with_suffix(".json.new")
        new.write_text(json.dumps(asdict(status)))
        new.replace(path)

    @property
    def stop_wanted(self) -> bool:
        """Whether a stop of the pipeline was requested."""
        return (self._directory.path / f"{self._name}.stop").exists()

    def release(self) -> None:
        """Unlock the name. Further calls do nothing. The status stays, to show how the pipeline ended."""
        if self._lock.closed:
            return  # another process may have locked the name by now
        (self._directory.path / f"{self._name}.stop").unlink(missing_ok=True)
        self._lock.close()
