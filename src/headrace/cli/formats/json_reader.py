"""Reading records from the JSON lines that `headrace consume --format json` writes."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from headrace.cli.formats.reader import InputError, ScannedRecord, Source

_KNOWN: Final = frozenset(
    {
        "topic",
        "partition",
        "offset",
        "timestamp_ms",
        "key",
        "key_encoding",
        "value",
        "value_encoding",
        "headers",
        "leader_epoch",
    }
)
"""The fields of a line. Offset and leader epoch are ignored."""


def scan_json(read: Callable[[], bytes], *, keep_partition: bool) -> Iterator[ScannedRecord]:
    """Read one record from each line until the input ends; skip empty lines.

    Args:
        read: Returns available bytes; waits if there are none. b"" at the end of the input.
        keep_partition: Whether to write a record to the partition in its line.

    Raises:
        InputError: A line is not a record in this format; the message has the line number.
    """
    source = Source(read)
    number = 0
    while not source.at_end:
        number += 1
        try:
            line = source.take_until(b"\n")
            source.take(min(1, len(source.peek(1))))
            if not line.strip():
                continue
            record = _record(line)
        except InputError as error:
            raise InputError(f"line {number}: {error}") from None
        if not keep_partition:
            record.partition = None
        yield record


def _record(line: bytes) -> ScannedRecord:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise InputError(f"not JSON: {line[:40]!r} ({error})") from None
    if not isinstance(document, dict):
        raise InputError(f"expected a JSON object, not {line[:40]!r}")
    if unknown := sorted(document.keys() - _KNOWN):
        raise InputError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    if "value" not in document:
        raise InputError("the field 'value' is missing; use null for a record without a value")
    return ScannedRecord(
        topic=_typed(document, "topic", str),
        key=_data(document, "key"),
        value=_data(document, "value"),
        partition=_typed(document, "partition", int),
        timestamp_ms=_typed(document, "timestamp_ms", int),
        headers=_headers(document.get("headers")),
    )


def _typed(document: dict[str, Any], name: str, kind: type[Any]) -> Any:
    found = document.get(name)
    if found is None or (isinstance(found, kind) and not isinstance(found, bool)):
        return found
    raise InputError(f"{name!r} is {_KINDS[kind]}, not {json.dumps(found)[:40]}")


_KINDS: Final = {str: "text", int: "a whole number"}


def _data(document: dict[str, Any], name: str) -> bytes | None:
    """Return the bytes of a key or value: UTF-8 text, or base64 if the encoding field says so."""
    found = _typed(document, name, str)
    encoding = document.get(f"{name}_encoding")
    if encoding not in {None, "base64"}:
        raise InputError(f"'{name}_encoding' is base64 or missing, not {encoding!r}")
    if found is None:
        return None
    try:
        data: bytes = base64.b64decode(found, validate=True) if encoding else found.encode()
    except (binascii.Error, ValueError):
        what = "base64" if encoding else "text in Unicode"
        raise InputError(f"{name!r} is not {what}: {found[:40]!r}") from None
    return data


def _headers(found: Any) -> list[tuple[str, bytes | None]]:
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InputError("'headers' is a list of objects with the fields 'key' and 'value'")
    headers = []
    for each in found:
        unknown = sorted(each.keys() - {"key", "value", "value_encoding"})
        if unknown or not isinstance(each.get("key"), str):
            raise InputError(
                f"a header has a text 'key' and a 'value', not {json.dumps(each)[:60]}"
            )
        headers.append((each["key"], _data(each, "value")))
    return headers
