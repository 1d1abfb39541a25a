"""Run each pipeline in its own process, session and JVM. This process supervises them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.pipelines.running.backoff import RestartBackoff
from headrace.pipelines.running.runner import Reporter, Signals
from headrace.pipelines.status.state import StateDirectory, Status

POLL_S: Final = 0.2
OK: Final = 0
FINAL_CODES: Final = frozenset({1, 2})
"""Exit codes of children that report their failure. With any other code, for example of a signal, a child is lost and
restarted."""
HEALTHY_S: Final = 60.0
"""Seconds after which a child counts as healthy, so that the count of failures in a row starts again."""

Spawn = Callable[[str], "subprocess.Popen[Any]"]
"""Starts the process of the pipeline with a name."""


@dataclass
class Child:
    """The process of one pipeline."""

    name: str
    spawn: Spawn
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    clock: Callable[[], float] = time.monotonic
    code: int | None = field(default=None, init=False)
    _process: subprocess.Popen[Any] | None = field(default=None, init=False)
    _began_s: float = field(default=0.0, init=False)
    _due_s: float = field(default=0.0, init=False)
    _failures: int = field(default=0, init=False)
    _stopping: bool = field(default=False, init=False)

    @property
    def ended(self) -> bool:
        """Whether the pipeline has ended and will not be restarted."""
        return self.code is not None

    def stop(self) -> None:
        """Send SIGTERM to the child. A second call sends a second signal."""
        self._stopping = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def poll(self) -> str | None:
        """Start the child, or check whether it is alive. Return a message if the child was lost."""
        if self.ended:
            return None
        if self._process is None:
            self._poll_waiting()
            return None
        code = self._process.poll()
        if code is None:
            return None
        self._process = None
        if code == OK or code in FINAL_CODES or self._stopping:
            self.code = code
            return None
        return self._lost(code)

    def _poll_waiting(self) -> None:
        if self._stopping:
            self.code = OK
        elif self.clock() >= self._due_s:
            self._began_s = self.clock()
            self._process = self.spawn(self.name)

    def _lost(self, code: int) -> str:
        healthy = self.clock() - self._began_s > HEALTHY_S
        self._failures = 1 if healthy else self._failures + 1
        wait_s = self.backoff.wait_s(self._failures)
        what = f"{self.name}: its process ended with {code}"
        if wait_s is None:
            self.code = code
            return f"{what}, and is not restarted any more"
        self._due_s = self.clock() + wait_s
        return f"{what}; it is restarted in {wait_s:g} s"

    def close(self) -> None:
        """Kill the child if it is still alive."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class IsolatedRunner:
    """Runs a process for each pipeline and reports their statuses."""

    spawn: Spawn
    state: StateDirectory
    reporter: Reporter
    signals: Signals
    tell: Callable[[str], None]
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    since_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def run(self, names: Sequence[str]) -> bool:
        """Run until all pipelines have ended. Return whether all succeeded."""
        children = [Child(name, self.spawn, self.backoff) for name in names]
        seen: dict[str, Status] = {}
        asked = 0
        try:
            while not all(each.ended for each in children):
                if asked != self.signals.count:
                    asked = self.signals.count
                    for each in children:
                        each.stop()
                for text in filter(None, [each.poll() for each in children]):
                    self.tell(text)
                self._report(names, seen)
                self.signals.came.wait(POLL_S)
                self.signals.came.clear()
            self._report(names, seen)
        finally:
            for each in children:
                each.close()
        return all(each.code == OK for each in children)

    def _report(self, names: Sequence[str], seen: dict[str, Status]) -> None:
        known = self._statuses(names)
        for name, status in known.items():
            if seen.get(name) != status:
                seen[name] = status
                self.reporter.changed(status)
        self.reporter.tick(list(known.values()))

    def _statuses(self, names: Sequence[str]) -> Mapping[str, Status]:
        """Return the statuses that the children have written. Statuses of earlier runs are left out."""
        found = {name: self.state.status(name) for name in names}
        return {
            name: each
            for name, each in found.items()
            if each is not None and each.started_ms >= self.since_ms
        }
