"""Log lines: an event name and fields, as `key=value` text or as JSON, on standard error.

The text form writes the values of clients with `repr`, and the JSON form escapes them. Long values are cut. So a client
cannot forge a line, and cannot fill the disk with one line. While the broker serves, its events pass through
`RateLimited`, because clients can cause many events at will. Events whose names begin with `audit_` have a logger of
their own.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple, TextIO

from headrace.broker.configs.loggers import ROOT, Logger, Loggers
from headrace.ports import Journal

LOGGER_NAME: Final = "headrace"
VALUE_LIMIT: Final = 1000
"""The longest text of one value in a line, in characters before escaping."""
ITEMS_LIMIT: Final = 100
"""The greatest number of entries of a list or mapping in a line."""
TRACEBACK_LIMIT: Final = 20_000
_AUDIT_NAME: Final = "audit"
_AUDIT_PREFIX: Final = "audit_"
_LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""The numbers of Kafka's levels."""
_UNLIMITED: Final = frozenset({"audit_changed"})
"""Events without a limit: only administrators can cause them."""
_WINDOWS_LIMIT: Final = 10_000
_LARGE: Final = 1 << 100
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/@+,-]+")
_FIELDS: Final = "headrace_fields"


def _text(value: object) -> str:
    """Render a value. A text that could be mistaken for something else is rendered with `repr`."""
    value = _bounded(value)
    if isinstance(value, bool | int | float) or value is None:
        return str(value)
    text = value if isinstance(value, str) else str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)


def _bounded(value: object, depth: int = 3) -> object:
    """Return a value that JSON can represent, within the length limits of a line."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        # JSON has no NaN and no infinity, and no field has a value that large
        return value if -_LARGE < value < _LARGE else "not a usable number"
    if isinstance(value, Mapping) and depth:
        items = islice(value.items(), ITEMS_LIMIT)
        return {_cut(str(key)): _bounded(item, depth - 1) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [_bounded(item, depth - 1) for item in islice(value, ITEMS_LIMIT)]
    if isinstance(value, bytes | bytearray | memoryview):
        value = repr(bytes(value[:VALUE_LIMIT]))
    return _cut(value if isinstance(value, str) else str(value))


def _one_line(text: str) -> str:
    """Return text with every unprintable character escaped: no line ends, no control sequences of terminals."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _end_of(traceback: str) -> str:
    return traceback if len(traceback) <= TRACEBACK_LIMIT else f"... {traceback[-TRACEBACK_LIMIT:]}"


def describe(error: BaseException | None) -> str:
    """Describe an exception. Unlike its `repr`, the text has no bytes that could not be decoded."""
    return "nothing" if error is None else f"{type(error).__name__}: {error}"


def _cut(text: str) -> str:
    if len(text) <= VALUE_LIMIT:
        return text
    return f"{text[:VALUE_LIMIT]}... ({len(text)} characters)"


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING event key=value ...`, with the traceback below the line if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record as one line."""
        fields: dict[str, object] = getattr(record, _FIELDS, {})
        parts = [_timestamp(record), record.levelname, _one_line(_cut(record.getMessage()))]
        parts += [f"{key}={_text(value)}" for key, value in fields.items()]
        lines = [" ".join(parts)]
        if record.exc_info:
            # In front of each line: the message of an exception may contain text of a client.
            traceback = _end_of(self.formatException(record.exc_info))
            lines += [f"    | {_one_line(line)}" for line in traceback.splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, the fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record as one line."""
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "event": _cut(record.getMessage()),
        }
        fields: dict[str, object] = getattr(record, _FIELDS, {})
        line |= {key: _bounded(value) for key, value in fields.items()}
        if record.exc_info:
            line["traceback"] = _end_of(self.formatException(record.exc_info))
        return json.dumps(line)


def configure_logging(level: str, line_format: str, stream: TextIO | None = None) -> None:
    """Write all log lines of the process to `stream`; None stands for standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if line_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.raiseExceptions = False  # a closed standard error must not disturb the server


class LogLevels(Loggers):
    """The levels of this process's loggers.

    The audit log keeps its level of the start: a client that may change configs must not be able to hide its changes.
    """

    def __init__(self) -> None:
        audit = logging.getLogger(f"{LOGGER_NAME}.{_AUDIT_NAME}")
        audit.setLevel(audit.getEffectiveLevel())

    def all(self) -> Mapping[str, Logger]:
        """Return the loggers by name."""
        return {
            ROOT: Logger(_level_of(ROOT)),
            LOGGER_NAME: Logger(_level_of(LOGGER_NAME)),
            f"{LOGGER_NAME}.{_AUDIT_NAME}": Logger(
                _level_of(f"{LOGGER_NAME}.{_AUDIT_NAME}"), is_fixed=True
            ),
        }

    def change(self, name: str, level: str | None) -> None:
        """Set the level of a logger. None restores the level of the root logger."""
        logging.getLogger(name).setLevel(logging.NOTSET if level is None else _LEVELS[level])


def _level_of(name: str) -> str:
    """Return the level of a logger in force, by Kafka's name."""
    number = logging.getLogger(name).getEffectiveLevel()
    return min(_LEVELS, key=lambda level: (abs(_LEVELS[level] - number), -_LEVELS[level]))


class LoggingJournal:
    """The `Journal` port, with the `logging` module of the standard library.

    Args:
        logger: The logger; None for that of Headrace.
        broker: The id of the broker, in a process with several brokers. Each line has it in the field `broker`, and
            in the name of its logger, `headrace.broker.1`.
    """

    __slots__ = ("_audit", "_common", "_logger")

    def __init__(self, logger: logging.Logger | None = None, *, broker: int | None = None) -> None:
        parent = logger or logging.getLogger(LOGGER_NAME)
        self._audit = parent.getChild(_AUDIT_NAME)
        self._logger = parent if broker is None else parent.getChild(f"broker.{broker}")
        self._common: dict[str, object] = {} if broker is None else {"broker": broker}

    def info(self, event: str, **fields: object) -> None:
        """Log an event at the level INFO."""
        self._of(event).info(event, extra={_FIELDS: self._common | fields})

    def warning(self, event: str, **fields: object) -> None:
        """Log an event at the level WARNING."""
        self._of(event).warning(event, extra={_FIELDS: self._common | fields})

    def error(self, event: str, **fields: object) -> None:
        """Log an event at the level ERROR, with the traceback of the exception that is being handled, if any."""
        handling = sys.exc_info()[0] is not None
        self._of(event).error(event, extra={_FIELDS: self._common | fields}, exc_info=handling)

    def _of(self, event: str) -> logging.Logger:
        return self._audit if event.startswith(_AUDIT_PREFIX) else self._logger


class RateLimited:
    """A journal that passes on at most `burst` lines of each event in a window, and counts the suppressed lines.

    Events of the audit log are counted for each principal and host, so that a client cannot hide its events behind
    those of another client. Changes by administrators are never suppressed. `report` has to be called regularly,
    because a flood may end without a further line.

    Args:
        journal: Receives the lines.
        now_ms: Returns the time.
        burst: The number of lines of one event in one window.
        window_ms: The length of a window in milliseconds.
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
        self._windows: dict[
            _Source, list[int]
        ] = {}  # [start of the window, lines, suppressed lines]

    def info(self, event: str, **fields: object) -> None:
        """Log an event at the level INFO, within the limit."""
        if self._admit(event, fields):
            self._journal.info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event at the level WARNING, within the limit."""
        if self._admit(event, fields):
            self._journal.warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """Log an event at the level ERROR, within the limit."""
        if self._admit(event, fields):
            self._journal.error(event, **fields)

    def report(self) -> None:
        """Log how many lines were suppressed in the windows that have ended."""
        now_ms = self._now_ms()
        for source, window in list(self._windows.items()):
            if now_ms - window[0] >= self._window_ms:
                self._end(source, window)
                del self._windows[source]

    def _end(self, source: _Source, window: list[int]) -> None:
        if not window[2]:
            return
        event, principal, host = source
        if event.startswith(_AUDIT_PREFIX):
            self._journal.warning(
                "audit_lines_suppressed", of=event, count=window[2], principal=principal, host=host
            )
        else:
            self._journal.warning("lines_suppressed", of=event, count=window[2])

    def _admit(self, event: str, fields: Mapping[str, object]) -> bool:
        if event in _UNLIMITED:
            return True
        now_ms = self._now_ms()
        source = self._source_of(event, fields)
        window = self._windows.setdefault(source, [now_ms, 0, 0])
        if now_ms - window[0] >= self._window_ms:
            self._end(source, window)
            window[:] = [now_ms, 0, 0]
        if window[1] < self._burst:
            window[1] += 1
            return True
        window[2] += 1
        return False

    def _source_of(self, event: str, fields: Mapping[str, object]) -> _Source:
        if not event.startswith(_AUDIT_PREFIX):
            return _Source(event)
        source = _Source(event, str(fields.get("principal")), str(fields.get("host")))
        # If there are too many sources, new ones share one.
        crowded = len(self._windows) >= _WINDOWS_LIMIT and source not in self._windows
        return _Source(event, "many", "many") if crowded else source


class _Source(NamedTuple):
    """The source of events that are counted together."""

    event: str
    principal: str = ""
    host: str = ""
