"""Filters by tag: a record passes if it has any of the filter's tags in headers `headrace.tag` (see `directives`).

In a fetch request a filter is a byte 1, then each tag after one byte with its length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, Self

from headrace.errors import ConfigError, CorruptRecordError, InvalidRequestError
from headrace.records.batch import BatchHeader
from headrace.records.builder import Headers, encode_headers
from headrace.records.directives import MAX_TAG_BYTES, TAG, encode_tag
from headrace.records.raw import record_starts
from headrace.records.varint import decode_varint, encode_varint

MAX_TAGS: Final = 64
"""The largest number of tags in a filter."""
MAX_FOUND: Final = 1 << 14
"""The largest number of tag headers in a batch that is searched: each costs half a microsecond."""
_FEW: Final = 4
"""The largest number of tags that are searched for one by one. This skips headers with other tags faster."""
_PREFIX: Final = encode_varint(len(TAG)) + TAG.encode()
"""The first bytes of a record header that is a tag. The length of the tag and the tag follow."""
_VERSION: Final = 1
_MOST_BYTES: Final = 1 + MAX_TAGS * (1 + MAX_TAG_BYTES)


class TagFilter:
    """The tags that a reader wants. Tags are compared as bytes."""

    __slots__ = ("_is_few", "_needles", "tags")

    def __init__(self, tags: Iterable[bytes]) -> None:
        self.tags = frozenset(tags)
        self._is_few = len(self.tags) <= _FEW
        # A header lies in a record in exactly this form, after a byte with the number of headers.
        whole = [encode_headers([(TAG, tag)])[1:] for tag in sorted(self.tags)]
        self._needles = whole if self._is_few else [_PREFIX]

    @classmethod
    def of(cls, tags: Iterable[str]) -> Self:
        """Make a filter for records with any of these tags.

        Raises:
            ConfigError: A tag is empty or too long, there are none or too many, or the argument is one string, not
                several.
        """
        if isinstance(tags, str):
            raise ConfigError(f"tags are several texts, not {tags!r}: write {{{tags!r}}}")
        contents = {encode_tag(tag)[1] for tag in tags}
        if not 0 < len(contents) <= MAX_TAGS:
            raise ConfigError(f"a filter has 1 to {MAX_TAGS} tags, not {len(contents)}")
        return cls(contents)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return the filter in the bytes of a request.

        Raises:
            InvalidRequestError: The bytes are not a filter.
        """
        tags: list[bytes] = []
        position = 1
        if content[:1] == bytes([_VERSION]) and len(content) <= _MOST_BYTES:
            while position < len(content):
                end = position + 1 + content[position]
                tags.append(content[position + 1 : end])
                position = end
        if not tags or not all(tags) or position != len(content) or len(tags) > MAX_TAGS:
            raise InvalidRequestError("the tag filter of the fetch is malformed")
        return cls(tags)

    def encode(self) -> bytes:
        """Return the bytes of the filter for a request."""
        return bytes([_VERSION]) + b"".join(bytes([len(tag)]) + tag for tag in sorted(self.tags))

    def accepts(self, headers: Headers) -> bool:
        """Return whether a record with these headers passes."""
        return any(name == TAG and content in self.tags for name, content in headers)

    def select(self, header: BatchHeader, data: bytes) -> Sequence[bool] | None:
        """Return which records of a batch may pass; None when none does.

        The search looks for the bytes of headers, so that batches with rare tags cost no more than a search. A record
        with just these bytes elsewhere passes too: readers call `accepts` for each record. All records pass if there
        are too many headers with the name. For many tags there is one search, for the common first bytes of their
        headers.

        Args:
            header: The batch's header.
            data: The decompressed bytes of its records.

        Raises:
            CorruptRecordError: The records cannot be decoded.
        """
        if data.count(_PREFIX) > MAX_FOUND:
            return [True] * header.records_count
        starts: list[int] = []
        passes: list[bool] = []
        for needle in self._needles:
            position = data.find(needle)
            while position >= 0:
                after = position + len(needle)
                if self._is_few or self._is_wanted(data, after):
                    starts = starts or record_starts(data, header.records_count)
                    passes = passes or [False] * len(starts)
                    number = bisect_right(starts, position)
                    passes[number - 1] = True
                    after = starts[number] if number < len(starts) else len(data)
                position = data.find(needle, after)
        return passes or None

    def _is_wanted(self, data: bytes, position: int) -> bool:
        """Return whether one of the tags lies at a position, after its length."""
        try:
            length, begin = decode_varint(data, position)
        except CorruptRecordError:
            return False  # the bytes before are part of a value
        return data[begin : begin + length] in self.tags

    def headers_to_look_at(self, data: bytes) -> int:
        """Return how many headers of a batch are looked at one by one: those with tags, if many tags are wanted."""
        return 0 if self._is_few else min(data.count(_PREFIX), MAX_FOUND)
