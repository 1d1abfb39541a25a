"""A client program in a process of its own, which reads and writes JSON lines."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.fixtures.client_security import NO_SECURITY, Properties, environment
from tests.fixtures.history.members import History
from tests.fixtures.kafka import log_tail

CALL_TIMEOUT_S = 40
END_TIMEOUT_S = 90
"""The time a program has to end by itself, in seconds.

A Java producer with TLS whose session is renewed may need its `request.timeout.ms`, 30 seconds: (1) Several responses
and the response to SaslHandshake arrive at once. (2) The client decrypts them all, but handles one per poll while it
authenticates again. (3) Its selector waits for further bytes, although it holds the other responses.
"""

Translate = Callable[[str], "tuple[str, Mapping[str, object]] | None"]


class PeerError(AssertionError):
    """The program ended, answered with an error, or did not answer in time."""


def json_event(line: str) -> tuple[str, Mapping[str, object]] | None:
    """Return the event of a line from one of our programs: `{"event": ..., ...}`."""
    if not line.startswith("{"):
        return None
    fields = json.loads(line)
    return str(fields.pop("event")), fields


class Peer:
    """A running client program.

    Each event is also added to the history, under the name of the peer.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        directory: Path,
        history: History | None = None,
        translate: Translate = json_event,
        events_on_stderr: bool = False,
        properties: Properties = NO_SECURITY,
    ) -> None:
        self.name = name
        self._history = history
        self._translate = translate
        self._events: list[tuple[str, Mapping[str, object]]] = []
        self._changed = threading.Condition()
        self._ended = False
        with tempfile.NamedTemporaryFile(
            dir=directory, prefix=f"{name}-", suffix=".log", delete=False
        ) as log:
            self._log_path = Path(log.name)
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if events_on_stderr else log,
                text=True,
                bufsize=1,
                env=environment(properties),
            )
        streams = [self._process.stdout, self._process.stderr if events_on_stderr else None]
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in streams
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The process id of the program."""
        return self._process.pid

    def _read(self, stream: object) -> None:
        for line in stream:  # type: ignore[attr-defined]  # a text stream, typed loosely by Popen
            event = self._translate(line)
            if event is None:
                with self._log_path.open("a") as log:
                    log.write(line)
                continue
            if self._history is not None:
                self._history.add(self.name, *event)
            with self._changed:
                self._events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def send(self, **command: object) -> None:
        """Send a command to the program."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(self._describe("has ended")) from error

    def wait(
        self, kind: str, timeout_s: float = CALL_TIMEOUT_S, *, since: int = 0
    ) -> Mapping[str, object]:
        """Wait for the first event of a kind after the event number `since`.

        Raises:
            PeerError: An event `error` came instead, the program ended, or the time was over.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for event, fields in self._events[since:]:
                    if event == kind:
                        return fields
                    if event == "error":
                        raise PeerError(f"{self.name}: {fields}\n{log_tail(self._log_path)}")
                if self._ended:
                    raise PeerError(self._describe(f"ended without {kind!r}"))
                if not self._changed.wait(deadline - time.monotonic()):
                    raise PeerError(self._describe(f"no {kind!r} in {timeout_s} s"))

    def call(self, reply: str, timeout_s: float = CALL_TIMEOUT_S, **command: object) -> Mapping:
        """Send a command, and wait for its reply."""
        with self._changed:
            since = len(self._events)
        self.send(**command)
        return self.wait(reply, timeout_s, since=since)

    def kill(self) -> None:
        """Send SIGKILL to the program, and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._join()

    def close(self, number: int | None = None) -> None:
        """End the program by the end of its input or by a signal; kill it if it does not end."""
        if self._process.poll() is None and number is not None:
            self._process.send_signal(number)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            if number != signal.SIGKILL:
                raise PeerError(self._describe("did not end by itself")) from None
        finally:
            self._join()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(END_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _describe(self, what: str) -> str:
        return f"{self.name} {what}; its log:\n{log_tail(self._log_path)}"
