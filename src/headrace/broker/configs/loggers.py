"""The levels of the broker's loggers, which administrators see and change as configs of type BROKER_LOGGER.

A change counts until the broker stops, as in Kafka. The shell says which loggers there are (`Loggers`); a broker inside
a program has none, because that program decides what is logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

ROOT: Final = "root"
LEVELS: Final = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
"""Kafka's names of the levels."""


class Logger(NamedTuple):
    """A logger, as clients see it."""

    level: str
    """The level in force, one of `LEVELS`."""
    is_fixed: bool = False
    """Whether the level cannot be changed while the broker runs."""


class Loggers:
    """The loggers of a process; this class has none, a shell has a subclass with its own."""

    def all(self) -> Mapping[str, Logger]:
        """Return the loggers by name."""
        return {}

    def change(self, name: str, level: str | None) -> None:
        """Set the level of a logger; with None it has the level of the root logger again."""
