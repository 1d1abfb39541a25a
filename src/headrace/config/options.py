"""The declarations of settings: documentation, type, limits, other names.

A configuration is a frozen dataclass. Each field is declared with `option(...)`, which stores an `Option` in the
metadata of the field. Parsing, the response to DescribeConfigs and the generated reference read these declarations.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Final, TypeVar

from headrace.errors import ConfigError
from headrace.types import MAX_INT64

Value = bool | int | float | str
C = TypeVar("C")

SHORT_MAX: Final = 2**15 - 1
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = MAX_INT64
TEXT_LIMIT: Final = 16 * 1024
"""The length of the longest accepted value, in characters, unless the option has its own limit."""


class OptionType(IntEnum):
    """Kafka's numbers of the types of settings (DescribeConfigs v3)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Source(IntEnum):
    """Kafka's numbers of the sources of values (DescribeConfigs v1)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of one setting."""

    type: OptionType
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """The values of Kafka that Headrace refuses, each with the reason."""
    broker_name: str | None = None
    """The broker option with the default of a topic option; None if there is none."""
    dynamic: bool = False
    """Whether a broker option can be changed while the broker runs."""
    check: Callable[[str], object] | None = None
    """Raises ConfigError, without the option's name, if the text of a value is invalid; None if every text is valid."""
    sensitive: bool = False
    """Whether the value is a secret. It never appears in a repr, an error message or a response."""
    text_limit: int = TEXT_LIMIT
    """The length of the longest accepted value, in characters."""


def option(
    default: Value,
    documentation: str,
    *,
    type: OptionType | None = None,  # noqa: A002 - the word that Kafka's own tables use
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    unsupported: Mapping[str, str] | None = None,
    broker_name: str | None = None,
    stored_only: str | None = None,
    dynamic: bool = False,
    check: Callable[[str], object] | None = None,
    sensitive: bool = False,
    text_limit: int = TEXT_LIMIT,
) -> Any:
    """Declare one field of a configuration dataclass.

    Args:
        default: The default value. It also determines the type.
        documentation: The meaning of the setting, for users.
        type: The type, if it does not follow from the default.
        minimum: The smallest accepted number.
        maximum: The largest accepted number.
        choices: The accepted words of a text, or of the entries of a list.
        unsupported: The words that are refused, each with the reason.
        broker_name: The broker option with the same meaning.
        stored_only: Why the setting is stored and reported, but has no effect yet.
        dynamic: Whether a broker option can be changed while the broker runs.
        check: Raises ConfigError if a text is invalid; for texts without `choices`, and for numbers with other limits.
        sensitive: Whether the value is a secret.
        text_limit: The length of the longest accepted value, in characters.
    """
    if stored_only is not None:
        documentation = f"{documentation} Accepted and stored, but not acted on yet: {stored_only}."
    kind = type if type is not None else _type_of(default)
    if sensitive:
        kind = OptionType.PASSWORD
    if maximum is None:
        maximum = _MAXIMA.get(kind)
    described = Option(
        type=kind,
        documentation=documentation,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        unsupported=unsupported or {},
        broker_name=broker_name,
        dynamic=dynamic,
        check=check,
        sensitive=sensitive,
        text_limit=text_limit,
    )
    return field(default=default, repr=not sensitive, metadata={"option": described})


_MAXIMA: Final = {
    OptionType.SHORT: SHORT_MAX,
    OptionType.INT: INT_MAX,
    OptionType.LONG: LONG_MAX,
}
"""The largest numbers of the types."""


def _type_of(default: Value) -> OptionType:
    if isinstance(default, bool):
        return OptionType.BOOLEAN
    if isinstance(default, int):
        return OptionType.LONG
    return OptionType.DOUBLE if isinstance(default, float) else OptionType.STRING


def kafka_name(attribute: str) -> str:
    """Return Kafka's name of an attribute: `retention_ms` is `retention.ms`."""
    return attribute.replace("_", ".").replace("scram.sha.", "scram-sha-")


def attribute_name(name: str) -> str:
    """Return the attribute with a Kafka name: `retention.ms` is `retention_ms`."""
    return name.replace(".", "_").replace("-", "_")


def options_of(config: type[Any]) -> dict[str, Option]:
    """Return the options of a configuration class by Kafka's name, in the order of the class."""
    described = [f for f in fields(config) if "option" in f.metadata]
    return {kafka_name(f.name): f.metadata["option"] for f in described}


def parse_value(name: str, described: Option, text: str) -> Value:
    """Parse the text of one option.

    Raises:
        ConfigError: The text has another type, is out of range, or is a value that is not supported.
    """
    text = text.strip()
    if len(text) > described.text_limit:
        raise ConfigError(f"{name}: the value is longer than {described.text_limit} characters")
    if not described.sensitive:
        return _parse_text(name, described, text)
    try:
        return _parse_text(name, described, text)
    except ConfigError:
        # Without the cause: its message may contain the value.
        raise ConfigError(
            f"{name}: the value is not acceptable (it is a secret and not shown)"
        ) from None


def _parse_text(name: str, described: Option, text: str) -> Value:
    if described.type is OptionType.BOOLEAN:
        return _parse_boolean(name, text)
    if described.type is OptionType.LIST:
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            _check_word(name, described, word)
        return ",".join(words)
    if described.type in {OptionType.STRING, OptionType.PASSWORD}:
        _check_word(name, described, text)
        return text
    return _parse_number(name, described, text)


def _parse_boolean(name: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in {"true", "false"}:
        raise ConfigError(f"{name}: expected true or false, got {text!r}")
    return lowered == "true"


def _check_word(name: str, described: Option, word: str) -> None:
    reason = described.unsupported.get(word)
    if reason is not None:
        raise ConfigError(f"{name}: {word!r} is not supported: {reason}")
    if described.choices and word not in described.choices:
        raise ConfigError(f"{name}: expected one of {', '.join(described.choices)}, got {word!r}")
    _run_check(name, described, word)


def _run_check(name: str, described: Option, text: str) -> None:
    if described.check is not None:
        try:
            described.check(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None


def _parse_number(name: str, described: Option, text: str) -> int | float:
    word = "a number" if described.type is OptionType.DOUBLE else "an integer"
    # int() accepts "1_000" and the digits of other scripts, which Kafka does not accept.
    plain = text if text.isascii() and "_" not in text else ""
    try:
        number = float(plain) if described.type is OptionType.DOUBLE else int(plain)
    except ValueError:
        raise ConfigError(f"{name}: expected {word}, got {text[:40]!r}") from None
    # In this form a NaN, which compares false with everything, is refused, too.
    if described.minimum is not None and not number >= described.minimum:
        raise ConfigError(f"{name}: must be at least {described.minimum}, got {number}")
    if described.maximum is not None and not number <= described.maximum:
        raise ConfigError(f"{name}: must be at most {described.maximum}, got {number}")
    _run_check(name, described, str(number))
    return number


def render_value(value: Value) -> str:
    """Render a value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def unknown_key(name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown key, with the nearest known keys."""
    near = difflib.get_close_matches(name[:200], list(known), n=2, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return ConfigError(f"unknown configuration {name[:200]!r}{hint}")


def parse(
    config: type[C],
    values: Mapping[str, str | None],
    *,
    defaults: Mapping[str, Value] | None = None,
) -> C:
    """Build a configuration from text under Kafka's names.

    Args:
        config: The dataclass.
        values: The values as text, by Kafka's name; None stands for the default.
        defaults: The defaults that replace those of the class, by attribute.

    Raises:
        ConfigError: A key is unknown, or a value is invalid.
    """
    options = options_of(config)
    parsed: dict[str, Any] = dict(defaults or {})
    for name, text in values.items():
        described = options.get(name)
        if described is None:
            raise unknown_key(name, options)
        if text is not None:
            parsed[attribute_name(name)] = parse_value(name, described, text)
    return config(**parsed)
