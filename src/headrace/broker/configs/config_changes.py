"""The settings of a resource after the changes that AlterConfigs or IncrementalAlterConfigs requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from headrace.config.options import Option, OptionType
from headrace.errors import ConfigError, InvalidConfigError, InvalidRequestError
from headrace.protocol.config_operation import ConfigOperation

MergeSettings: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns the new settings of a resource for the stored ones, or raises ApiError."""


class RequestedChange(NamedTuple):
    """A requested change of one setting."""

    name: str
    value: str | None
    """The new value, or the list entries to append or subtract; None only for DELETE."""
    operation: int = ConfigOperation.SET
    """A `ConfigOperation`, or a number that this broker does not know."""


def settings_after(
    before: Mapping[str, str],
    changes: Iterable[RequestedChange],
    option: Callable[[str], Option],
    effective: Callable[[str], str],
) -> dict[str, str]:
    """Apply changes to settings.

    Args:
        before: The resource's own settings before the changes.
        changes: The changes.
        option: Returns the option of a name, or raises ConfigError if it cannot be changed.
        effective: Returns the value of an option in force. A change of a list starts from it if the resource has no
            value.
    """
    settings = dict(before)
    for change in changes:
        name, value = change.name, change.value
        try:
            described = option(name)
        except ConfigError as error:
            if change.operation == ConfigOperation.DELETE:
                continue  # there is nothing to delete; Kafka returns success, too
            raise InvalidConfigError(str(error)) from error
        if change.operation == ConfigOperation.DELETE:
            settings.pop(name, None)
        elif value is None:
            raise InvalidRequestError(f"no value for {name}")
        elif change.operation == ConfigOperation.SET:
            settings[name] = value
        else:
            words = _words(settings.get(name, effective(name)))
            settings[name] = _changed_list(words, change, described, _words(value))
    return settings


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _changed_list(
    present: list[str], change: RequestedChange, described: Option, given: Iterable[str]
) -> str:
    if change.operation not in {ConfigOperation.APPEND, ConfigOperation.SUBTRACT}:
        raise InvalidRequestError(f"operation {change.operation} is not known")
    if described.type is not OptionType.LIST:
        word = ConfigOperation(change.operation).name
        raise InvalidConfigError(f"{change.name} is not a list, so {word} does not apply")
    if change.operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*present, *given]))
    gone = frozenset(given)
    return ",".join(word for word in present if word not in gone)
