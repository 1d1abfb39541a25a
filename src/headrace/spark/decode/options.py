"""The encoding of the values of a read, and what happens to a value that does not decode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class DecodeOptions:
    """The parsed options of typed values."""

    format: Literal["json", "avro", "protobuf"]
    schema: str = field(repr=False)
    on_error: Literal["fail", "null", "dlq"] = "fail"
    dlq_topic: str | None = None
    framing: str = "plain"
    """The prefix of each value: "plain" (none), "confluent" (any schema id), or "confluent:7" (schema id 7 only)."""
