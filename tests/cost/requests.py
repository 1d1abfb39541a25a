"""Expensive requests: one for each list and each text of each request, in each way that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from headrace.protocol.codec import write_varint
from tests.cost.broker import framed
from tests.cost.fields import Kind
from tests.cost.shapes import (
    Shape,
    exists,
    frame_of,
    make,
    message_class,
    request_schemas,
    served_fields,
    versions_of,
)
from tools.message_schema import FieldSchema

REQUEST_BYTES: Final = 1 << 20
"""The size of the largest request except Produce, less some space for the header."""
ROOM: Final = 200
MOST_NAMES: Final = 10_000
"""The number of elements of a request's own list that the broker accepts."""
ELEMENTS_LEFT: Final = 1_000
"""The number of elements by which a request stays below the limit on all lists together."""


class Values(NamedTuple):
    """The names that exist at the broker under test. The first name of each list belongs to the largest object."""

    existing: dict[Kind, list[Any]]


class Case(NamedTuple):
    """One expensive request of an API."""

    name: str
    frame: bytes

    @property
    def api(self) -> str:
        return self.name.split(" ")[0].removesuffix("Request")


def cases(name: str, values: Values, *, thorough: bool = True) -> Iterator[Case]:
    """Yield the expensive requests of one API.

    Args:
        name: The name of the request.
        values: The names that exist at the broker.
        thorough: Whether to use all different versions and more ways. Otherwise only what is usually worst.
    """
    tried: set[str] = set()
    for version in reversed(versions_of(name)):
        ways = _Ways(name, version, values, thorough=thorough)
        wanted = [path for path in ways.fields if thorough or path not in tried]
        if tried and not wanted:
            continue
        tried.update(ways.fields)
        yield ways.case("valid", frame_of(name, version, _same(values)))
        for path in wanted:
            yield from ways.field(path)
        yield from ways.nested()
        yield from ways.tagged(REQUEST_BYTES)
        if thorough:
            yield from ways.claims()


class _Ways:
    """Yields the expensive requests of one version of an API."""

    def __init__(self, name: str, version: int, values: Values, *, thorough: bool) -> None:
        self.fields = {p: f for p, f in served_fields(name).items() if exists(name, p, version)}
        self._name = name
        self._version = version
        self._values = values
        self._thorough = thorough
        self._most_elements = message_class(name).MAX_ELEMENTS - ELEMENTS_LEFT
        self._is_flexible = version >= request_schemas()[name][1].first_flexible

    def case(self, what: str, frame: bytes) -> Case:
        assert len(frame) - 4 <= REQUEST_BYTES, f"{self._name} {what}: {len(frame)} bytes"
        return Case(f"{self._name} v{self._version} {what}", frame)

    def frame(self, shape: Shape) -> bytes:
        return frame_of(self._name, self._version, shape)

    def field(self, path: str) -> Iterator[Case]:
        """Make one field large."""
        each = self.fields[path]
        if each.is_array:
            yield from self.alike(path)
            if self._thorough:
                yield from self.different(path)
        elif each.type in {"string", "bytes"}:
            yield self.filled(path, each)

    def alike(self, path: str) -> Iterator[Case]:
        """Repeat the element of a list, or an empty element, as often as the size and the broker allow."""
        ways = {
            "repeat": lambda count: _same(self._values, {path: count}),
            "empty": lambda count: _same(self._values, {path: count}, empty=frozenset({path})),
        }
        for way, shape in ways.items():
            repeated = Repeated.of(self._name, self._version, shape)
            fits = repeated.fits(REQUEST_BYTES)
            counts = {min(fits, self._admitted(path)), fits}
            if not self._thorough:
                counts = {min(counts) if way == "repeat" else fits}
            for count in sorted(counts):
                yield self.case(f"{path}: {way} x {count}", repeated.frame(count))

    def different(self, path: str) -> Iterator[Case]:
        """Fill a list with different names, existing or not, as many as the broker accepts."""
        for existing in (True, False):
            some = self.frame(_distinct(self._values, path, {path: 1000}, existing=existing))
            fits = 1000 * (REQUEST_BYTES - ROOM) // len(some) * 4 // 5
            count = min(self._admitted(path), fits)
            frame = self.frame(_distinct(self._values, path, {path: count}, existing=existing))
            yield self.case(f"{path}: {'existing' if existing else 'unknown'} x {count}", frame)

    def _admitted(self, path: str) -> int:
        """Return how many elements the broker accepts.

        Elements of the request itself often contain a list of their own.
        """
        return self._most_elements if "." in path else min(MOST_NAMES, self._most_elements // 2)

    def filled(self, path: str, each: FieldSchema) -> Case:
        """Make a text or bytes as long as possible."""
        is_text = each.type == "string"

        def shape(length: int) -> Shape:
            content: Any = "a" * length if is_text else b"a" * length
            return Shape(
                {}, lambda kind, at, _: content if at == path else _first(self._values, kind)
            )

        longest = REQUEST_BYTES - ROOM - len(self.frame(shape(0)))
        if is_text and not self._is_flexible:
            longest = min(longest, 32_767)
        return self.case(f"{path}: fill", self.frame(shape(longest)))

    def nested(self) -> Iterator[Case]:
        """Fill a list of lists: few outer elements with many inner ones, equally many of both, and many with few."""
        for path, each in self.fields.items():
            outer = path.rpartition(".")[0]
            if not each.is_array or not outer or not self.fields[outer].is_array:
                continue
            for count in (10, 300, 3000) if self._thorough else (300,):
                one, three = (
                    len(self.frame(_same(self._values, {outer: count, path: n}))) for n in (1, 3)
                )
                fits = max(1, (REQUEST_BYTES - ROOM - one) * 2 // (three - one))
                inner = min(fits, (self._most_elements - 2 * count) // count)
                frame = self.frame(_same(self._values, {outer: count, path: inner}))
                if len(frame) <= REQUEST_BYTES:
                    yield self.case(f"{outer} x {count} of {path} x {inner}", frame)

    def tagged(self, most: int) -> Iterator[Case]:
        """Add unknown tagged fields, as many as possible, to the message and to its header."""
        if not self._is_flexible:
            return
        frame, body = self._valid()
        tags = _empty_tags(most - len(frame) - ROOM)
        if frame[-1] == 0:
            yield self.case("tags of the message", _lengthened(frame[:-1] + tags))
        rest = frame[: body - 1] + tags + frame[body:]
        yield self.case("tags of the header", _lengthened(rest))

    def claims(self) -> Iterator[Case]:
        """Claim more than the request has: a count or a length at any place, with zeros behind it."""
        frame, body = self._valid()
        zeros = bytes(REQUEST_BYTES - len(frame) - ROOM)
        claim = b"\xff\xff\x1f" if self._is_flexible else b"\x00\x03\x00\x00"
        for position in range(body, min(len(frame), body + 40), 2):
            claimed = frame[:position] + claim + zeros
            yield self.case(f"claim at {position - body}", _lengthened(claimed))

    def _valid(self) -> tuple[bytes, int]:
        """Return a valid request without its length, and the end of its header."""
        request = make(self._name, self._version, _same(self._values))
        frame = framed(request, self._version)[4:]
        return frame, len(frame) - sum(len(part) for part in request.encode(self._version))


def tagged_frames(name: str, version: int, values: Values, most: int) -> Iterator[Case]:
    """Yield a request of a given size with unknown tagged fields."""
    yield from _Ways(name, version, values, thorough=False).tagged(most)


def _same(values: Values, counts: dict[str, int] | None = None, **more: Any) -> Shape:
    """Fill every field with the largest object of its kind."""
    return Shape(counts or {}, lambda kind, path, number: _first(values, kind), **more)


def _first(values: Values, kind: Kind) -> Any:
    found = values.existing.get(kind)
    return found[0] if found else None


def _distinct(values: Values, path: str, counts: dict[str, int], *, existing: bool) -> Shape:
    """Fill lists with different names, which exist or do not."""

    def value(kind: Kind, at: str, number: int) -> Any:
        if at != path and not at.startswith(f"{path}."):
            return _first(values, kind)
        if not existing:
            return _unknown(kind, number)
        known = values.existing.get(kind)
        return known[number % len(known)] if known else None

    return Shape(counts, value)


def _unknown(kind: Kind, number: int) -> Any:
    match kind:
        case Kind.TOPIC_ID | Kind.DIRECTORY_ID:
            return (number + 1).to_bytes(16)
        case Kind.NUMBER:
            return None
        case Kind.PARTITION | Kind.PRODUCER_ID:
            return number + 1_000_000
        case Kind.BYTES | Kind.RECORDS:
            return b"" if kind is Kind.BYTES else None
        case _:
            return format(number, "x")


@dataclass(frozen=True)
class Repeated:
    """A request with a list of equal elements. Any number of elements can be encoded without encoding each."""

    head: bytes
    element: bytes
    tail: bytes
    is_compact: bool

    @classmethod
    def of(cls, name: str, version: int, shape: Callable[[int], Shape]) -> Repeated:
        """Find the list by encoding 200 and 201 elements: the encodings differ first at the count."""
        _, schema, _ = request_schemas()[name]
        is_compact = version >= schema.first_flexible
        less, more = (frame_of(name, version, shape(n))[4:] for n in (200, 201))
        size = len(more) - len(less)
        differs = next(i for i, (a, b) in enumerate(zip(less, more, strict=False)) if a != b)
        count_at, begin = (differs, differs + 2) if is_compact else (differs - 3, differs + 1)
        element = less[begin : begin + size]
        assert less[begin : begin + 200 * size] == element * 200, f"{name}: equal elements"
        return cls(less[:count_at], element, less[begin + 200 * size :], is_compact)

    def fits(self, most: int) -> int:
        """Return how many elements fit into a request of a number of bytes."""
        return (most - len(self.head) - len(self.tail) - 8) // len(self.element)

    def frame(self, count: int) -> bytes:
        """Return the request with a number of elements."""
        encoded = bytearray()
        if self.is_compact:
            write_varint(encoded, count + 1)
        else:
            encoded += count.to_bytes(4)
        return _lengthened(b"".join([self.head, encoded, self.element * count, self.tail]))


def _empty_tags(room: int) -> bytes:
    """Return a section of distinct, empty tagged fields."""
    return _tags_of(room // 4096 * 1024)


@cache
def _tags_of(count: int) -> bytes:
    section = bytearray()
    write_varint(section, count)
    for tag in range(1000, 1000 + count):
        write_varint(section, tag)
        section.append(0)
    return bytes(section)


def _lengthened(frame: bytes) -> bytes:
    return len(frame).to_bytes(4) + frame
