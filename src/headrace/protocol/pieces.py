"""Encoding of a large response in pieces, so that the caller can do other work between them.

The encoder of a message takes some microseconds for each element of its lists. This module divides the longest list of
the message: (1) It encodes the message with an empty list, which shows the bytes before and after the elements. (2) It
encodes the message with a part of the elements at a time, and removes the bytes before and after them. An element that
is long itself is divided in the same way. So the classes need no second encoder, and small messages cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar

from headrace.protocol.codec import Message, Structure, write_varint
from headrace.types import Payload

PIECE_ELEMENTS: Final = 1_000
"""The number of elements that are encoded at a time, with those of nested lists. They take about three milliseconds."""

_INT32: Final = Struct(">i")
_PRIMITIVES: Final = frozenset({"int", "str", "bytes", "bool", "float", "Payload", "Buffer"})
_NUMBERS_AN_ELEMENT: Final = 16
"""The number of list entries that are numbers and take as long to encode as one structure."""
_FIELDS: Final[dict[type[Structure], tuple[str, ...]]] = {}
"""The fields that are lists or structures, for the classes that were encoded so far."""

S = TypeVar("S", bound=Structure)
Encode: TypeAlias = Callable[[S], list[Payload]]
Pieces: TypeAlias = Generator[int, None, list[Payload]]
"""A generator that yields the number of encoded elements after each step, and returns the buffers."""


def is_long(message: Message) -> bool:
    """Return whether a message has more than `PIECE_ELEMENTS` elements."""
    return _size(message, PIECE_ELEMENTS) > PIECE_ELEMENTS


def encode_in_pieces(message: Message, version: int, prefix: bytes) -> Pieces:
    """Encode a message as `message.encode(version, prefix)` does, in several steps and into more buffers.

    The message must not be changed before the end. The caller has checked that the message `is_long`.
    """
    flexible = version >= message.FLEXIBLE_VERSION
    return _pieces(lambda part: part.encode(version, prefix), message, flexible=flexible)


def _pieces(encode: Encode[Any], whole: Structure, *, flexible: bool) -> Pieces:
    """Encode one structure.

    Args:
        encode: Returns the buffers of a structure of this class.
        whole: The structure.
        flexible: Whether the count of a list is a varint.
    """
    divided = _longest_list(encode, whole, flexible=flexible)
    if divided is None:
        yield PIECE_ELEMENTS
        return encode(whole)
    name, around = divided
    elements = getattr(whole, name)
    part = _copy(whole)

    def encode_some(some: Sequence[Any]) -> list[Payload]:
        setattr(part, name, some)
        return around.cut_off(encode(part), len(some))

    buffers: list[Payload] = [around.head(len(elements))]
    for some, size in _divided(elements):
        if size > PIECE_ELEMENTS:
            one = yield from _pieces(lambda each: encode_some([each]), some[0], flexible=flexible)
            buffers += one
        else:
            buffers += encode_some(some)
            yield size
    return [*buffers, around.tail] if around.tail else buffers


class _Around:
    """The bytes before and after the elements of a list.

    Args:
        empty: The encoded structure with the list empty.
        position: The position of the list's count.
        flexible: Whether the count is a varint.
    """

    __slots__ = ("_flexible", "_head", "tail")

    def __init__(self, empty: bytearray, position: int, *, flexible: bool) -> None:
        self._flexible = flexible
        self._head = bytes(empty[:position])
        self.tail = bytes(empty[position + len(self._count(0)) :])
        """The bytes after the elements."""

    def cut_off(self, buffers: list[Payload], count: int) -> list[Payload]:
        """Return the buffers without the bytes before and after the `count` elements."""
        first, last = buffers[0], buffers[-1]
        assert isinstance(first, bytearray)
        if self.tail:
            assert isinstance(last, bytearray)
            del last[-len(self.tail) :]
        del first[: len(self._head) + len(self._count(count))]
        return [buffer for buffer in buffers if len(buffer)]

    def head(self, count: int) -> bytearray:
        """Return the bytes before `count` elements."""
        return bytearray(self._head) + self._count(count)

    def _count(self, count: int) -> bytes | bytearray:
        if not self._flexible:
            return _INT32.pack(count)
        out = bytearray()
        write_varint(out, count + 1)
        return out


def _longest_list(
    encode: Encode[Any], whole: Structure, *, flexible: bool
) -> tuple[str, _Around] | None:
    """Return the name of the longest list of structures, and the bytes before and after its elements.

    None if no list can be divided: the structure has no list in this version, or it is encoded into several buffers.
    """
    sizes = {
        name: _size_of_field(field, PIECE_ELEMENTS)
        for name in _fields(type(whole))
        if isinstance(field := getattr(whole, name), list)
        and field
        and isinstance(field[0], Structure)
    }
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        around = _around(encode, whole, name, flexible=flexible)
        if around is not None:
            return name, around
    return None


def _around(encode: Encode[Any], whole: Structure, name: str, *, flexible: bool) -> _Around | None:
    """Return the bytes before and after the elements of a list; None if the list cannot be divided."""
    part = _copy(whole)
    one = _without_lists(getattr(whole, name)[0])
    found: list[bytearray] = []
    for elements in ([], [one], [one, one]):
        setattr(part, name, elements)
        buffers = encode(part)
        if len(buffers) != 1 or not isinstance(buffers[0], bytearray):
            return None
        found.append(buffers[0])
    empty, with_one, with_two = found
    position = _first_difference(memoryview(empty), memoryview(with_one))
    if not flexible:
        position -= _INT32.size - 1  # the two differ in the last byte of the count
    around = _Around(empty, position, flexible=flexible)
    # This excludes two kinds: a tagged list, whose size is encoded elsewhere, too, and a list that the version lacks.
    (element,) = around.cut_off([with_one], 1) or [b""]
    assert isinstance(element, bytes | bytearray)
    return around if around.head(2) + element * 2 + around.tail == with_two else None


def _first_difference(one: memoryview, other: memoryview) -> int:
    same, differ = 0, min(len(one), len(other))
    while same < differ:
        middle = (same + differ + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differ = middle - 1
    return same


def _divided(elements: Sequence[Any]) -> Iterator[tuple[Sequence[Any], int]]:
    """Divide a list into pieces: one long element, or several elements. Yield each piece with its size."""
    first = size = 0
    for number, element in enumerate(elements):
        more = _size(element, PIECE_ELEMENTS)
        if size and size + more > PIECE_ELEMENTS:
            yield elements[first:number], size
            first, size = number, 0
        size += more
    yield elements[first:], size


def _size(value: Any, most: int) -> int:
    """Return the number of elements in a value, including itself. Stop counting above `most`."""
    if not isinstance(value, Structure):
        return 1
    size = 1
    for name in _fields(type(value)):
        size += _size_of_field(getattr(value, name), most - size)
        if size > most:
            break
    return size


def _size_of_field(field: Any, most: int) -> int:
    if not isinstance(field, list):
        return 0 if field is None else _size(field, most)
    if not field or not isinstance(field[0], Structure):
        return len(field) // _NUMBERS_AN_ELEMENT
    size = len(field)
    for element in field:
        if size > most:
            break
        size += _size(element, most - size) - 1
    return size


def _fields(kind: type[Structure]) -> tuple[str, ...]:
    """Return the fields that are lists or structures."""
    known = _FIELDS.get(kind)
    if known is None:
        known = _FIELDS[kind] = _find_fields(kind)
    return known


def _find_fields(kind: type[Structure]) -> tuple[str, ...]:
    return tuple(
        name
        for name, of in kind.__annotations__.items()
        if of.removesuffix(" | None") not in _PRIMITIVES and not of.startswith("ClassVar")
    )


def _without_lists(structure: S) -> S:
    copy = _copy(structure)
    for name in _fields(type(structure)):
        if isinstance(getattr(structure, name), list):
            setattr(copy, name, [])
    return copy


def _copy(structure: S) -> S:
    copy = type(structure).__new__(type(structure))
    for name in structure.__slots__:
        setattr(copy, name, getattr(structure, name))
    return copy
