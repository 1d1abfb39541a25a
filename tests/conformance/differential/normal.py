"""Responses in a form in which two brokers can be compared: values that must differ become symbols.

Member ids, topic ids, producer ids, the broker's address and clock differ between any two brokers. They are replaced
by what they are ("a member", "the second producer"), so that confusing two of them still shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import CorruptRecordError
from headrace.protocol.codec import ZERO_UUID, Structure
from headrace.records.batch import iterate_headers
from headrace.records.reader import read_records

Normal = Any
"""None, numbers, text and bytes, in dicts and lists."""

DROPPED = frozenset({"throttle_time_ms", "headrace_start_ms"})
"""Fields that are not compared: how long a client waits, and a time that Headrace's brokers send to each other."""
ABSENT = "nothing"
IDENTITY_FIELDS = (
    ("topic", "name", "topic_name", "resource_name", "group_id", "key", "member_id", "api_key"),
    ("partition", "partition_index", "index", "resource_type", "source"),
)
"""Fields that identify an element of a list."""


class Symbols:
    """The symbols of one scenario for the values that one broker chooses."""

    def __init__(self, own_address: tuple[str, int], started_ms: int) -> None:
        self._own_address = own_address
        self._started_ms = started_ms
        self._known: dict[tuple[str, Any], str] = {}

    def of(self, kind: str, value: Any) -> str:
        """Return the symbol of a value: its kind and a number, in the order in which values were first seen."""
        number = sum(known == kind for known, _ in self._known)
        return self._known.setdefault((kind, value), f"<{kind} {number}>")

    def name(self, kind: str, value: Any, symbol: str) -> None:
        """Give a value a symbol before it is seen in a response."""
        self._known.setdefault((kind, value), symbol)

    def time(self, value: int) -> int | str:
        """Return "now" if the time is within this run."""
        return "<now>" if value >= self._started_ms - 60_000 else value

    def address(self, host: str, port: int) -> tuple[str, int | str]:
        """Return the symbol of the broker's own address; return any other address unchanged."""
        return ("<host>", "<port>") if (host, port) == self._own_address else (host, port)


def normal(value: Any, symbols: Symbols) -> Normal:
    """Return a message as plain values and symbols."""
    if isinstance(value, Structure):
        return _structure(value, symbols)
    if isinstance(value, list | tuple):
        items = [normal(item, symbols) for item in value]
        if items and all(isinstance(item, dict) for item in items):
            # The order of the topics in an answer of Kafka is the order of a hash map.
            return sorted(items, key=lambda item: tuple(map(repr, identity(item))))
        return items
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


def identity(item: dict[str, Normal]) -> tuple[Normal, ...]:
    """Return the fields that distinguish an element of a list from its neighbours."""
    found = []
    for names in IDENTITY_FIELDS:
        found += [item[name] for name in names if item.get(name) is not None][:1]
    return tuple(found)


def _structure(value: Structure, symbols: Symbols) -> dict[str, Normal]:
    fields = {name: getattr(value, name) for name in value.__slots__ if name not in DROPPED}
    if "host" in fields and "port" in fields:
        fields["host"], fields["port"] = symbols.address(fields["host"], fields["port"])
    if fields.get("error_code"):
        # Error messages differ between the brokers, and Kafka often sends none.
        fields.pop("error_message", None)
    return {
        name: SPECIAL[name](field, symbols) if name in SPECIAL else normal(field, symbols)
        for name, field in fields.items()
    }


def _member(value: str | None, symbols: Symbols) -> str | None:
    return symbols.of("member", value) if value else value


def _topic_id(value: bytes, symbols: Symbols) -> str:
    return "<no topic id>" if bytes(value) == ZERO_UUID else symbols.of("topic", bytes(value))


def _producer(value: int, symbols: Symbols) -> int | str:
    return symbols.of("producer", value) if value >= 0 else value


def _text(value: str | None, symbols: Symbols) -> str | None:
    return "<text>" if value else None


def _records(value: Any, symbols: Symbols) -> list[dict[str, Normal]] | None:
    return None if value is None else list(_batches(value, symbols))


def _batches(raw: Any, symbols: Symbols) -> Iterator[dict[str, Normal]]:
    end = 0
    for position, header in iterate_headers(raw):
        end = position + header.size
        yield {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "attributes": header.attributes,
            "leader_epoch": header.partition_leader_epoch,
            "max_timestamp": symbols.time(header.max_timestamp),
            "producer": _producer(header.producer_id, symbols),
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "records": _contents(raw[position:end], symbols),
        }
    if end < len(raw):
        yield {"base_offset": "<cut>"}


def _contents(batch: Any, symbols: Symbols) -> Normal:
    try:
        return [
            (r.offset, symbols.time(r.timestamp), r.key, r.value, tuple(r.headers))
            for r in read_records(batch, include_control=True)
        ]
    except CorruptRecordError:
        return "<damaged>"


SPECIAL: dict[str, Callable[[Any, Symbols], Normal]] = {
    "member_id": _member,
    "leader": _member,
    "topic_id": _topic_id,
    "producer_id": _producer,
    "error_message": _text,
    "batch_index_error_message": _text,
    "documentation": _text,
    "cluster_id": lambda value, _: "<cluster>" if value else value,
    "log_append_time_ms": lambda value, symbols: symbols.time(value),
    "timestamp": lambda value, symbols: symbols.time(value),
    "last_fetch_timestamp": lambda value, symbols: symbols.time(value),
    "last_caught_up_timestamp": lambda value, symbols: symbols.time(value),
    "session_id": lambda value, _: "<session>" if value else value,
    "records": _records,
    "aborted_transactions": lambda value, symbols: normal(value or [], symbols),
}


def differences(left: Normal, right: Normal, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the differences between two normal forms: the path, and the values as text."""
    left, right = _by_name(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        for name in {**left, **right}:
            where = f"{path}/{name}" if path else str(name)
            if name in left and name in right:
                yield from differences(left[name], right[name], where)
            else:
                yield where, _show(left, name), _show(right, name)
    elif left != right:
        yield path, repr(left), repr(right)


def _by_name(left: Normal, right: Normal) -> tuple[Normal, Normal]:
    """Turn two lists into dicts; the keys are the identity fields of the elements, or else their positions."""
    if not isinstance(left, list) or not isinstance(right, list):
        return left, right
    both = [*left, *right]
    named = all(isinstance(item, dict) and identity(item) for item in both)
    return _keyed(left, named=named), _keyed(right, named=named)


def _keyed(items: list[Normal], *, named: bool) -> dict[str, Normal]:
    keyed: dict[str, Normal] = {}
    for position, item in enumerate(items):
        key = ":".join(map(str, identity(item))) if named else str(position)
        copies = sum(known == key or known.startswith(f"{key}#") for known in keyed)
        keyed[f"{key}#{copies}" if copies else key] = item
    return keyed


def _show(value: dict[str, Normal], name: str) -> str:
    return repr(value[name]) if name in value else ABSENT
