"""The sockets of a blocking client: non-blocking ones behind one selector, and a way to wake who waits for them."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
from collections import deque
from typing import Any, Final

from headrace.clients.pool import Link, Pool
from headrace.errors import ProtocolError
from headrace.types import Buffer, FileRange

MAX_BUFFERS_PER_WRITE: Final = 512
"""Below every system's IOV_MAX."""

_CONNECTING: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})

AddressInfo = tuple[Any, ...]
"""What `getaddrinfo` returns for one address."""
Ready = list[tuple[selectors.SelectorKey, int]]


class Stream:
    """A link's socket, or the attempts to open one."""

    __slots__ = ("address", "addresses", "connected", "failures", "output", "sock")

    def __init__(self) -> None:
        self.address: object = None
        """That of the socket."""
        self.addresses: deque[AddressInfo] = deque()
        """Those of the host's addresses that are still to be tried."""
        self.failures: list[str] = []
        self.sock: socket.socket | None = None
        self.connected = False
        self.output: deque[memoryview] = deque()


class Sockets:
    """The shell of a `Pool`; all but `wait` and `wake` under the lock of the client."""

    def __init__(self) -> None:
        self.pool: Pool
        self.stirred = False
        """Whether something was begun since this was last cleared, so that somebody should wait for the answer."""
        self._selector = selectors.DefaultSelector()
        self._silent: set[object] = set()
        """Addresses that did not answer when they were tried last: another of the same host is tried before."""
        self._resolved: deque[tuple[Link, list[AddressInfo] | OSError]] = deque()
        self._wakes, self._waker = socket.socketpair()
        self._wakes.settimeout(0)
        self._waker.settimeout(0)
        self._selector.register(self._wakes, selectors.EVENT_READ)

    # Waiting

    def wait(self, timeout_s: float | None) -> Ready:
        """Return what is ready, after at most `timeout_s`; without the lock."""
        return self._selector.select(timeout_s)

    def wake(self) -> None:
        """Have `wait` return now; from any thread."""
        with contextlib.suppress(
            OSError
        ):  # full: it will wake anyway; closed: nobody is left to wake
            self._waker.send(b"\0")

    def serve(self, ready: Ready) -> None:
        """Move bytes where `wait` said that they can be moved."""
        for key, events in ready:
            if key.fileobj is self._wakes:
                with contextlib.suppress(BlockingIOError):
                    self._wakes.recv(4096)
            elif key.data.lost is None:
                self._serve(key.data, events)
        while self._resolved:
            link, found = self._resolved.popleft()
            if link.lost is not None:
                continue
            if isinstance(found, OSError):
                self.pool.refused(link, os_reason(found))
            else:
                found.sort(key=lambda info: info[-1] in self._silent)
                self._stream(link).addresses.extend(found)
                self._connect(link)

    def end(self) -> None:
        """Close the selector; the pool has closed the links."""
        self._selector.close()
        self._wakes.close()
        self._waker.close()

    # What the pool asks for

    def open(self, link: Link) -> None:
        """Begin to connect: to a numeric address here, to a name when a thread has looked it up."""
        self.stirred = True
        link.socket = stream = Stream()
        host, port = link.address
        try:
            stream.addresses.extend(
                socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            )
        except OSError:
            # It may take many seconds and cannot be interrupted: neither the lock nor a deadline may depend on it.
            name = f"headrace-resolve-{host}"
            threading.Thread(target=self._resolve, args=(link,), name=name, daemon=True).start()
            return
        self._connect(link)

    def flush(self, link: Link) -> None:
        """Write as much as the socket takes; the rest goes when the selector says so."""
        stream = self._stream(link)
        sock = stream.sock
        if link.lost is not None or sock is None or not stream.connected:
            return
        self.stirred = True
        output = stream.output
        was_full = bool(output)
        output.extend(map(_view, link.connection.take_output()))
        try:
            while output:
                sent = sock.sendmsg(_head(output))
                while sent:
                    first = output.popleft()
                    if sent < len(first):
                        output.appendleft(first[sent:])
                        break
                    sent -= len(first)
        except BlockingIOError:
            pass
        except OSError as error:
            self.pool.lost(link, f"lost: {os_reason(error)}")
            return
        if not output:
            link.connection.written()
        if was_full != bool(output):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if output else 0)
            self._selector.modify(sock, wanted, link)

    def close(self, link: Link) -> None:
        """Close a link's socket, if it has one."""
        stream = self._stream(link)
        if stream.sock is not None and not stream.connected:
            self._silent.add(stream.address)
        self._close_socket(stream)

    # Sockets

    @staticmethod
    def _stream(link: Link) -> Stream:
        assert isinstance(link.socket, Stream), "a link is opened before it is used"
        return link.socket

    def _resolve(self, link: Link) -> None:
        host, port = link.address
        found: list[AddressInfo] | OSError
        try:
            found = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError(errno.EINVAL, "this is no name of a host")
        self._resolved.append((link, found))
        self.wake()

    def _connect(self, link: Link) -> None:
        """Begin to connect to the next of the host's addresses."""
        stream = self._stream(link)
        while stream.addresses:
            family, kind, protocol, _, address = stream.addresses.popleft()
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:
                stream.failures.append(os_reason(error))
                continue
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(address)
            if code in _CONNECTING:
                stream.sock = sock
                stream.address = address
                self._selector.register(sock, selectors.EVENT_WRITE, link)
                return
            sock.close()
            stream.failures.append(os_reason(OSError(code, os.strerror(code))))
        self.pool.refused(link, ", ".join(dict.fromkeys(stream.failures)))

    def _close_socket(self, stream: Stream) -> None:
        if stream.sock is not None:
            self._selector.unregister(stream.sock)
            stream.sock.close()
            stream.sock = None

    def _serve(self, link: Link, events: int) -> None:
        stream = self._stream(link)
        if stream.sock is None:
            return
        if not stream.connected:
            code = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._close_socket(stream)
                stream.failures.append(os_reason(OSError(code, os.strerror(code))))
                self._connect(link)
                return
            stream.connected = True
            self._silent.discard(stream.address)
            self._selector.modify(stream.sock, selectors.EVENT_READ, link)
            self.pool.connected(link)
            return
        if events & selectors.EVENT_READ:
            self._receive(link, stream.sock)
        if events & selectors.EVENT_WRITE:
            self.flush(link)
            self.pool.received(link)  # what has no answer is complete when it is written

    def _receive(self, link: Link, sock: socket.socket) -> None:
        connection = link.connection
        try:
            while True:
                buffer = connection.get_buffer()
                count = sock.recv_into(buffer)
                if count == 0:
                    self.pool.lost(link, "closed the connection")
                    return
                connection.bytes_received(count)
                if count < len(buffer):
                    break
        except BlockingIOError:
            pass
        except (OSError, ProtocolError) as error:
            text = os_reason(error) if isinstance(error, OSError) else str(error)
            self.pool.lost(link, f"lost: {text}")
            return
        self.pool.received(link)


def _view(payload: Buffer | FileRange) -> memoryview:
    assert not isinstance(payload, FileRange), "a client sends bytes, never ranges of files"
    return memoryview(payload)


def _head(output: deque[memoryview]) -> list[memoryview]:
    if len(output) <= MAX_BUFFERS_PER_WRITE:
        return list(output)
    return [output[index] for index in range(MAX_BUFFERS_PER_WRITE)]


def os_reason(error: OSError) -> str:
    """Return why a system call failed, in words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__
