"""The declarations of options agree with the parsers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.spark.options.declared import Option
from headrace.spark.options.sink import SINK_OPTIONS, sink_options
from headrace.spark.options.source import SOURCE_OPTIONS, source_options

NEEDED = {
    "archiveFormat": {"archive": "/table"},
    "onError": {"format": "json", "schema": "a int"},
    "framing": {"format": "json", "schema": "a int"},
}
"""The options that the option in the key needs."""


def parsed(options: tuple[Option, ...], given: dict[str, str], *, streaming: bool) -> Any:
    where = {"kafka.bootstrap.servers": "localhost:9092"}
    if options is SOURCE_OPTIONS:
        return source_options({**where, "subscribe": "a", **given}, streaming=streaming)
    return sink_options({**where, **given}, streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("options", [SOURCE_OPTIONS, SINK_OPTIONS])
def test_a_declared_default_has_the_effect_of_no_option(
    options: tuple[Option, ...], *, streaming: bool
) -> None:
    for option in options:
        default = option.stream_default if streaming and option.stream_default else option.default
        if not default or (streaming and option.only_for == "batch"):
            continue
        needed = NEEDED.get(option.name, {})
        assert parsed(options, {**needed, option.name: default}, streaming=streaming) == parsed(
            options, needed, streaming=streaming
        ), option.name


@pytest.mark.parametrize("options", [SOURCE_OPTIONS, SINK_OPTIONS])
def test_every_declared_name_is_unique(options: tuple[Option, ...]) -> None:
    names = [option.name.lower() for option in options]
    assert len(set(names)) == len(names)
