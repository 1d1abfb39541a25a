"""The name of a bridge, and the URLs of streams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from headrace.clients.admin.aio import Admin
from headrace.clients.drivers import Target
from headrace.errors import ConfigError
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.client.streams import stream_name

_UNFIT: Final = re.compile(r"[^a-zA-Z0-9._-]")
_LONGEST: Final = 180
_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{_LONGEST}}}")
_SCHEME: Final = "kinesis://"
_OPTIONS: Final = ("region", "endpoint_url", "profile")


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A stream, and how to reach it."""

    stream: str
    """Name or ARN of the stream."""
    aws: AwsSettings

    @property
    def name(self) -> str:
        """The name of the stream."""
        return stream_name(self.stream)


def is_stream(text: str) -> bool:
    """Whether a text is the URL of a stream, not the name of a topic."""
    return text.startswith(_SCHEME)


def parse_stream(text: str) -> StreamPlace:
    """Return the stream of `kinesis://orders?region=eu-central-1&endpoint_url=...`.

    Raises:
        ConfigError: The text is not the URL of a stream, or has an unknown option.
    """
    stream, _, query = text.removeprefix(_SCHEME).partition("?")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise ConfigError(
            f"{text!r}: write options behind the question mark, such as region=eu-central-1"
        ) from None
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        hint = ": keys come from the environment or a profile" if "key" in unknown[0] else ""
        raise ConfigError(
            f"{text.partition('?')[0]!r} has an unknown option {unknown[0]!r}. Use {', '.join(_OPTIONS)}{hint}"
        )
    aws = AwsSettings(
        region=options.get("region"),
        endpoint_url=options.get("endpoint_url"),
        profile=options.get("profile"),
    )
    place = StreamPlace(unquote(stream).rstrip("/"), aws)
    if not place.name:
        raise ConfigError(f"{text!r} contains no stream: write kinesis://STREAM or kinesis://ARN")
    return place


def bridge_name(given: str | None, source: str, target: str) -> str:
    """Return the name of a bridge: the user's name for it, or a name made of its source and target.

    Raises:
        ConfigError: Topics cannot be named after the bridge.
    """
    if given is None:
        given = _UNFIT.sub("-", f"{source}.{target}")
        if len(given) > _LONGEST:
            raise ConfigError(f"{given} is too long for a bridge's name: choose a name with --name")
    if not _NAME.fullmatch(given):
        raise ConfigError(
            f"name={given[:80]!r} is not allowed, because topics are named after the bridge: use a-z, A-Z, 0-9, '.', "
            f"'_' and '-', at most {_LONGEST}"
        )
    return given


async def check_topic(target: Target, topic: str, properties: Mapping[str, Any]) -> None:
    """Check that a topic exists. A topic that a broker creates by itself has too few partitions.

    Raises:
        ConfigError: The topic does not exist.
    """
    async with Admin(target, **properties) as admin:
        if topic not in await admin.topics(internal=True):
            raise ConfigError(
                f"there is no topic {topic!r}: create it with the number of partitions that it needs, such as "
                f"`headrace topic create {topic} -p 6`"
            )
