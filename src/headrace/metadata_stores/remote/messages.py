"""The messages between the store of a supervisor and the brokers that it has started.

A message is a JSON array after its length in four bytes. The first element names the kind of the message. Values are in
base64. Both ends are of one version, because the supervisor starts the brokers.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.errors import StorageError
from headrace.ports import (
    Check,
    CommitOutcome,
    Conflict,
    Delete,
    MetadataBatch,
    MetadataEntry,
    Put,
    SessionLost,
    Unavailable,
    Unknown,
)

Message = Sequence[Any]

SIZE_BYTES: Final = 4
MESSAGE_BYTES_LIMIT: Final = 256 * 1024 * 1024
"""The greatest size of a message. The largest one is the snapshot of all entries."""

_ERRORS: Final[Mapping[str, type[Unavailable | Unknown | SessionLost]]] = {
    "unavailable": Unavailable,
    "unknown": Unknown,
    "session lost": SessionLost,
}
_KINDS: Final = {error: kind for kind, error in _ERRORS.items()}


def encoded(message: Message) -> bytes:
    """Return a message with its length."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return len(text).to_bytes(SIZE_BYTES) + text


class Messages:
    """Splits the bytes of a connection into messages."""

    __slots__ = ("_received",)

    def __init__(self) -> None:
        """Begin at the first byte of a connection."""
        self._received = bytearray()

    def add(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._received += data

    def __iter__(self) -> Iterator[Message]:
        """Return each message that is complete, and forget it.

        Raises:
            StorageError: The bytes are no message.
        """
        while len(self._received) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._received[:SIZE_BYTES])
            if end > MESSAGE_BYTES_LIMIT:
                raise StorageError(
                    f"a message has {end} bytes, at most {MESSAGE_BYTES_LIMIT} are allowed"
                )
            if len(self._received) < end:
                return
            text = bytes(self._received[SIZE_BYTES:end])
            del self._received[:end]
            try:
                yield json.loads(text)
            except ValueError as error:
                raise StorageError(f"a message cannot be read: {error}") from error


# Commits


def commit_message(
    number: int, session: int, checks: Sequence[Check], operations: Sequence[Put | Delete]
) -> Message:
    """Return the request of a commit."""
    return (
        "commit",
        number,
        session,
        [(check.key, check.version) for check in checks],
        [_operation(operation) for operation in operations],
    )


def _operation(operation: Put | Delete) -> Message:
    if isinstance(operation, Delete):
        return (operation.key,)
    return operation.key, _text(operation.value), operation.ephemeral


def parsed_commit(message: Message) -> tuple[list[Check], list[Put | Delete]]:
    """Return the checks and operations of a commit."""
    _, _, _, checks, operations = message
    return [Check(*check) for check in checks], [
        Delete(*fields) if len(fields) == 1 else Put(fields[0], _value(fields[1]), fields[2])
        for fields in operations
    ]


def outcome_message(number: int, outcome: CommitOutcome) -> Message:
    """Return the response to a commit."""
    if isinstance(outcome, dict):
        return "outcome", number, "versions", outcome
    if isinstance(outcome, Conflict):
        return "outcome", number, "conflict", outcome.index
    return "outcome", number, _KINDS[type(outcome)], str(outcome)


def parsed_outcome(message: Message) -> CommitOutcome:
    """Return the outcome of a commit."""
    _, _, kind, detail = message
    if kind == "versions":
        return dict(detail)
    if kind == "conflict":
        return Conflict(detail)
    return _ERRORS[kind](detail)


# Notifications


def batch_message(batch: MetadataBatch) -> Message:
    """Return the notification of a watch."""
    puts = [(entry.key, _text(entry.value), entry.version) for entry in batch.puts]
    return "batch", batch.snapshot, puts, list(batch.deletes)


def parsed_batch(message: Message) -> MetadataBatch:
    """Return the notification of a watch."""
    _, snapshot, puts, deletes = message
    entries = [MetadataEntry(key, _value(text), version) for key, text, version in puts]
    return MetadataBatch(snapshot=snapshot, puts=entries, deletes=deletes)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _value(text: str) -> bytes:
    return binascii.a2b_base64(text)
