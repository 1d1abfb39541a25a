"""The options of typed values: their encoding, and what happens to a value that does not decode."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.options.declared import Option, option_names
from headrace.spark.options.reader import OptionReader

DECODE_OPTIONS: Final = (
    Option(
        "format",
        "`json`, `avro` or `protobuf`: values become columns of `schema`. Without this option values are binary "
        "([Typed columns](../guides/decoding.md)).",
    ),
    Option("schema", "The schema of the values; required with `format`."),
    Option(
        "onError",
        "What happens to a value that does not decode: the query fails (`fail`), the value becomes `null`, or the "
        "record is sent to a dead-letter topic (`dlq:TOPIC`).",
        default="fail",
    ),
    Option(
        "framing",
        "The prefix of each value: none (`plain`), or a schema id as Confluent's serializers write it (`confluent`; "
        "`confluent:7` accepts that id only).",
        default="plain",
    ),
)
_FORMATS: Final = ("json", "avro", "protobuf")


def decode_options(reader: OptionReader, column: str = "value") -> DecodeOptions | None:
    """Parse how values are decoded. None means that values stay binary.

    Args:
        reader: The options.
        column: The name of the column with the values.

    Raises:
        ConfigError: An option has a wrong value, or lacks an option that it needs.
    """
    if reader.text("format") is None:
        for option in option_names(DECODE_OPTIONS):
            if reader.text(option) is not None:
                raise ConfigError(
                    f"option {option} needs option format, the encoding of the values: "
                    f"{', '.join(_FORMATS)}"
                )
        return None
    given = reader.choice("format", _FORMATS)
    schema = reader.text("schema")
    if not schema:
        raise ConfigError(f"option format {given} needs option schema, the schema's text")
    if column.lower() not in {name.lower() for name in reader.names("columns") or (column,)}:
        raise ConfigError(
            f"option format {given} decodes the column {column}, which option columns leaves out"
        )
    on_error, dlq_topic = _on_error(reader.text("onError") or "fail")
    framing = _framing(reader.text("framing") or "plain")
    wanted = DecodeOptions(given, schema, on_error, dlq_topic, framing)  # type: ignore[arg-type]  # one of _FORMATS
    return _checked(wanted)


def _checked(options: DecodeOptions) -> DecodeOptions:
    """Reject an unusable schema before tasks start. Replace the file of a Protobuf schema by the descriptor in it."""
    from headrace.spark.decode.formats import codec_of

    if options.format == "protobuf":
        from headrace.spark.decode.protobuf_values import inline_schema

        options = replace(options, schema=inline_schema(options.schema))
    codec_of(options)
    return options


def _framing(text: str) -> str:
    if re.fullmatch(r"plain|confluent(:[0-9]{1,9})?", text.lower()) is None:
        raise ConfigError(f"option framing must be plain, confluent or confluent:ID, not {text!r}")
    return text.lower()


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
