"""The options of a write, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.spark.options.reader import ClientOptions, OptionReader

SINK_OPTIONS: Final = ("topic", "includeHeaders")


@dataclass(frozen=True)
class SinkOptions:
    """What a write was asked for."""

    client: ClientOptions
    topic: str | None = None


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write.

    Raises:
        ConfigError: As for `source_options`.
    """
    reader = OptionReader(options, (*SINK_OPTIONS, "kafka.group.id"))
    return SinkOptions(
        client=reader.client(),
        topic=reader.text("topic") or None,
    )
