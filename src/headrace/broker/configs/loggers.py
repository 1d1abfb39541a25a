"""The levels of the broker's loggers, which administrators see and change as configs of type BROKER_LOGGER.

A change counts until the broker stops, as in Kafka. The shell says which loggers there are (`Loggers`); a broker inside
a program has none, because that program decides what is logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import InvalidConfigError, InvalidRequestError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.configs.alter_configs import Change

ROOT: Final = "root"
LEVELS: Final = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
"""Kafka's names of the levels."""
_SET, _DELETE = 0, 1


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


def check_resource(broker: Broker, name: str) -> None:
    """Refuse the name of a resource that is not this broker's id.

    Raises:
        InvalidRequestError: It is another name.
    """
    if name != str(broker.config.broker_id):
        raise InvalidRequestError(
            f"broker {name[:40]!r} is not this one, which is {broker.config.broker_id}"
        )


def described(broker: Broker, keys: Sequence[str] | None) -> Iterator[tuple[str, Logger]]:
    """Yield the loggers, or those of `keys` if there are any."""
    for name, logger in broker.settings.loggers.all().items():
        if not keys or name in keys:
            yield name, logger


def alter(broker: Broker, changes: Sequence[Change], *, validate_only: bool) -> None:
    """Change levels: all of them, or none.

    Raises:
        InvalidRequestError: An operation that loggers do not have, or no level.
        InvalidConfigError: A logger or a level that does not exist, or a logger that is fixed.
    """
    known = broker.settings.loggers.all()
    wanted = {change.name: _checked(known, change) for change in changes}
    if validate_only:
        return
    for name, level in wanted.items():
        broker.settings.loggers.change(name, level)


def _checked(known: Mapping[str, Logger], change: Change) -> str | None:
    """Return the level that a change sets, None if it deletes the logger's own."""
    name, level = change.name, change.value
    if change.operation not in {_SET, _DELETE}:
        raise InvalidRequestError("the levels of loggers can be set and deleted, nothing else")
    if change.operation == _SET and level is None:
        raise InvalidRequestError(f"no level for {name[:100]}")
    if name not in known:
        raise InvalidConfigError(f"there is no logger {name[:100]!r}: there are {', '.join(known)}")
    if known[name].is_fixed:
        raise InvalidConfigError(f"the level of {name} cannot be changed while the broker runs")
    if change.operation == _DELETE:
        if name == ROOT:
            raise InvalidRequestError("the root logger has to have a level")
        return None
    if level not in LEVELS:
        raise InvalidConfigError(f"there is no level {str(level)[:40]!r}: {', '.join(LEVELS)}")
    return level
