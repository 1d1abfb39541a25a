"""The levels of the broker's loggers, which administrators see and change as configs of type BROKER_LOGGER.

A change applies until the broker stops, as in Kafka. The shell provides the loggers. An embedded broker has none,
because its program decides what is logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.broker.configs.config_changes import RequestedChange
from headrace.errors import InvalidConfigError, InvalidRequestError
from headrace.protocol.config_operation import ConfigOperation

ROOT: Final = "root"
LEVELS: Final = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
"""Kafka's names of the levels."""


class Logger(NamedTuple):
    """A logger as clients see it."""

    level: str
    """The level in force, one of `LEVELS`."""
    is_fixed: bool = False
    """Whether the level cannot be changed while the broker runs."""


class Loggers:
    """The loggers of a process. This class has none; a server with loggers uses a subclass."""

    def all(self) -> Mapping[str, Logger]:
        """Return the loggers by name."""
        return {}

    def change(self, name: str, level: str | None) -> None:
        """Set the level of a logger. None restores the level of the root logger."""

    def named(self, names: Sequence[str] | None) -> Iterator[tuple[str, Logger]]:
        """Yield the loggers that a request names; all loggers if it names none."""
        for name, logger in self.all().items():
            if not names or name in names:
                yield name, logger

    def alter(self, changes: Sequence[RequestedChange], *, validate_only: bool) -> None:
        """Change the levels of loggers: all of them, or none if one of the changes is invalid.

        Raises:
            InvalidRequestError: A change has an operation that loggers do not have, or no level.
            InvalidConfigError: A logger or a level does not exist, or the level of a logger is fixed.
        """
        known = self.all()
        levels = {change.name: _checked_level(known, change) for change in changes}
        if validate_only:
            return
        for name, level in levels.items():
            self.change(name, level)


def _checked_level(known: Mapping[str, Logger], change: RequestedChange) -> str | None:
    """Return the level that a change sets; None if it deletes the logger's own level."""
    name, level = change.name, change.value
    if change.operation not in {ConfigOperation.SET, ConfigOperation.DELETE}:
        raise InvalidRequestError("the levels of loggers can be set and deleted, nothing else")
    if change.operation == ConfigOperation.SET and level is None:
        raise InvalidRequestError(f"no level for {name[:100]}")
    if name not in known:
        raise InvalidConfigError(f"there is no logger {name[:100]!r}: there are {', '.join(known)}")
    if known[name].is_fixed:
        raise InvalidConfigError(f"the level of {name} cannot be changed while the broker runs")
    if change.operation == ConfigOperation.DELETE:
        if name == ROOT:
            raise InvalidRequestError("the root logger has to have a level")
        return None
    if level not in LEVELS:
        raise InvalidConfigError(f"there is no level {str(level)[:40]!r}: {', '.join(LEVELS)}")
    return level
