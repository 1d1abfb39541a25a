"""Zigzag varints, as records use them: at most 5 bytes for 32 bits, and 10 bytes for 64 bits."""

from __future__ import annotations

from typing import Final

from headrace.errors import CorruptRecordError
from headrace.types import Buffer

MAX_VARINT_SIZE: Final = 5
MAX_VARLONG_SIZE: Final = 10
_MASK: Final = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """Encode a signed integer of up to 64 bits."""
    unsigned = (value << 1) ^ (value >> 63)
    if unsigned < 0x80:
        return _SINGLE[unsigned]
    encoded = bytearray()
    while unsigned >= 0x80:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)


def wrap(value: int) -> int:
    """Return the signed integer of 64 bits that a sum becomes in Java: the smallest number follows the largest."""
    return (value + (1 << 63) & _MASK) - (1 << 63)


def decode_varint(
    buffer: Buffer, position: int, max_size: int = MAX_VARINT_SIZE
) -> tuple[int, int]:
    """Return (value, position after it).

    Raises:
        CorruptRecordError: The buffer ends inside the number, or the number is longer than `max_size` bytes or its
            type.
    """
    unsigned = shift = 0
    for index in range(position, position + max_size):
        try:
            byte = buffer[index]
        except IndexError:
            raise CorruptRecordError(f"a varint at byte {position} is cut off") from None
        unsigned |= (byte & 0x7F) << shift
        if byte < 0x80:
            if unsigned >> (32 if max_size == MAX_VARINT_SIZE else 64):
                break
            return (unsigned >> 1) ^ -(unsigned & 1), index + 1
        shift += 7
    raise CorruptRecordError(f"the varint at byte {position} is too long")


_SINGLE: Final = [bytes((byte,)) for byte in range(0x80)]

SMALL_VARINTS: Final = [encode_varint(value) for value in range(2048)]
"""The encoded numbers 0, 1, 2, ... Loops over records look them up instead of encoding them again."""
