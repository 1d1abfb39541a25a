"""Typed access to the options of a read or a write.

Spark passes options with names in lower case. Messages show the names as the documentation spells them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import ConfigError

BOOTSTRAP: Final = "kafka.bootstrap.servers"
WITHOUT_EFFECT: Final = (
    "groupIdPrefix",
    "kafka.group.id",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Options without effect, accepted so that a query for Spark's connector runs unchanged.

The source joins no group, and it retries for a time and not for a number of attempts.
"""
_OF_A_TABLE: Final = "provider"
"""A table property that Spark passes when CREATE TABLE runs. A later SELECT from the table gets no options at all."""
_DURATIONS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_REFUSED: Final = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are always binary, cast them in the query",
    "kafka.value.deserializer": "values are always binary, cast them in the query",
    "kafka.key.serializer": "pass keys as binary or string",
    "kafka.value.serializer": "pass values as binary or string",
    "kafka.enable.auto.commit": "offsets live in the query's checkpoint",
    "kafka.interceptor.classes": "Java classes cannot be loaded",
}


@dataclass(frozen=True)
class ClientOptions:
    """The addresses of brokers, and the `kafka.*` options for the client without that prefix."""

    bootstrap: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold secrets


@dataclass
class OptionReader:
    """Typed access to the options. Every error message names the option and its value."""

    options: Mapping[str, str] = field(repr=False)
    known: Iterable[str]
    _values: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        canonical = {name.lower(): name for name in self.known}
        self._values = {}
        if _OF_A_TABLE in {name.lower() for name in self.options}:
            raise ConfigError(
                "Spark drops the options of CREATE TABLE before a table is read: make it a view, "
                "CREATE TEMPORARY VIEW ... USING headrace OPTIONS (...)"
            )
        for name, value in self.options.items():
            lower = name.lower()
            if lower in _REFUSED:
                raise ConfigError(f"option {lower} cannot be set: {_REFUSED[lower]}")
            if lower.startswith("kafka."):
                self._values[lower] = value
            elif lower in canonical:
                self._values[canonical[lower]] = value
            else:
                raise ConfigError(_unknown(name, canonical))

    def text(self, name: str) -> str | None:
        """Return an option's value without surrounding blanks; None if the option was not given."""
        value = self._values.get(name)
        return None if value is None else value.strip()

    def flag(self, name: str, *, default: bool) -> bool:
        """Parse a truth value."""
        value = (self.text(name) or str(default)).lower()
        if value not in {"true", "false"}:
            raise ConfigError(f"option {name} must be true or false, not {value!r}")
        return value == "true"

    def number(self, name: str, default: int | None) -> int | None:
        """Parse a positive whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise ConfigError(f"option {name} must be a positive whole number, not {value!r}")
        return int(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Parse one of the choices, in lower case. The first choice is the default."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise ConfigError(f"option {name} must be {' or '.join(choices)}, not {value!r}")
        return value

    def duration_ms(self, name: str, default: int) -> int:
        """Parse a duration with one of Spark's suffixes, and return milliseconds."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", value.lower())
        if match is None or match[2] not in _DURATIONS_MS:
            raise ConfigError(
                f"option {name} must be a time like 500ms, 30s, 15m, 2h or 1d, not {value!r}"
            )
        return int(match[1]) * _DURATIONS_MS[match[2]]

    def size(self, name: str) -> int | None:
        """Parse a size with one of Spark's suffixes, and return bytes; None if the option was not given."""
        value = self.text(name)
        if value is None:
            return None
        match = re.fullmatch(r"([0-9]+)\s*(b|[kmgt]?)b?", value.lower())
        if match is None or int(match[1]) == 0:
            raise ConfigError(
                f"option {name} must be a number of bytes, or like 512k, 64m or 2g, not {value!r}"
            )
        return int(match[1]) * _SIZES[match[2]]

    def names(self, name: str) -> tuple[str, ...] | None:
        """Parse a comma-separated list, without duplicates; None if the option was not given."""
        value = self.text(name)
        if value is None:
            return None
        return tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip()))

    def client(self) -> ClientOptions:
        """Parse the addresses of brokers and the client's properties."""
        bootstrap = self.text(BOOTSTRAP)
        if not bootstrap:
            raise ConfigError(
                f"option {BOOTSTRAP} is missing: give HOST:PORT of at least one broker"
            )
        without_effect = {name.lower() for name in WITHOUT_EFFECT}
        properties = {
            name.removeprefix("kafka."): value.strip()
            for name, value in self._values.items()
            if name.startswith("kafka.") and name != BOOTSTRAP and name not in without_effect
        }
        return ClientOptions(bootstrap, tuple(sorted(properties.items())))


def _unknown(name: str, canonical: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name.lower(), [*canonical, BOOTSTRAP], n=1)
    if near:
        return f"unknown option {name}: did you mean {canonical.get(near[0], near[0])}?"
    return f"unknown option {name}: known are {', '.join(sorted(canonical.values()))} and kafka.*"
