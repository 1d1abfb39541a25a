"""Headers of a record that direct the broker, on topics with the option; see docs/guides/beyond-kafka.md.

On all other topics, and to all other brokers, they are bytes like any other header.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.errors import ConfigError, InvalidRecordError
from headrace.records.builder import Headers

TTL_MS: Final = "headrace.ttl-ms"
"""How long after its timestamp a record expires: ASCII decimal, at least 0."""
DELIVER_AT_MS: Final = "headrace.deliver-at-ms"
"""When a record is to be delivered, in milliseconds since 1970: ASCII decimal."""
DELAY_MS: Final = "headrace.delay-ms"
"""How long after its arrival at the broker a record is to be delivered: ASCII decimal, at least 0."""
TAG: Final = "headrace.tag"
"""A tag of a record: UTF-8, not empty; a record may have several."""

MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: no time or span above it is taken."""
MAX_TAG_BYTES: Final = 255
"""Most bytes of a tag."""
_MAX_DIGITS: Final = len(str(MAX_TIME_MS))


def directives(
    headers: Iterable[tuple[str, bytes | None]],
    tags: Iterable[str] = (),
    ttl_ms: int | None = None,
    deliver_at_ms: int | None = None,
    delay_ms: int | None = None,
) -> Headers:
    """Return a record's headers with those that say what is to be done with it; see the names above.

    Raises:
        ConfigError: A time is negative or beyond the year 9999, or a tag empty or too long; or there are two due times.
    """
    if deliver_at_ms is not None and delay_ms is not None:
        raise ConfigError("a record has deliver_at_ms or delay_ms, not both")
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigError(f"tags are several texts, not {tags!r}: write [{tags!r}]")
    if not isinstance(headers, Iterable):
        raise ConfigError(f"headers are pairs of text and bytes (or None), not {headers!r}")
    times = {TTL_MS: ttl_ms, DELIVER_AT_MS: deliver_at_ms, DELAY_MS: delay_ms}
    return (
        *headers,
        *(_encode_ms(name, value) for name, value in times.items() if value is not None),
        *(encode_tag(tag) for tag in tags),
    )


def _encode_ms(name: str, milliseconds: object) -> tuple[str, bytes]:
    if not isinstance(milliseconds, int) or not 0 <= milliseconds <= MAX_TIME_MS:
        raise ConfigError(
            f"{name} is a whole number of milliseconds from 0 to {MAX_TIME_MS}, not {milliseconds!r}"
        )
    return name, b"%d" % milliseconds


def encode_tag(tag: object) -> tuple[str, bytes]:
    """Return the header that gives a record a tag.

    Raises:
        ConfigError: The tag is empty or too long.
    """
    content = tag.encode() if isinstance(tag, str) else b""
    if not 0 < len(content) <= MAX_TAG_BYTES:
        raise ConfigError(f"a tag is a text of 1 to {MAX_TAG_BYTES} bytes, not {tag!r:.40}")
    return TAG, content


def decode_ms(content: bytes | None, name: str) -> int:
    """Return what the header `name` says, a time or a span in milliseconds.

    Raises:
        InvalidRecordError: It is no decimal number, or beyond the year 9999.
    """
    if content is not None and len(content) <= _MAX_DIGITS and content.isdigit():
        milliseconds = int(content)
        if milliseconds <= MAX_TIME_MS:
            return milliseconds
    raise InvalidRecordError(
        f"header {name} has to be a decimal number from 0 to {MAX_TIME_MS}, not {content!r:.40}"
    )
