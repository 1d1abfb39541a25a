"""The base classes of the generated messages, and the primitives of the wire format.

The generated code contains the frequent paths inline. Only rare and shared paths are here. The generated code relies on
four conventions:

* A decoder may slice past the end of the buffer, which moves `position` past the end. `Message.decode` compares the
  final position with the length. Until then no large object can be created: reading numbers past the end raises an
  exception, slices past the end are empty, and every element count is compared with the remaining bytes before the
  first element is created.
* `left` is the number of elements that the message may still have: elements of all lists, also nested ones, and tagged
  fields. A decoder subtracts the count of a list from it before the first element is created. So the number of objects
  has a limit for each class, however the message divides its bytes.
* The first byte of a length or a count is read inline. `varint_tail` or `length_tail` reads the rest in the rare case
  that there are more bytes.
* `UNSET` is the default of list and struct arguments, so that every object gets a new list or struct.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - the name `error` would be too general
from typing import Any, ClassVar, Final, NoReturn, Self

from headrace.errors import ProtocolError
from headrace.types import Payload

NEVER_FLEXIBLE: Final = 32767
STRING_LIMIT: Final = 32_767
"""The longest string of a message in bytes. Before the flexible versions the length was a 16-bit number."""
ZERO_UUID: Final = bytes(16)
UNSET: Final[Any] = object()
NULL_INT16: Final = b"\xff\xff"
NULL_INT32: Final = b"\xff\xff\xff\xff"
REQUEST_ELEMENTS: Final = 32_000
"""The most elements of a request: all lists together, and tagged fields."""
SETTINGS_ELEMENTS: Final = 16_000
"""The most elements of a request that changes settings or quotas, because checking them costs twice as much."""
MESSAGE_ELEMENTS: Final = 2_000_000
"""The most elements of a response or a stored message: all lists together, and tagged fields."""

_SECRETS: Final = frozenset({"auth_bytes", "salt", "salted_password"})
"""The fields whose contents do not appear in representations."""
_MAX_VARINT_BYTES = 5
_SHORT_ARRAY = 16
_INT32S: Final = [Struct(f">{count}i") for count in range(_SHORT_ARRAY + 1)]
_COUNTED_INT32S: Final = [Struct(f">i{count}i") for count in range(_SHORT_ARRAY + 1)]
_COMPACT_INT32S: Final = [Struct(f">B{count}i") for count in range(_SHORT_ARRAY + 1)]


class Structure:
    """The base class of all structs of messages, with equality and a readable representation by fields."""

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
    """The base class of requests, responses and stored records. A class covers all versions of a message.

    Encoding ignores fields that the version does not have; decoding sets them to their defaults. Strings and bytes are
    copied from the buffer. `records` fields are views into the buffer.
    """

    __slots__ = ()

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_VERSION: ClassVar[int]
    MAX_ELEMENTS: ClassVar[int] = MESSAGE_ELEMENTS
    """The most elements that all lists of a message may have together, with tagged fields. More are not decoded."""

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
        cls, view: memoryview, position: int, version: int, left: int | None = None
    ) -> tuple[Self, int]:
        """Read one message from byte `position` of `view` on.

        Args:
            view: The buffer.
            position: The position of the message.
            version: The version of the message.
            left: The most elements that all lists may have together; None is `MAX_ELEMENTS`.

        Returns:
            The message, and the position after it.

        Raises:
            ProtocolError: The bytes are not a message of this version, the message has more elements than are
                allowed, or the version does not exist.
        """
        if left is None:
            left = cls.MAX_ELEMENTS
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise ProtocolError(f"{cls.__name__} has no version {version}")
        try:
            if version >= cls.FLEXIBLE_VERSION:
                message, position = cls._decode_flexible(view, position, version, left)
            else:
                message, position = cls._decode_plain(view, position, version, left)
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
        cls, view: memoryview, position: int, version: int, left: int
    ) -> tuple[Self, int]:
        raise NotImplementedError

    @classmethod
    def _decode_plain(
        cls, view: memoryview, position: int, version: int, left: int
    ) -> tuple[Self, int]:
        raise NotImplementedError


def fail_null(field: str) -> NoReturn:
    """Raise the error for null, or another negative length, in a field that must not be null."""
    raise ProtocolError(f"{field} must not be null")


def fail_count(count: int, field: str, left: int) -> NoReturn:
    """Raise the error for an array that has more elements than the remaining bytes, or than the message may have."""
    if left < 0:
        raise ProtocolError(
            f"{field}: with {count} elements the message has {-left} more than are allowed"
        )
    raise ProtocolError(f"{field}: {count} elements do not fit into the rest of the message")


def varint_tail(view: memoryview, position: int, value: int) -> tuple[int, int]:
    """Complete an unsigned varint whose first byte, `value`, has its high bit set.

    Args:
        view: The buffer.
        position: The position of the second byte.
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
    """Complete the length of a field that must not be null; see `varint_tail`. The value 0 (null) is refused."""
    if value:
        value, position = varint_tail(view, position, value)
    if value == 0:
        fail_null(field)
    return value, position


def string_tail(view: memoryview, position: int, value: int, field: str) -> tuple[int, int]:
    """Complete the length of a string, which is at most 32,767 bytes as in Kafka; see `varint_tail`."""
    value, position = varint_tail(view, position, value)
    if value > STRING_LIMIT + 1:
        raise ProtocolError(f"{field} is a string of {value - 1} bytes; {STRING_LIMIT} are allowed")
    return value, position


def string_length_tail(view: memoryview, position: int, value: int, field: str) -> tuple[int, int]:
    """Complete the length of a string that must not be null; see `string_tail`. The value 0 (null) is refused."""
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


def count_tags(view: memoryview, position: int, count: int, left: int) -> tuple[int, int, int]:
    """Read the count of a section of tagged fields.

    Args:
        view: The buffer.
        position: The position after the first byte of the section.
        count: The first byte of the section, with which the count begins as a varint.
        left: The number of elements that the message may still have.

    Returns:
        The count, the position after it, and the number of elements that the message may have besides.
    """
    if count > 0x7F:
        count, position = varint_tail(view, position, count)
    left -= count
    if left < 0:
        fail_count(count, "tagged fields", left)
    return count, position, left


def skip_tags(view: memoryview, position: int, count: int, left: int) -> tuple[int, int]:
    """Skip a section of tagged fields, none of which the struct knows; see `count_tags`.

    Returns:
        The position after the section, and the number of elements that the message may have besides.
    """
    count, position, left = count_tags(view, position, count, left)
    for _ in range(count):
        _, position = read_varint(view, position)
        size, position = read_varint(view, position)
        position += size
    return position, left


def read_tag(view: memoryview, position: int) -> tuple[int, int, int]:
    """Read the head of a tagged field.

    Returns:
        The tag, the position of the field's first byte, and the position after its last byte.
    """
    tag, position = read_varint(view, position)
    size, position = read_varint(view, position)
    if size > len(view) - position:
        raise ProtocolError(f"tagged field {tag} is cut short")
    return tag, position, position + size


def check_tag(position: int, end: int, tag: int) -> None:
    """Raise an error if the content of a tagged field does not have the length in its head."""
    if position != end:
        raise ProtocolError(f"tagged field {tag} ends {position - end} bytes past its size")


def write_tag(out: bytearray, tag: int, content: bytearray) -> None:
    """Append one tagged field."""
    write_varint(out, tag)
    write_varint(out, len(content))
    out += content


def read_numbers(view: memoryview, position: int, count: int, code: str) -> list[int]:
    """Read `count` numbers with a code of `struct`. The caller has checked that the buffer contains them."""
    return list(Struct(f">{count}{code}").unpack_from(view, position))


def read_int32s(view: memoryview, position: int, count: int) -> list[int]:
    """Read `count` int32 numbers. The caller has checked that the buffer contains them."""
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
