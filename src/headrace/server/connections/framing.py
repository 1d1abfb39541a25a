"""The receive buffer of a connection. It collects bytes and returns complete requests without copying them.

The buffer grows as bytes arrive, to at most twice its size at a time. It never grows because of an announced length:
four bytes that announce a request of 100 MiB cost nothing. It shrinks when the space was not needed for a while.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.errors import ProtocolError
from headrace.protocol.api_keys import ApiKey
from headrace.server.connections.budget import MemoryBudget, Waiter
from headrace.server.limits import ServerLimits

_LENGTH: Final = struct.Struct(">i")
_API_KEY: Final = struct.Struct(">h")
_LENGTH_BYTES: Final = 4
_MIN_REQUEST_BYTES: Final = 8  # api key, api version, correlation id
_PRODUCE: Final = int(ApiKey.PRODUCE)

_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_METHODS: Final = (
    b"GET ",
    b"POST",
    b"HEAD",
    b"PUT ",
    b"DELE",
    b"OPTI",
    b"PATC",
    b"CONN",
    b"PRI ",
    b"TRAC",
)


class BadFrameError(ProtocolError):
    """The bytes are not a Kafka request. The message describes the bytes."""


class ReceiveBuffer:
    """A buffer that grows. `view[start:end]` has the bytes that were received and not yet returned."""

    __slots__ = (
        "_api_keys_seen",
        "_budget",
        "_capped",
        "_data",
        "_end",
        "_least",
        "_limits",
        "_most",
        "_owner",
        "_peak",
        "_start",
        "_view",
    )

    def __init__(self, limits: ServerLimits, budget: MemoryBudget, owner: Waiter) -> None:
        self._limits = limits
        self._budget = budget
        self._owner = owner
        self._data = bytearray(limits.initial_buffer_bytes)
        self._view = memoryview(self._data)
        self._start = 0
        self._end = 0
        self._peak = 0
        self._least = _MIN_REQUEST_BYTES
        self._most = limits.max_other_request_bytes
        self._capped = False
        """Whether `_most` limits every request; otherwise Produce requests may be larger."""

    def bound(self, *, tokens: bool, most: int) -> None:
        """Accept frames of up to `most` bytes, 0 for the usual limits; with `tokens` also very small frames."""
        self._least = 0 if tokens else _MIN_REQUEST_BYTES
        self._most = most or self._limits.max_other_request_bytes
        self._capped = most > 0

    @property
    def capacity(self) -> int:
        """The number of allocated bytes."""
        return len(self._data)

    @property
    def holds_extra(self) -> bool:
        """Whether the buffer uses memory of the budget."""
        return len(self._data) > self._limits.initial_buffer_bytes

    @property
    def pending(self) -> int:
        """The number of bytes that were received and not yet returned as a request."""
        return self._end - self._start

    def free_space(self) -> memoryview:
        """Return the space for the next bytes. It is never empty after `make_room` has returned True."""
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Add `count` bytes that were written to the start of `free_space`."""
        self._end += count
        self._peak = max(self._peak, self._end)

    def next_frame(self) -> memoryview | None:
        """Return the next complete request without its length; None if it is not complete.

        The view is valid until `make_room` or `free_space` is called.

        Raises:
            BadFrameError: The bytes are not a Kafka request, or the request is too large.
        """
        start = self._start
        available = self._end - start
        if available < _LENGTH_BYTES:
            return None
        (size,) = _LENGTH.unpack_from(self._data, start)
        if size > self._most or size < self._least:
            self._check_size(size)
        stop = start + _LENGTH_BYTES + size
        if stop > self._end:
            return None
        self._start = stop
        return self._view[start + _LENGTH_BYTES : stop]

    def _check_size(self, size: int) -> None:
        limits = self._limits
        first = bytes(self._view[self._start : min(self._end, self._start + 16)])
        if self._capped and _MIN_REQUEST_BYTES <= size <= limits.max_request_bytes:
            raise BadFrameError(
                f"a request of {size} bytes before authentication (allowed: {self._most})"
            )
        if size < _MIN_REQUEST_BYTES or size > limits.max_request_bytes:
            raise BadFrameError(describe_garbage(first, size, limits.max_request_bytes))
        if len(first) < _LENGTH_BYTES + _API_KEY.size:
            return
        (api_key,) = _API_KEY.unpack_from(first, _LENGTH_BYTES)
        if api_key != _PRODUCE and size > limits.max_other_request_bytes:
            raise BadFrameError(
                f"a request of {size} bytes with API key {api_key}: "
                f"only Produce may exceed {limits.max_other_request_bytes} bytes"
            )

    def make_room(self) -> bool:
        """Prepare the buffer for the next read, after all complete requests were returned.

        Returns:
            False if the buffer is full and the memory budget does not allow it to grow. The owner then stops reading
            until its
            `memory_available` is called.
        """
        capacity = len(self._data)
        # The last read filled the buffer. The client has more bytes, and larger reads are cheaper.
        filled = self._end == capacity and capacity < self._limits.busy_buffer_bytes
        if self._start == self._end:
            self._start = self._end = 0
            if self._budget.contended:
                self.shrink()
                return True
        if filled and self._budget.has_room(capacity):
            return self._resize(min(2 * capacity, self._limits.busy_buffer_bytes))
        if self._start and self._start + self._frame_size() > capacity:
            self._compact()
        if self._end < capacity:
            return True
        wanted = min(2 * capacity, max(self._frame_size(), self._limits.busy_buffer_bytes))
        return self._resize(max(wanted, capacity + _LENGTH_BYTES))

    def _frame_size(self) -> int:
        """Return the size of the incomplete frame, as far as it is known, in bytes."""
        if self._end - self._start < _LENGTH_BYTES:
            return _LENGTH_BYTES
        (size,) = _LENGTH.unpack_from(self._data, self._start)
        return _LENGTH_BYTES + int(size)

    def _compact(self) -> None:
        pending = self._end - self._start
        self._view[:pending] = self._view[self._start : self._end]
        self._start, self._end = 0, pending

    def _resize(self, capacity: int) -> bool:
        change = capacity - len(self._data)
        if change > 0 and not self._budget.acquire(self._owner, change):
            return False
        pending = self._end - self._start
        data = bytearray(capacity)
        view = memoryview(data)
        view[:pending] = self._view[self._start : self._end]
        self._data, self._view = data, view
        self._start, self._end = 0, pending
        if change < 0:
            self._budget.release(self._owner, -change)
        return True

    def shrink(self) -> None:
        """Free memory that was not needed since the last call. The hub calls this regularly."""
        # One byte more than the received bytes: the next read can begin at any moment and needs space.
        needed = max(self._peak, self._end + 1)
        self._peak = self._end
        target = self._limits.initial_buffer_bytes
        if self._budget.contended and not self.pending:
            needed = 0
        while target < needed:
            target *= 2
        if target < len(self._data) and self._end - self._start <= target:
            self._resize(target)

    def close(self) -> None:
        """Free all memory. Nothing can be received afterwards."""
        extra = len(self._data) - self._limits.initial_buffer_bytes
        self._data = bytearray()
        self._view = memoryview(self._data)
        self._start = self._end = 0
        self._budget.forget(self._owner)
        if extra > 0:
            self._budget.release(self._owner, extra)
        self._owner = _NoOwner()


class _NoOwner:
    """The owner of a buffer that is closed."""

    def memory_available(self) -> None:
        """Do nothing: this buffer never waits for memory."""


def describe_garbage(first: bytes, size: int, limit: int) -> str:
    """Describe bytes that are not a Kafka request, for the log."""
    if first.startswith(_TLS_HANDSHAKE):
        return (
            "a TLS handshake on a plaintext listener: "
            "set security.protocol=PLAINTEXT (or SASL_PLAINTEXT) in the client"
        )
    if first.startswith(_HTTP_METHODS):
        return "an HTTP request: this port speaks the Kafka protocol"
    if first.startswith(b"SSH-"):
        return "an SSH client: this port speaks the Kafka protocol"
    return f"a request length of {size} bytes (allowed: {_MIN_REQUEST_BYTES} to {limit}), first bytes {first!r}"
