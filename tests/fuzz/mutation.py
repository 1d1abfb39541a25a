"""Damages bytes with a random generator whose seed repeats the damage."""

from __future__ import annotations

from random import Random

# Replacements of a count or a length: int32, int16 and varints, huge, negative and off by one.
HOSTILE = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x10\x00\x00",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\x80\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x00",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xff\x7f",
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
]


def mutated(data: bytes, chance: Random, other: bytes = b"", *, most: int = 4) -> bytes:
    """Return `data` with one to `most` damages. Some of them copy bytes of `other`."""
    result = bytearray(data)
    for _ in range(chance.randint(1, most)):
        _damage(result, chance, other)
    return bytes(result)


def _damage(data: bytearray, chance: Random, other: bytes) -> None:
    position = chance.randrange(len(data) + 1)
    end = min(len(data), position + chance.choice([0, 1, 1, 2, 4, 8, 64]))
    match chance.randrange(8):
        case 0 if data:
            data[position % len(data)] ^= 1 << chance.randrange(8)
        case 1:
            hostile = chance.choice(HOSTILE)
            data[position : position + chance.choice([0, len(hostile)])] = hostile
        case 2:
            del data[position:end]
        case 3:
            del data[position:]
        case 4:
            data[position:position] = data[position:end] * chance.choice([1, 2, 100])
        case 5:
            start = chance.randrange(len(other) + 1)
            data[position:end] = other[start : start + chance.randrange(64)]
        case 6:
            data[position:position] = chance.randbytes(chance.randrange(32))
        case 7 if data:
            number = chance.choice([-1, 1, 16, -16])
            data[position % len(data)] = (data[position % len(data)] + number) % 256
        case _:  # nothing there to damage
            data += b"\0"
