"""Shard iterators and tokens of the next page: text that means something to the fake alone, and only for a while."""

from __future__ import annotations

import binascii
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from headrace.testing.kinesis.errors import AwsError, invalid
from headrace.testing.kinesis.limits import Limits


class Iterator(NamedTuple):
    """A place in a shard.

    Attributes:
        stream: The stream's name.
        created_ms: When that stream was created.
        shard: The shard's number.
        sequence: The first sequence number to read.
    """

    stream: str
    created_ms: int
    shard: int
    sequence: int


class Page(NamedTuple):
    """Where a list goes on.

    Attributes:
        stream: The stream's name.
        after: The last name of the page before.
        filter: What was filtered by, in JSON.
    """

    stream: str
    after: str
    filter: str


class Tokens:
    """Writes and reads them."""

    def __init__(self) -> None:
        self._serial = 0
        self._expired = 0
        """Tokens up to this number have been expired by the test."""

    def expire(self) -> None:
        """Let all expire that were given out so far."""
        self._expired = self._serial

    def write_iterator(self, iterator: Iterator, now_ms: int) -> str:
        """Return a place as text."""
        return self._write("AAAAAAAAAAE", iterator, now_ms)

    def read_iterator(self, text: str, now_ms: int, limits: Limits) -> Iterator:
        """Return the place.

        Raises:
            AwsError: It is none, or has expired.
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
        """Return the place, when it was written, and whether it has expired."""
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
        """Return where a list goes on as text."""
        return self._write("AAAAAAAAAAM", page, now_ms)

    def read_page(self, text: str, now_ms: int, limits: Limits) -> Page:
        """Return where a list goes on.

        Raises:
            AwsError: It is no token, or has expired.
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
