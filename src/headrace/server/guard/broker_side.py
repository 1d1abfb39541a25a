"""The broker's side of the guard: the fork, and the session that the guard has to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final, NoReturn

from headrace.metadata_stores.zookeeper import ZooKeeperSettings
from headrace.metadata_stores.zookeeper.takeover import SessionKey
from headrace.ports import Journal

_PROGRAM: Final = Path(__file__).with_name("guard_process.py")


class Guard:
    """The connection of a broker with its guard."""

    def __init__(self, sessions: int, life: int, log: tuple[str, str]) -> None:
        """Use two pipes.

        Args:
            sessions: The descriptor to which the broker writes its sessions.
            life: The descriptor at whose end the guard has died.
            log: The least level of log lines, and their format.
        """
        self._sessions = sessions
        self._life = life
        self._log = log
        self._reported: SessionKey | None = None

    def report(self, settings: ZooKeeperSettings, key: SessionKey | None) -> None:
        """Report the present session to the guard, if it is another than before."""
        if key is None or key == self._reported:
            return
        self._reported = key
        tls = None if settings.tls is None else asdict(settings.tls)
        said = {
            "connect": settings.connect,
            "session_timeout_ms": settings.session_timeout_ms,
            "tls": tls,
            "number": key.number,
            "password": key.password.hex(),
            "log": self._log,
        }
        os.write(self._sessions, json.dumps(said).encode() + b"\n")

    def watch(self, loop: asyncio.AbstractEventLoop, journal: Journal) -> None:
        """Stop this process in order when the guard ends: a user who kills the guard wants to stop the broker."""
        loop.add_reader(self._life, self._ended, loop, journal)

    def _ended(self, loop: asyncio.AbstractEventLoop, journal: Journal) -> None:
        loop.remove_reader(self._life)
        journal.error("guard_ended", action="stopping")
        os.kill(os.getpid(), signal.SIGTERM)


def fork_guarded(log_level: str, log_format: str) -> Guard:
    """Make this process the guard, and return in a child process, which has to become the broker.

    The guard keeps the id of this process, so it is the one that a service manager or a container knows. It loads no
    module of Headrace. The broker is in a process group of its own, so that Ctrl-C reaches it once, from the guard.

    Args:
        log_level: The least level of log lines.
        log_format: "text" or "json".
    """
    sessions, write_sessions = os.pipe()
    life, end_of_life = os.pipe()
    broker = os.fork()
    if broker:
        _become_guard(broker, sessions, end_of_life)
    os.close(sessions)
    os.close(end_of_life)
    os.setpgid(0, 0)
    return Guard(write_sessions, life, (log_level, log_format))


def _become_guard(broker: int, sessions: int, end_of_life: int) -> NoReturn:
    for descriptor in (sessions, end_of_life):
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - it has no name for it
    arguments = ["-I", "-S", str(_PROGRAM), *map(str, (broker, sessions, end_of_life))]
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - this interpreter
