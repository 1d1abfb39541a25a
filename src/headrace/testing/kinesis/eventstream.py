"""The frames of application/vnd.amazon.eventstream, in which SubscribeToShard pushes its events.

A frame contains its length and the length of the headers, 4 bytes each; the CRC-32 of these 8 bytes; headers; payload;
and the CRC-32 of all that. A header contains the length of its name, its name, the type 7 (text), the length of the
text in 2 bytes, and the text.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
_JSON: Final = "application/x-amz-json-1.1"
_TEXT: Final = 7
_PRELUDE: Final = 12
_CHECKSUM: Final = 4


def event(kind: str, payload: bytes) -> bytes:
    """Return the frame of an event, such as `SubscribeToShardEvent`; `initial-response` is the first event."""
    return _frame({":message-type": "event", ":event-type": kind, ":content-type": _JSON}, payload)


def exception(kind: str, payload: bytes) -> bytes:
    """Return the frame of a refusal, the last frame."""
    return _frame(
        {":message-type": "exception", ":exception-type": kind, ":content-type": _JSON}, payload
    )


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    encoded = b"".join(_header(name, text) for name, text in headers.items())
    length = _PRELUDE + len(encoded) + len(payload) + _CHECKSUM
    prelude = struct.pack(">II", length, len(encoded))
    start = prelude + struct.pack(">I", zlib.crc32(prelude))
    checksum = zlib.crc32(payload, zlib.crc32(encoded, zlib.crc32(start)))
    return b"".join((start, encoded, payload, struct.pack(">I", checksum)))


def _header(name: str, text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(name),)) + name.encode() + struct.pack(">BH", _TEXT, len(encoded)) + encoded
