"""Typed values: what they are encoded as, and what happens to a value that does not decode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.options.reader import OptionReader

DECODE_OPTIONS: Final = ("format", "schema", "onError")
_FORMATS: Final = ("json", "avro", "protobuf")


@dataclass(frozen=True)
class DecodeOptions:
    """How values become columns."""

    format: Literal["json", "avro", "protobuf"]
    schema: str = field(repr=False)
    on_error: Literal["fail", "null", "dlq"] = "fail"
    dlq_topic: str | None = None


def decode_options(reader: OptionReader) -> DecodeOptions | None:
    """Return how values are decoded, or None where they stay binary.

    Raises:
        ConfigError: A value is none that the option can have, or one option is of no use without another.
    """
    if reader.text("format") is None:
        for option in DECODE_OPTIONS:
            if reader.text(option) is not None:
                raise ConfigError(
                    f"option {option} needs option format, which says what the values are: "
                    f"{', '.join(_FORMATS)}"
                )
        return None
    given = reader.choice("format", _FORMATS)
    schema = reader.text("schema")
    if not schema:
        raise ConfigError(f"option format {given} needs option schema, the schema's text")
    on_error, dlq_topic = _on_error(reader.text("onError") or "fail")
    return DecodeOptions(given, schema, on_error, dlq_topic)  # type: ignore[arg-type]  # one of _FORMATS


def _on_error(text: str) -> tuple[Literal["fail", "null", "dlq"], str | None]:
    kind, colon, topic = text.partition(":")
    match kind.strip().lower(), colon, topic.strip():
        case "fail", "", _:
            return "fail", None
        case "null", "", _:
            return "null", None
        case "dlq", ":", name if name:
            return "dlq", name
        case _:
            raise ConfigError(f"option onError must be fail, null or dlq:TOPIC, not {text!r}")
