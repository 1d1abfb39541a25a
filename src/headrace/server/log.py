"""Log lines: an event name and fields, as `key=value` text or as JSON, on standard error.

Values that clients supply are written with `repr` in the text form and escaped in JSON, so that no client can forge a
line. What a broker tells while it serves goes through `RateLimited`: clients can cause many an event at will.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from headrace.ports import Journal

LOGGER_NAME: Final = "headrace"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/@+,-]+")
_FIELDS: Final = "headrace_fields"


def _text(value: object) -> str:
    """Render a value: bare when it cannot be mistaken for anything else, with `repr` otherwise."""
    if isinstance(value, bool | int | float) or value is None:
        return str(value)
    text = value if isinstance(value, str) else str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING event key=value ...`, a traceback below it if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one line."""
        fields: dict[str, object] = getattr(record, _FIELDS, {})
        parts = [_timestamp(record), record.levelname, record.getMessage()]
        parts += [f"{key}={_text(value)}" for key, value in fields.items()]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, the fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one line."""
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str, line_format: str, stream: TextIO | None = None) -> None:
    """Send all log lines of the process to `stream` (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if line_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.raiseExceptions = False  # a closed standard error must not disturb the server


class LoggingJournal:
    """The `Journal` port on the standard library's logging."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger(LOGGER_NAME)

    def info(self, event: str, **fields: object) -> None:
        """Log at INFO."""
        self._logger.info(event, extra={_FIELDS: fields})

    def warning(self, event: str, **fields: object) -> None:
        """Log at WARNING."""
        self._logger.warning(event, extra={_FIELDS: fields})

    def error(self, event: str, **fields: object) -> None:
        """Log at ERROR, with the traceback of the exception that is being handled, if any."""
        handling = sys.exc_info()[0] is not None
        self._logger.error(event, extra={_FIELDS: fields}, exc_info=handling)


class RateLimited:
    """A journal that passes on at most `burst` lines of each event per window, and then says how many it kept back.

    `report` has to be called from time to time: a flood may end without another line to say it with.

    Args:
        journal: where lines go.
        now_ms: the clock.
        burst: lines of one event in one window.
        window_ms: length of the window.
    """

    __slots__ = ("_burst", "_journal", "_now_ms", "_window_ms", "_windows")

    def __init__(
        self,
        journal: Journal,
        now_ms: Callable[[], int],
        *,
        burst: int = 50,
        window_ms: int = 10_000,
    ) -> None:
        self._journal = journal
        self._now_ms = now_ms
        self._burst = burst
        self._window_ms = window_ms
        self._windows: dict[str, list[int]] = {}  # event -> [window start, lines, kept back]

    def info(self, event: str, **fields: object) -> None:
        """Log at INFO, within the limit."""
        if self._admit(event):
            self._journal.info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log at WARNING, within the limit."""
        if self._admit(event):
            self._journal.warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """Log at ERROR, within the limit."""
        if self._admit(event):
            self._journal.error(event, **fields)

    def report(self) -> None:
        """Say how many lines were kept back in windows that are over."""
        now_ms = self._now_ms()
        for event, window in list(self._windows.items()):
            if now_ms - window[0] >= self._window_ms:
                self._end(event, window)
                del self._windows[event]

    def _end(self, event: str, window: list[int]) -> None:
        if window[2]:
            self._journal.warning("lines_suppressed", of=event, count=window[2])

    def _admit(self, event: str) -> bool:
        now_ms = self._now_ms()
        window = self._windows.setdefault(event, [now_ms, 0, 0])
        if now_ms - window[0] >= self._window_ms:
            self._end(event, window)
            window[:] = [now_ms, 0, 0]
        if window[1] < self._burst:
            window[1] += 1
            return True
        window[2] += 1
        return False
