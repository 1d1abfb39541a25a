"""Small text files with a checksum: a line `headrace <kind> <version>`, lines of content, a line `crc32c <hex>`.

They hold what would be expensive to derive from the log. A damaged file counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c


def encode_checkpoint(kind: str, lines: Iterable[str], version: int = 1) -> bytes:
    """Return the content of the file. No line may contain a line break."""
    body = "".join(f"{line}\n" for line in (f"headrace {kind} {version}", *lines)).encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_checkpoint(kind: str, content: bytes | None, version: int = 1) -> list[str] | None:
    """Return the lines, or None when the file is absent, damaged, or of another kind or version."""
    if content is None:
        return None
    body, separator, checksum = content.rpartition(b"crc32c ")
    if not separator or checksum != f"{crc32c(body):08x}\n".encode():
        return None
    lines = body.decode("utf-8", "replace").split("\n")[:-1]
    return lines[1:] if lines and lines[0] == f"headrace {kind} {version}" else None
