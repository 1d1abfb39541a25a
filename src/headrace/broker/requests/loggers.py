"""Requests that read and change the levels of the broker's loggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.broker.configs.loggers import LEVELS, ROOT, Logger
from headrace.broker.requests.config_changes import ConfigChange
from headrace.broker.services import Services
from headrace.errors import InvalidConfigError, InvalidRequestError
from headrace.protocol.config_operation import ConfigOperation


def described(services: Services, keys: Sequence[str] | None) -> Iterator[tuple[str, Logger]]:
    """Yield the loggers, or those of `keys` if there are any."""
    for name, logger in services.settings.loggers.all().items():
        if not keys or name in keys:
            yield name, logger


def alter(services: Services, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Change the levels of loggers: all of them, or none.

    Raises:
        InvalidRequestError: An operation that loggers do not have, or no level.
        InvalidConfigError: A logger or a level that does not exist, or a logger that is fixed.
    """
    known = services.settings.loggers.all()
    wanted = {change.name: _checked(known, change) for change in changes}
    if validate_only:
        return
    for name, level in wanted.items():
        services.settings.loggers.change(name, level)


def _checked(known: Mapping[str, Logger], change: ConfigChange) -> str | None:
    """Return the level that a change sets, None if it deletes the logger's own."""
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
