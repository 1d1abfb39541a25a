"""The base classes of the generated messages, and the primitives of the wire format.

The generated code is straight-line and inlines what it can; only the rare and the shared paths come here. It relies
on three conventions:

* A decoder may slice past the end of the buffer and let `position` run ahead; `Message.decode` compares the final
  position with the length. In between nothing large can happen: reads of numbers past the end raise, slices come out
  empty, and every element count is compared with the bytes that remain before the first element is built.
* `room` is how many elements the message may still have: elements of all lists, nested ones too, and tagged fields.
  A decoder takes the count of a list off it before the first element is built, so that no message, however it divides
  its bytes, becomes more objects than its class allows.
* A length or a count that may be one byte long is read as one byte, and completed by `varint_tail` or `length_tail`
  in the rare case that it is longer.
* `UNSET` is the default of list and struct arguments, so that every object gets a fresh one.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - the class's name says too little
from typing import Any, ClassVar, Final, NoReturn, Self

from headrace.errors import ProtocolError
from headrace.types import Payload

NEVER_FLEXIBLE: Final = 32767
STRING_LIMIT: Final = 32_767
"""Longest string of a message, in bytes; the length was a 16-bit number before the flexible versions."""
ZERO_UUID: Final = bytes(16)
UNSET: Final[Any] = object()
NULL_INT16: Final = b"\xff\xff"
NULL_INT32: Final = b"\xff\xff\xff\xff"
REQUEST_ELEMENTS: Final = 32_000
"""Most elements of a request: all lists together, and tagged fields."""
SETTINGS_ELEMENTS: Final = 16_000
"""Most elements of a request that changes configs or quotas, whose elements cost twice as much to check."""
MESSAGE_ELEMENTS: Final = 2_000_000
"""The most elements of a response or a stored message: all lists together, and tagged fields."""

_SECRETS: Final = frozenset({"auth_bytes", "salt", "salted_password"})
"""Fields whose content is in no representation."""
_MAX_VARINT_BYTES = 5
_SHORT_ARRAY = 16
_INT32S: Final = [Struct(f">{count}i") for count in range(_SHORT_ARRAY + 1)]
_COUNTED_INT32S: Final = [Struct(f">i{count}i") for count in range(_SHORT_ARRAY + 1)]
_COMPACT_INT32S: Final = [Struct(f">B{count}i") for count in range(_SHORT_ARRAY + 1)]


class Structure:
    """Base of every struct of a message: equality and a readable representation by its fields."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # fields are mutable

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={'[hidden]' if name in _SECRETS else repr(getattr(self, name))}"
            for name in self.__slots__
        )
        return f"{type(self).__name__}({fields})"


class Message(Structure):
    """Base of requests, responses and stored records: one class for all versions of a message.

    A field that a version does not have is ignored when that version is encoded, and has its default after it was
    decoded. Strings and bytes are copied out of the buffer; `records` fields are views into it.
    """

    __slots__ = ()

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_VERSION: ClassVar[int]
    MAX_ELEMENTS: ClassVar[int] = MESSAGE_ELEMENTS
    """How many elements all lists of a message may have together, tagged fields included; more are not decoded."""

    def encode(self, version: int, prefix: bytes = b"") -> list[Payload]:
        """Return the message as buffers, to be sent in order.

        Args:
            version: The version to encode, within MIN_VERSION and MAX_VERSION.
            prefix: Bytes to start with (a header); the first buffer is a bytearray that begins with them.

        Raises:
            ProtocolError: The version does not exist, a field is None where the version has no null, or a value
                does not fit (a string over 32,767 bytes before the flexible versions).
        """
        if not self.MIN_VERSION <= version <= self.MAX_VERSION:
            raise ProtocolError(f"{type(self).__name__} has no version {version}")
        out = bytearray(prefix)
        buffers: list[Payload] = []
        try:
            if version >= self.FLEXIBLE_VERSION:
                out = self._encode_flexible(out, buffers, version)
            else:
                out = self._encode_plain(out, buffers, version)
        except (StructError, UnicodeEncodeError) as error:
            raise ProtocolError(
                f"{type(self).__name__} v{version} cannot be encoded: {error}"
            ) from error
        if out:
            buffers.append(out)
        return buffers

    @classmethod
    def decode(
        cls, view: memoryview, position: int, version: int, room: int | None = None
    ) -> tuple[Self, int]:
        """Read one message from byte `position` of `view` on.

        Args:
            view: The buffer.
            position: Where the message begins.
            version: Its version.
            room: How many elements all its lists may have together; None for `MAX_ELEMENTS`.

        Returns:
            The message, and the position after it.

        Raises:
            ProtocolError: The bytes are not a message of this version, the message has more elements than are
                allowed, or the version does not exist.
        """
        if room is None:
            room = cls.MAX_ELEMENTS
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise ProtocolError(f"{cls.__name__} has no version {version}")
        try:
            if version >= cls.FLEXIBLE_VERSION:
                message, position = cls._decode_flexible(view, position, version, room)
            else:
                message, position = cls._decode_plain(view, position, version, room)
        except (StructError, IndexError) as error:
            raise ProtocolError(f"{cls.__name__} v{version} is cut short") from error
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"{cls.__name__} v{version} has a string that is not UTF-8"
            ) from error
        if position > len(view):
            raise ProtocolError(f"{cls.__name__} v{version} is cut short")
        return message, position

    # The generated classes have those of these that their versions need.

    def _encode_flexible(self, out: bytearray, buffers: list[Payload], version: int) -> bytearray:
        raise NotImplementedError

    def _encode_plain(self, out: bytearray, buffers: list[Payload], version: int) -> bytearray:
        raise NotImplementedError

    @classmethod
    def _decode_flexible(
        cls, view: memoryview, position: int, version: int, room: int
    ) -> tuple[Self, int]:
        raise NotImplementedError

    @classmethod
    def _decode_plain(
        cls, view: memoryview, position: int, version: int, room: int
    ) -> tuple[Self, int]:
        raise NotImplementedError


def fail_null(field: str) -> NoReturn:
    """Report null, or another negative length, where the protocol has none."""
    raise ProtocolError(f"{field} must not be null")


def fail_count(count: int, field: str, room: int) -> NoReturn:
    """Report an array that cannot fit into the bytes that remain, or has more elements than the message may have."""
    if room < 0:
        raise ProtocolError(
            f"{field}: with {count} elements the message has {-room} more than are allowed"
        )
    raise ProtocolError(f"{field}: {count} elements do not fit into the rest of the message")


def varint_tail(view: memoryview, position: int, value: int) -> tuple[int, int]:
    """Complete an unsigned varint whose first byte, `value`, has its high bit set.

    Args:
        view: The buffer.
        position: Where the second byte lies.
        value: The first byte.

    Returns:
        The number and the position after it.
    """
    value &= 0x7F
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtocolError("a varint is longer than five bytes")


def length_tail(view: memoryview, position: int, value: int, field: str) -> tuple[int, int]:
    """Like `varint_tail`, for the length of a field that must not be null: 0 (null) is refused."""
    if value:
        value, position = varint_tail(view, position, value)
    if value == 0:
        fail_null(field)
    return value, position


def string_tail(view: memoryview, position: int, value: int, field: str) -> tuple[int, int]:
    """Like `varint_tail`, for the length of a string, which is at most 32,767 bytes long, as in Kafka."""
    value, position = varint_tail(view, position, value)
    if value > STRING_LIMIT + 1:
        raise ProtocolError(f"{field} is a string of {value - 1} bytes; {STRING_LIMIT} are allowed")
    return value, position


def string_length_tail(view: memoryview, position: int, value: int, field: str) -> tuple[int, int]:
    """Like `string_tail`, for a string that must not be null: 0 (null) is refused."""
    if value:
        value, position = string_tail(view, position, value, field)
    if value == 0:
        fail_null(field)
    return value, position


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint; return it and the position after it."""
    value = view[position]
    position += 1
    if value > 0x7F:
        return varint_tail(view, position, value)
    return value, position


def write_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def count_tags(view: memoryview, position: int, count: int, room: int) -> tuple[int, int, int]:
    """Read the count of a section of tagged fields.

    Args:
        view: The buffer.
        position: After the first byte of the section.
        count: That first byte, the start of a varint.
        room: How many elements the message may still have.

    Returns:
        The count, the position after it, and how many elements the message may have besides.
    """
    if count > 0x7F:
        count, position = varint_tail(view, position, count)
    room -= count
    if room < 0:
        fail_count(count, "tagged fields", room)
    return count, position, room


def skip_tags(view: memoryview, position: int, count: int, room: int) -> tuple[int, int]:
    """Skip a section of tagged fields that this struct knows none of; see `count_tags`.

    Returns:
        The position after the section, and how many elements the message may have besides.
    """
    count, position, room = count_tags(view, position, count, room)
    for _ in range(count):
        _, position = read_varint(view, position)
        size, position = read_varint(view, position)
        position += size
    return position, room


def read_tag(view: memoryview, position: int) -> tuple[int, int, int]:
    """Read the head of a tagged field.

    Returns:
        The tag, the position of the field's first byte, the position after its last.
    """
    tag, position = read_varint(view, position)
    size, position = read_varint(view, position)
    if size > len(view) - position:
        raise ProtocolError(f"tagged field {tag} is cut short")
    return tag, position, position + size


def check_tag(position: int, end: int, tag: int) -> None:
    """Refuse a tagged field whose content is not as long as its head says."""
    if position != end:
        raise ProtocolError(f"tagged field {tag} ends {position - end} bytes past its size")


def write_tag(out: bytearray, tag: int, content: bytearray) -> None:
    """Append one tagged field."""
    write_varint(out, tag)
    write_varint(out, len(content))
    out += content


def read_numbers(view: memoryview, position: int, count: int, code: str) -> list[int]:
    """Read `count` numbers of the given Struct code; the caller has checked that they are there."""
    return list(Struct(f">{count}{code}").unpack_from(view, position))


def read_int32s(view: memoryview, position: int, count: int) -> list[int]:
    """Read `count` int32; the caller has checked that they are there."""
    if count <= _SHORT_ARRAY:
        return list(_INT32S[count].unpack_from(view, position))
    return read_numbers(view, position, count, "i")


def number_array(values: list[int], code: str) -> bytes:
    """Return an array of numbers with its int32 count."""
    return Struct(f">i{len(values)}{code}").pack(len(values), *values)


def int32_array(values: list[int]) -> bytes:
    """Return an array of int32 with its int32 count."""
    count = len(values)
    if count <= _SHORT_ARRAY:
        return _COUNTED_INT32S[count].pack(count, *values)
    return number_array(values, "i")


def compact_number_array(values: list[int], code: str) -> bytearray:
    """Return an array of numbers with its count plus one as a varint."""
    out = bytearray()
    write_varint(out, len(values) + 1)
    out += Struct(f">{len(values)}{code}").pack(*values)
    return out


def compact_int32_array(values: list[int]) -> bytes | bytearray:
    """Return an array of int32 with its count plus one as a varint."""
    count = len(values)
    if count <= _SHORT_ARRAY:
        return _COMPACT_INT32S[count].pack(count + 1, *values)
    return compact_number_array(values, "i")
