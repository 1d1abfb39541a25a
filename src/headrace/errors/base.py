"""The base class of all exceptions, and the exceptions that belong to no single kind of client."""

from __future__ import annotations

from collections.abc import Sequence


class HeadraceError(Exception):
    """Base of every exception that Headrace raises on purpose."""

    @property
    def lines(self) -> Sequence[str]:
        """The lines in which to print the error. Text from a broker never begins a line."""
        return (str(self),)


class ConfigError(HeadraceError):
    """A configuration property is unknown, malformed or out of range."""


class StartError(ConfigError):
    """An app cannot start, for several reasons at once.

    Attributes:
        problems: The errors that keep the app from starting, in the order in which they were found.
    """

    def __init__(self, problems: Sequence[HeadraceError]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            f"the app cannot start, for {len(self.problems)} reasons: {'; '.join(map(str, self.problems))}"
        )

    @property
    def lines(self) -> Sequence[str]:
        """A line that counts the problems, then a line for each problem."""
        return (
            f"the app cannot start, for {len(self.problems)} reasons:",
            *(f"  {each}" for each in self.problems),
        )


class TransportError(HeadraceError):
    """A connection could not be made, broke, or timed out."""


class ProtocolError(HeadraceError):
    """The peer sent bytes that the protocol does not allow. The connection cannot be used any more."""


class ClosedError(HeadraceError):
    """The client is closed, or was closed while the call waited."""


class InternalError(HeadraceError):
    """A call failed because of a fault inside the client. `__cause__` is the original exception."""

    @classmethod
    def of(cls, error: BaseException, what: str) -> HeadraceError:
        """Return `error` itself if it is a `HeadraceError`, else an `InternalError` with `error` as its cause.

        Args:
            error: The exception that was raised.
            what: The operation that failed. The message begins with it.
        """
        if isinstance(error, HeadraceError):
            return error
        internal = cls(f"{what}: {type(error).__name__}: {error}")
        internal.__cause__ = error
        return internal


class SerializationError(HeadraceError):
    """A key or value could not be turned into bytes, or bytes into a key or value.

    Attributes:
        topic: The record's topic; None if it is unknown.
        partition: The record's partition; None if none had been chosen yet.
        offset: The record's offset; None if the record was to be sent. A consumer's position stays at a record that
            the consumer cannot deserialize; a seek to `offset + 1` skips the record.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class WorkerFailedError(HeadraceError):
    """A worker stopped because its handler failed on a record, or because the worker could not commit."""


class StorageError(HeadraceError):
    """Stored data is missing or damaged."""


class CorruptRecordError(StorageError):
    """A record batch fails its checksum or its layout."""
