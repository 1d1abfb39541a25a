"""Shard iterators and tokens of pages: opaque text that is valid for a limited time."""

from __future__ import annotations

import binascii
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from headrace.testing.kinesis.errors import AwsError, invalid
from headrace.testing.kinesis.limits import Limits


class Iterator(NamedTuple):
    """A position in a shard.

    Attributes:
        stream: The name of the stream.
        created_ms: The creation time of the stream in milliseconds.
        shard: The number of the shard.
        sequence: The first sequence number to read.
    """

    stream: str
    created_ms: int
    shard: int
    sequence: int


class Page(NamedTuple):
    """The position at which a list continues.

    Attributes:
        stream: The name of the stream.
        after: The last name of the previous page.
        filter: The filter as JSON.
    """

    stream: str
    after: str
    filter: str


class Tokens:
    """Issues and checks iterators and tokens of pages."""

    def __init__(self) -> None:
        self._serial = 0
        self._expired = 0
        """Tokens up to this number have been expired by the test."""

    def expire(self) -> None:
        """Expire all tokens that were issued so far."""
        self._expired = self._serial

    def write_iterator(self, iterator: Iterator, now_ms: int) -> str:
        """Return the text of an iterator."""
        return self._write("AAAAAAAAAAE", iterator, now_ms)

    def read_iterator(self, text: str, now_ms: int, limits: Limits) -> Iterator:
        """Return the iterator of a text.

        Raises:
            AwsError: The text is not an iterator, or the iterator has expired.
        """
        iterator, issued_ms, expired = self.peek_iterator(text, now_ms, limits)
        if expired:
            raise AwsError(
                "ExpiredIteratorException",
                f"Iterator expired. The iterator was created at time {_date(issued_ms)} while "
                "right now it is "
                f"{_date(now_ms)} which is further in the future than the tolerated delay of "
                f"{limits.iterator_ttl_ms} milliseconds.",
            )
        return iterator

    def peek_iterator(self, text: str, now_ms: int, limits: Limits) -> tuple[Iterator, int, bool]:
        """Return the iterator, its time of issue, and whether it has expired."""
        fields, issued_ms, serial = self._read("AAAAAAAAAAE", text, "Invalid ShardIterator.")
        if len(fields) != 4:
            raise invalid("Invalid ShardIterator.")
        place = Iterator(fields[0], int(fields[1]), int(fields[2]), int(fields[3]))
        return (
            place,
            issued_ms,
            serial <= self._expired or now_ms - issued_ms > limits.iterator_ttl_ms,
        )

    def write_page(self, page: Page, now_ms: int) -> str:
        """Return the token of a page."""
        return self._write("AAAAAAAAAAM", page, now_ms)

    def read_page(self, text: str, now_ms: int, limits: Limits) -> Page:
        """Return the page of a token.

        Raises:
            AwsError: The text is not a token, or the token has expired.
        """
        fields, issued_ms, serial = self._read("AAAAAAAAAAM", text, "NextToken is invalid.")
        if len(fields) != 3:
            raise invalid("NextToken is invalid.")
        if serial <= self._expired or now_ms - issued_ms > limits.token_ttl_ms:
            raise AwsError(
                "ExpiredNextTokenException",
                f"NextToken has expired. It was created at {_date(issued_ms)}, more than "
                f"{limits.token_ttl_ms} milliseconds ago.",
            )
        return Page(*fields)

    def _write(self, mark: str, fields: tuple[object, ...], now_ms: int) -> str:
        self._serial += 1
        text = "\n".join(map(str, (*fields, now_ms, self._serial)))
        return mark + urlsafe_b64encode(text.encode()).decode()

    def _read(self, mark: str, text: str, complaint: str) -> tuple[list[str], int, int]:
        if not text.startswith(mark):
            raise invalid(complaint)
        try:
            *fields, issued_ms, serial = (
                urlsafe_b64decode(text.removeprefix(mark)).decode().split("\n")
            )
            return fields, int(issued_ms), int(serial)
        except (ValueError, binascii.Error) as error:
            raise invalid(complaint) from error


def _date(at_ms: int) -> str:
    return time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(at_ms / 1000))
