"""Record headers that direct the broker, on topics with the setting; see docs/guides/beyond-kafka.md.

On other topics, and for other brokers, they are headers without a special meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.errors import ConfigError, InvalidRecordError
from headrace.records.builder import Headers

TTL_MS: Final = "headrace.ttl-ms"
"""The time after its timestamp at which a record expires, in milliseconds: ASCII decimal, at least 0."""
DELIVER_AT_MS: Final = "headrace.deliver-at-ms"
"""The delivery time of a record in milliseconds since 1970: ASCII decimal."""
DELAY_MS: Final = "headrace.delay-ms"
"""The time from a record's arrival at the broker to its delivery, in milliseconds: ASCII decimal, at least 0."""
TAG: Final = "headrace.tag"
"""A tag of a record: UTF-8, not empty. A record may have several."""

MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. Times and durations above it are refused."""
MAX_TAG_BYTES: Final = 255
"""The largest size of a tag in bytes."""
_MAX_DIGITS: Final = len(str(MAX_TIME_MS))


def directives(
    headers: Iterable[tuple[str, bytes | None]],
    tags: Iterable[str] = (),
    ttl_ms: int | None = None,
    deliver_at_ms: int | None = None,
    delay_ms: int | None = None,
) -> Headers:
    """Return a record's headers, with headers added for its time to live, its delivery and its tags.

    Raises:
        ConfigError: A time is negative or beyond the year 9999, a tag is empty or too long, or there are two delivery
            times.
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
    """Return the header that gives a tag to a record.

    Raises:
        ConfigError: The tag is empty or too long.
    """
    content = tag.encode() if isinstance(tag, str) else b""
    if not 0 < len(content) <= MAX_TAG_BYTES:
        raise ConfigError(f"a tag is a text of 1 to {MAX_TAG_BYTES} bytes, not {tag!r:.40}")
    return TAG, content


def decode_ms(content: bytes | None, name: str) -> int:
    """Return the time or duration in the header `name`, in milliseconds.

    Raises:
        InvalidRecordError: The header is no decimal number, or beyond the year 9999.
    """
    if content is not None and len(content) <= _MAX_DIGITS and content.isdigit():
        milliseconds = int(content)
        if milliseconds <= MAX_TIME_MS:
            return milliseconds
    raise InvalidRecordError(
        f"header {name} has to be a decimal number from 0 to {MAX_TIME_MS}, not {content!r:.40}"
    )
