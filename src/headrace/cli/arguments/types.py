"""Types of options: sizes and durations with units, acks."""

from __future__ import annotations

import re
from typing import Any, Final

import click

_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest versions only
    """A size in bytes, such as 128m."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the size in bytes."""
        match = re.fullmatch(r"(\d{1,15})([kmg]?)b?", str(value).lower())
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a size: use 65536, 512k, 128m or 1g", param, ctx)
        return int(match[1]) * _SIZES[match[2]]


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest versions only
    """A duration in milliseconds, such as 7d."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the duration in milliseconds."""
        from headrace.cli.arguments.offsets import OffsetSpecError, parse_duration

        try:
            return parse_duration(str(value))
        except OffsetSpecError as error:
            self.fail(str(error), param, ctx)


class AcksType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest versions only
    """The replicas that acknowledge a record: all, or a number."""

    name = "all|NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, which is valid."""
        from headrace.clients.config import parse_acks
        from headrace.errors import ConfigError

        try:
            parse_acks("acks", value)
        except ConfigError:
            self.fail(f"{value!r} is not a number of replicas: use all, 0, 1, 2, ...", param, ctx)
        return str(value)
