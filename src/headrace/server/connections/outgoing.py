"""The write side of a connection: one queue, drained with `send`, `sendmsg` and `sendfile`.

asyncio copies the bytes that a socket does not take at once, and its `sendfile` is expensive. So responses do not pass
through the transport: the transport only reads. The writer has a duplicate of the socket's descriptor. Only the writer
writes to the connection, which keeps the responses in order. Bytes that the socket does not take wait in the queue as
references (buffers, file ranges), not as copies.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from headrace.types import Buffer, FileRange, Payload

SENDFILE_MIN_BYTES: Final = 64 * 1024
"""The size of a file range from which on it is sent with sendfile. Below, it is cheaper to read and join ranges."""

READ_MAX_BYTES: Final = 512 * 1024
"""The greatest number of bytes that one `send` reads from files, as copies that wait for a slow client."""

_JOIN_MAX_BYTES: Final = 64 * 1024
"""The size of a buffer below which it is copied into one with its neighbours."""
_BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""The bytes after which a writer leaves the event loop to other connections."""
_CALL_BYTES: Final = 4096
"""The bytes that a system call counts for at least."""
_BUFFERS_PER_CALL: Final = 64
"""The greatest number of buffers of one `sendmsg`."""
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class TruncatedFileError(OSError):
    """A file is shorter than the range that a response contains."""


class SocketWriter:
    """Writes payloads to one non-blocking socket, in order.

    Args:
        loop: The running event loop.
        sock: A duplicate of the connection's socket. `close` closes it.
        on_drained: Called when the socket has taken bytes that had to wait; from the event loop, never from `send`.
        on_error: Called with the error when the socket or a file fails. The writer is closed then.
    """

    __slots__ = (
        "_fd",
        "_loop",
        "_on_drained",
        "_on_error",
        "_queue",
        "_sock",
        "_waiting",
        "queued_bytes",
        "sent_bytes",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_drained: Callable[[], object],
        on_error: Callable[[OSError], object],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._on_drained = on_drained
        self._on_error = on_error
        self._queue: deque[Buffer | FileRange] = deque()
        self._waiting = False
        self.queued_bytes = 0
        """The bytes that the socket has not taken yet."""
        self.sent_bytes = 0
        """The bytes that the socket has taken since the start."""

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 after `close`."""
        return self._fd

    def send(self, payloads: Sequence[Payload]) -> None:
        """Write payloads: at once what the socket takes, the rest when the socket takes more."""
        if self._fd < 0:
            return
        if len(payloads) == 1 and not self.queued_bytes and isinstance(payloads[0], bytearray):
            # The most frequent case, one small response, needs no joining.
            self._queue.append(payloads[0])
            self.queued_bytes = len(payloads[0])
            self._write()
            return
        try:
            self._enqueue(payloads)
        except OSError as error:  # the file of a range cannot be read
            self._fail(error)
            return
        if not self._waiting:
            self._write()

    def _enqueue(self, payloads: Sequence[Payload]) -> None:
        small: list[Buffer] = []
        readable = READ_MAX_BYTES
        for payload in payloads:
            if isinstance(payload, FileRange):
                readable -= payload.size
                by_sendfile = payload.size >= SENDFILE_MIN_BYTES or readable < 0
                if by_sendfile and payload.size and payload.file.fileno() is not None:
                    self._enqueue_joined(small)
                    self._queue.append(payload)
                    self.queued_bytes += payload.size
                    continue
                buffers = payload.file.buffers(payload.position, payload.size)
                if sum(map(len, buffers)) != payload.size:
                    raise TruncatedFileError(f"{payload!r}: the file is shorter")
            else:
                buffers = (payload,)
            for buffer in buffers:
                if len(buffer) < _JOIN_MAX_BYTES:
                    small.append(buffer)
                else:
                    self._enqueue_joined(small)
                    self._queue.append(buffer)
                    self.queued_bytes += len(buffer)
        self._enqueue_joined(small)

    def _enqueue_joined(self, small: list[Buffer]) -> None:
        """Add small buffers to the queue as one buffer, and clear the list."""
        if small:
            joined = small[0] if len(small) == 1 else b"".join(small)
            small.clear()
            self._queue.append(joined)
            self.queued_bytes += len(joined)

    def _write(self) -> None:
        """Write until the queue is empty, the socket is full, or the bytes of this turn are used up."""
        turn_bytes = _BYTES_PER_TURN
        try:
            while self.queued_bytes and turn_bytes > 0:
                count = self._write_some()
                turn_bytes -= max(_CALL_BYTES, count)
                self.sent_bytes += count
                self.queued_bytes -= count
        except BlockingIOError:
            pass
        except (
            InterruptedError
        ):  # pragma: no cover - Python retries by itself (PEP 475); kept for other loops
            pass
        except OSError as error:
            self._fail(error)
            return
        if self.queued_bytes and not self._waiting:
            self._waiting = True
            self._loop.add_writer(self._fd, self._writable)
        elif not self.queued_bytes and self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._fd)

    def _write_some(self) -> int:
        """Write from the head of the queue with one system call. Return how many bytes the socket took."""
        queue = self._queue
        head = queue[0]
        if isinstance(head, FileRange):
            return self._send_file(head)
        if len(queue) == 1:
            count = self._sock.send(head)
        elif isinstance(queue[1], FileRange):
            count = self._sock.send(head, _MORE)
        else:
            buffers = itertools.takewhile(_in_memory, itertools.islice(queue, _BUFFERS_PER_CALL))
            count = self._sock.sendmsg(buffers)  # type: ignore[arg-type]  # takewhile leaves buffers only
        self._drop(count)
        return count

    def _drop(self, count: int) -> None:
        """Remove `count` bytes from the buffers at the head of the queue."""
        queue = self._queue
        while count:
            head = queue[0]
            if count < len(head):
                queue[0] = memoryview(head)[count:]  # type: ignore[arg-type]  # not a file range, they were sent
                return
            count -= len(head)
            queue.popleft()

    def _send_file(self, file_range: FileRange) -> int:
        descriptor = file_range.file.fileno()
        assert descriptor is not None, "a range without a descriptor is never queued"
        size = min(file_range.size, _BYTES_PER_TURN)
        count = os.sendfile(self._fd, descriptor, file_range.position, size)
        if count == 0:
            raise TruncatedFileError(f"{file_range!r}: the file is shorter")
        if count == file_range.size:
            self._queue.popleft()
        else:
            rest = FileRange(file_range.file, file_range.position + count, file_range.size - count)
            self._queue[0] = rest
        return count

    def _writable(self) -> None:
        """Continue to write: the socket takes bytes again."""
        self._write()
        if self._fd >= 0:
            self._on_drained()

    def _fail(self, error: OSError) -> None:
        on_error = self._on_error
        self.close()
        on_error(error)

    def close(self) -> None:
        """Stop writing, drop the queue and the callbacks, and close the duplicate socket."""
        if self._fd < 0:
            return
        if self._waiting:
            self._loop.remove_writer(self._fd)
            self._waiting = False
        self._fd = -1
        self._on_drained = self._on_error = _nothing
        self._queue.clear()
        self.queued_bytes = 0
        self._sock.close()


def _nothing(*_: object) -> None:
    pass


def _in_memory(piece: Buffer | FileRange) -> bool:
    return not isinstance(piece, FileRange)
