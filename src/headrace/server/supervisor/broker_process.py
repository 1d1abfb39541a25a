"""One broker of a supervisor: its process, which is started again when it ends, and its connection to the store."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.metadata_stores.remote.messages import Message
from headrace.metadata_stores.remote.server import StoreServer
from headrace.ports import Journal
from headrace.server.log import describe
from headrace.server.reports import EXIT_FAILED

_FIRST_BACKOFF_S: Final = 0.25
_MAX_BACKOFF_S: Final = 30.0
_GOOD_RUN_S: Final = 60.0
"""The time after which a process counts as healthy: the next restart is soon again."""


class BrokerProcess:
    """A broker whose process is started again when it ends."""

    def __init__(
        self,
        number: int,
        settings: Mapping[str, Any],
        server: StoreServer,
        journal: Journal,
        on_ready: Callable[[], object],
    ) -> None:
        """Prepare a broker. `run` starts it.

        Args:
            number: The id of the broker.
            settings: The arguments of `MemberSettings`.
            server: The store of the brokers.
            journal: Receives the log events.
            on_ready: Called when the broker is ready for the first time.
        """
        self._number = number
        self._settings = dict(settings)
        self._server = server
        self._journal = journal
        self._on_ready = on_ready
        self._process: asyncio.subprocess.Process | None = None
        self._ends = asyncio.Event()
        self.cluster_id = ""
        """The id of the cluster; "" before the broker was ready."""

    @property
    def listeners(self) -> list[str]:
        """The listeners, with their actual ports when the broker was ready."""
        return list(self._settings["listeners"])

    @property
    def was_ready(self) -> bool:
        """Whether a process of the broker was ready."""
        return bool(self.cluster_id)

    async def run(self) -> int:
        """Run the broker until `stop`. Return the exit code if it ends before it was ready for the first time."""
        loop, backoff_s = asyncio.get_running_loop(), _FIRST_BACKOFF_S
        while True:
            began_s = loop.time()
            try:
                code = await self._run_once()
            except OSError as error:  # the machine has no process or no descriptor left
                self._journal.error(
                    "broker_process_not_started", broker=self._number, error=describe(error)
                )
                code = EXIT_FAILED
            if self._ends.is_set() or not self.was_ready:
                return code
            if loop.time() - began_s >= _GOOD_RUN_S:
                backoff_s = _FIRST_BACKOFF_S
            self._journal.error(
                "broker_process_ended",
                broker=self._number,
                exit=_exit_of(code),
                restart_in_s=backoff_s,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s):
                    await self._ends.wait()
                return 0
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _run_once(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            disconnect = await self._server.connect(ours, self._settings, self._received)
            # In a session of its own: Ctrl-C in a terminal reaches only the supervisor, which ends the brokers.
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headrace.server.supervisor.member",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._journal.info("broker_process_started", broker=self._number, pid=process.pid)
        if self._ends.is_set():
            self.signal(signal.SIGTERM)
        try:
            return await process.wait()
        finally:
            self._process = None
            disconnect()

    def _received(self, message: Message) -> None:
        """Note the addresses of the broker: another process of it gets the same ports."""
        kind, _, listeners, cluster_id = message
        assert kind == "ready", kind
        self._settings["listeners"] = listeners
        self.cluster_id = cluster_id
        self._on_ready()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def stop(self) -> None:
        """Let the process end in order, and start no other one."""
        self._ends.set()
        self.signal(signal.SIGTERM)


def _exit_of(code: int) -> str:
    return str(code) if code >= 0 else signal.Signals(-code).name
