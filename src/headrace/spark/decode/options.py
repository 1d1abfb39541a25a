"""How the values of a read are encoded, and what happens to a value that does not decode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class DecodeOptions:
    """How values become columns."""

    format: Literal["json", "avro", "protobuf"]
    schema: str = field(repr=False)
    on_error: Literal["fail", "null", "dlq"] = "fail"
    dlq_topic: str | None = None
    framing: str = "plain"
    """What is before the value: nothing ("plain"), or a schema's id in Confluent's way, any or one: "confluent:7"."""
