"""Filters by tag: a record passes that has any of a filter's tags, in headers `headrace.tag` (see `directives`).

In a fetch request a filter is a byte 1, then each tag with its length in one byte before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, Self

from headrace.errors import ConfigError, InvalidRequestError
from headrace.records.batch import BatchHeader
from headrace.records.builder import Headers, encode_headers
from headrace.records.directives import MAX_TAG_BYTES, TAG, encode_tag
from headrace.records.raw import record_starts

MAX_TAGS: Final = 64
"""Most tags of a filter: a batch is searched for each of them."""
_VERSION: Final = 1
_MOST_BYTES: Final = 1 + MAX_TAGS * (1 + MAX_TAG_BYTES)


class TagFilter:
    """Which tags a reader wants; their bytes are what counts."""

    __slots__ = ("_headers", "tags")

    def __init__(self, tags: Iterable[bytes]) -> None:
        self.tags = frozenset(tags)
        # Behind the number of headers, in one byte, a header lies in a record just like this.
        self._headers = [encode_headers([(TAG, tag)])[1:] for tag in sorted(self.tags)]

    @classmethod
    def of(cls, tags: Iterable[str]) -> Self:
        """Want records with any of these tags.

        Raises:
            ConfigError: A tag is empty or too long, or there are none or too many; or it is one text, not several.
        """
        if isinstance(tags, str):
            raise ConfigError(f"tags are several texts, not {tags!r}: write {{{tags!r}}}")
        contents = {encode_tag(tag)[1] for tag in tags}
        if not 0 < len(contents) <= MAX_TAGS:
            raise ConfigError(f"a filter has 1 to {MAX_TAGS} tags, not {len(contents)}")
        return cls(contents)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Read what a request has.

        Raises:
            InvalidRequestError: It is no filter.
        """
        tags: list[bytes] = []
        position = 1
        if content[:1] == bytes([_VERSION]) and len(content) <= _MOST_BYTES:
            while position < len(content):
                end = position + 1 + content[position]
                tags.append(content[position + 1 : end])
                position = end
        if not tags or not all(tags) or position != len(content) or len(tags) > MAX_TAGS:
            raise InvalidRequestError("the fetch has a filter that is none")
        return cls(tags)

    def encode(self) -> bytes:
        """Return what a request has."""
        return bytes([_VERSION]) + b"".join(bytes([len(tag)]) + tag for tag in sorted(self.tags))

    def accepts(self, headers: Headers) -> bool:
        """Whether a record with these headers passes."""
        return any(name == TAG and content in self.tags for name, content in headers)

    def select(self, header: BatchHeader, data: bytes) -> Sequence[bool] | None:
        """Return which records of a batch may pass; None when none does.

        It looks for the bytes of headers, so that batches of a rare tag cost no more than a search. A record passes too
        that has just these bytes elsewhere: readers ask `accepts`.

        Args:
            header: The batch's header.
            data: The bytes of its records, decompressed.

        Raises:
            CorruptRecordError: They do not decode.
        """
        starts: list[int] = []
        passes: list[bool] = []
        for encoded in self._headers:
            position = data.find(encoded)
            while position >= 0:
                starts = starts or record_starts(data, header.records_count)
                passes = passes or [False] * len(starts)
                number = bisect_right(starts, position)
                passes[number - 1] = True
                after = starts[number] if number < len(starts) else len(data)
                position = data.find(encoded, after)
        return passes or None
