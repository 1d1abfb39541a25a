"""The records for the topics. Their bytes fit the serde that the topic names."""

from __future__ import annotations

from typing import Final, NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """One record that was written, with the values that a reader must return."""

    key: bytes
    value: bytes | None
    headers: Headers = ()


HEADERS: Final[Headers] = (("a", b"1"), ("a", None), ("\N{SNOWMAN}", b"\xff"), ("empty", b""))
RAW: Final = [b"\xff\x00\n", b"", b'{"id": 1}', b"caf\xe9\r\n", bytes(range(256)) * 20]
TEXT: Final = [b"text", b"", "\N{SNOWMAN}\n".encode(), b'{"id": 1}', b" " * 3000]
JSON: Final = [b'{"id":1}', b'"caf\xc3\xa9"', b"[1,2,[]]", b"7", b'{"text":"' + b"x" * 3000 + b'"}']
VALUES: Final = {"none": RAW, "bytes": RAW, "str": TEXT, "json": JSON, "elsewhere": RAW}
KEYS: Final = {
    "none": [b"\xff", b"k", b"", b"key of five", b"k"],
    "str": [b"a", b"k", b"", "\N{SNOWMAN}".encode(), b"k"],
    "json": [b'"a"', b"1", b'{"id":2}', b"[]", b'"a"'],
    "elsewhere": [b"\xff", b"k", b"", b"key of five", b"k"],
}


def records(serde: str, key_serde: str) -> list[Sent]:
    """Return records whose bytes are what serdes of these names write; the last one has no value."""
    pairs = zip(KEYS[key_serde], VALUES[serde], strict=True)
    found = [Sent(key, value, HEADERS) for key, value in pairs]
    return [*found, Sent(found[0].key, None)]
