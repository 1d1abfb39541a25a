"""The sockets of a blocking client: non-blocking sockets, and one selector for all of them.

Two operations may block for long and cannot be interrupted: looking up a host name, and getting a token from the
program. Each of them runs in a thread of its own. That thread appends to `_notes` a function that handles the outcome;
the thread that serves the sockets calls it with the lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.credentials import Credentials, no_token
from headrace.clients.network.links import Link
from headrace.clients.network.pool import Pool
from headrace.errors import AuthenticationError, ConfigError, ProtocolError
from headrace.types import Buffer, FileRange

if TYPE_CHECKING:
    import ssl

    from headrace.clients.drivers.tls import TlsSocket

MAX_BUFFERS_PER_WRITE: Final = 512
"""The largest number of buffers in one `sendmsg`. It is below IOV_MAX of every system."""

_READ: Final = selectors.EVENT_READ
_CONNECTING: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})

AddressInfo = tuple[Any, ...]
"""One entry of the list that `getaddrinfo` returns."""
Ready = list[tuple[selectors.SelectorKey, int]]


class LinkStream:
    """The socket of a link, with the state of the attempts to connect."""

    __slots__ = ("address", "addresses", "connected", "failures", "output", "sock", "tls", "wanted")

    def __init__(self) -> None:
        self.address: object = None
        """The address that `sock` is connected or connecting to. None before the first attempt."""
        self.addresses: deque[AddressInfo] = deque()
        """The addresses of the host that were not tried yet."""
        self.failures: list[str] = []
        """The reasons why attempts to connect failed, one for each address."""
        self.sock: socket.socket | TlsSocket | None = None
        self.tls: TlsSocket | None = None
        """The TLS socket, which is also `sock`; None without TLS."""
        self.wanted = selectors.EVENT_WRITE
        """The events for which the selector watches the socket."""
        self.connected = False
        """Whether bytes of the Kafka protocol can be sent. With TLS, this is so after the TLS handshake."""
        self.output: deque[memoryview] = deque()


class Sockets:
    """The shell of a `Pool` for blocking clients. All methods but `wait` and `wake` need the client's lock."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        """Create the selector, and read certificates and keys.

        Args:
            config: The security settings of the connections. None is without encryption and authentication.

        Raises:
            ConfigError: A file with certificates or keys cannot be used, or the function for tokens is a coroutine
                function.
        """
        self._tls: ssl.SSLContext | None = None
        self._credentials: Credentials | None = None
        if config is not None and config.encrypted:
            from headrace.clients.drivers.tls import client_context  # noqa: PLC0415 - most clients do not use TLS

            self._tls = client_context(config)
        if config is not None and config.authenticates:
            self._credentials = Credentials(config)
            if self._credentials.asks_a_coroutine:
                raise ConfigError("a coroutine function for tokens needs a client of headrace.aio")
        self.pool: Pool
        self.stirred = False
        """Whether a request was written or a connection begun since this was last set to False."""
        self._selector = selectors.DefaultSelector()
        self._silent: set[object] = set()
        """Addresses that did not answer at the last attempt. Other addresses of the same host are tried before them."""
        self._notes: deque[tuple[Link, Callable[[], object]]] = deque()
        self._wakes, self._waker = socket.socketpair()
        self._wakes.settimeout(0)
        self._waker.settimeout(0)
        self._selector.register(self._wakes, selectors.EVENT_READ)

    # Waiting

    def wait(self, timeout_s: float | None) -> Ready:
        """Return the sockets that are ready, after at most `timeout_s`. The caller does not hold the lock."""
        return self._selector.select(timeout_s)

    def wake(self) -> None:
        """Make `wait` return now. Any thread may call this."""
        # The buffer may be full: then `wait` returns anyway. The socket may be closed: then no thread waits.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def serve(self, ready: Ready) -> None:
        """Read and write the sockets that `wait` returned, and handle the outcomes of other threads."""
        for key, events in ready:
            if key.fileobj is self._wakes:
                with contextlib.suppress(BlockingIOError):
                    self._wakes.recv(4096)
            elif key.data.lost is None:
                self._guarded(key.data, partial(self._serve, key.data, events))
        while self._notes:
            self._guarded(*self._notes.popleft())

    def _guarded(self, link: Link, work: Callable[[], object]) -> None:
        """Call a function for a link. If it raises an exception, close the link, so that its calls fail."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the calls that wait for the connection fail with it
            self.pool.failed(link, error)

    def end(self) -> None:
        """Close the selector; the pool has closed the links."""
        self._selector.close()
        self._wakes.close()
        self._waker.close()

    def disown(self) -> None:
        """Close this process's copies of the descriptors in a forked child. The parent's connections stay open."""
        watched = list(self._selector.get_map().values())
        # Nothing is unregistered, because the parent and the child share one epoll instance.
        self._selector.close()
        for key in watched:
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets, not bare descriptors
        self._waker.close()

    # The interface for the pool

    def open(self, link: Link) -> None:
        """Begin to connect: to a numeric address at once, to a host name after a thread has looked it up."""
        self.stirred = True
        link.socket = stream = LinkStream()
        host, port = link.address
        try:
            stream.addresses.extend(
                socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            )
        except OSError:
            # A lookup may take many seconds and cannot be interrupted, so it runs in a thread without the lock.
            name = f"headrace-resolve-{host}"
            threading.Thread(target=self._resolve, args=(link,), name=name, daemon=True).start()
            return
        self._connect(link)

    def authenticate(self, link: Link) -> None:
        """Pass credentials to the pool: at once, or after a thread has got a token from the program."""
        credentials = self._credentials
        assert credentials is not None, "the pool requests this only if the client authenticates"
        self.stirred = True
        if not credentials.program_is_asked:
            self._present(link, credentials)
            return
        threading.Thread(
            target=self._ask_program,
            args=(link, credentials),
            name=f"headrace-token-{link.address[0]}",
            daemon=True,
        ).start()

    def flush(self, link: Link) -> None:
        """Write as much as the socket accepts. The rest is written when the selector reports the socket as writable."""
        stream = self._stream(link)
        sock = stream.sock
        if link.lost is not None or sock is None or not stream.connected:
            return
        self.stirred = True
        output = stream.output
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
            self._fail(link, error)
            return
        if not output:
            link.connection.written()
        if bool(output) == (stream.wanted == _READ) or stream.tls is not None:
            self._watch(link, stream, write=bool(output))

    def close(self, link: Link) -> None:
        """Close a link's socket, if it has one."""
        stream = self._stream(link)
        if stream.sock is not None and not stream.connected:
            self._silent.add(stream.address)
        self._close_socket(stream)

    # Sockets

    @staticmethod
    def _stream(link: Link) -> LinkStream:
        assert isinstance(link.socket, LinkStream), "a link is opened before it is used"
        return link.socket

    def _resolve(self, link: Link) -> None:
        host, port = link.address
        found: list[AddressInfo] | OSError
        try:
            found = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError(errno.EINVAL, "this is not a valid host name")
        except Exception as error:  # noqa: BLE001 - the calls that wait for the link fail with it
            found = OSError(errno.EINVAL, f"{type(error).__name__}: {error}")
        self._notes.append((link, partial(self._resolved, link, found)))
        self.wake()

    def _resolved(self, link: Link, found: list[AddressInfo] | OSError) -> None:
        if link.lost is not None:
            return
        if isinstance(found, OSError):
            self.pool.refused(link, os_reason(found))
            return
        found.sort(key=lambda info: info[-1] in self._silent)
        self._stream(link).addresses.extend(found)
        self._connect(link)

    def _ask_program(self, link: Link, credentials: Credentials) -> None:
        note: Callable[[], object]
        try:
            answer = credentials.ask_program()
        except BaseException as error:  # noqa: BLE001 - the calls that wait for the connection fail with it
            note = partial(self.pool.denied, link, no_token(error))
        else:
            note = partial(self._present, link, credentials, (answer,))
        self._notes.append((link, note))
        self.wake()

    def _present(self, link: Link, credentials: Credentials, answers: tuple[Any, ...] = ()) -> None:
        try:
            for answer in answers:
                credentials.keep(answer)
            client = credentials.client()
        except AuthenticationError as error:
            self.pool.denied(link, error)
        else:
            self.pool.present(link, client)

    def _connect(self, link: Link) -> None:
        """Begin to connect to the next address of the host."""
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
                stream.wanted = selectors.EVENT_WRITE
                self._selector.register(sock, stream.wanted, link)
                return
            sock.close()
            stream.failures.append(os_reason(OSError(code, os.strerror(code))))
        self.pool.refused(link, ", ".join(dict.fromkeys(stream.failures)))

    def _close_socket(self, stream: LinkStream) -> None:
        if stream.sock is not None:
            with contextlib.suppress(KeyError):  # the socket is not registered while TLS begins
                self._selector.unregister(stream.sock)
            stream.sock.close()
            stream.sock = None

    def _watch(self, link: Link, stream: LinkStream, *, write: bool) -> None:
        """Watch a socket for bytes to read and, if `write` or TLS needs it, for space to write."""
        tls = stream.tls
        if tls is not None and tls.wants_write:
            write = True
        wanted = _READ | selectors.EVENT_WRITE if write else _READ
        if wanted != stream.wanted and stream.sock is not None:
            stream.wanted = wanted
            self._selector.modify(stream.sock, wanted, link)

    def _serve(self, link: Link, events: int) -> None:
        stream = self._stream(link)
        if stream.sock is None:
            return
        if not stream.connected:
            self._open(link, stream)
            return
        tls = stream.tls
        # With TLS, a read may have waited until the socket was writable, and a write until it was readable.
        if events & selectors.EVENT_READ or tls is not None:
            self._receive(link, stream.sock)
        if link.lost is None and (events & selectors.EVENT_WRITE or (tls and stream.output)):
            self.flush(link)
            self.pool.received(
                link
            )  # requests without a response are complete when they are written

    def _open(self, link: Link, stream: LinkStream) -> None:
        """Continue to connect, or continue the TLS handshake."""
        if isinstance(stream.sock, socket.socket):
            code = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._close_socket(stream)
                stream.failures.append(os_reason(OSError(code, os.strerror(code))))
                self._connect(link)
                return
            self._silent.discard(stream.address)
            if self._tls is not None:
                self._begin_tls(link, stream, stream.sock, self._tls)
        if stream.tls is not None and not self._has_shaken_hands(link, stream, stream.tls):
            return
        stream.connected = True
        self._watch(link, stream, write=False)
        self.pool.connected(link)

    def _begin_tls(
        self, link: Link, stream: LinkStream, sock: socket.socket, context: ssl.SSLContext
    ) -> None:
        from headrace.clients.drivers.tls import TlsSocket  # noqa: PLC0415 - most clients do not use TLS

        self._selector.unregister(sock)
        stream.sock = stream.tls = TlsSocket(context, sock, link.address[0])
        self._selector.register(stream.tls, stream.wanted, link)
        link.open = True

    def _has_shaken_hands(self, link: Link, stream: LinkStream, tls: TlsSocket) -> bool:
        try:
            tls.shake_hands()
        except BlockingIOError:
            self._watch(link, stream, write=False)
            return False
        except OSError as error:
            self._fail(link, error)
            return False
        return True

    def _fail(self, link: Link, error: OSError) -> None:
        """Close a link after a system call or TLS failed."""
        if self._tls is not None and not link.ready:
            from headrace.clients.drivers.tls import distrust  # noqa: PLC0415 - most clients do not use TLS

            reason = distrust(link.peer, error)
            if reason is not None:
                self.pool.denied(link, reason)
                return
        self.pool.lost(link, f"lost: {os_reason(error)}")

    def _receive(self, link: Link, sock: socket.socket | TlsSocket) -> None:
        connection = link.connection
        drains = (
            self._tls is not None
        )  # the selector does not report bytes that OpenSSL has already received
        try:
            while True:
                buffer = connection.get_buffer()
                count = sock.recv_into(buffer)
                if count == 0:
                    self.pool.lost(link, "closed the connection")
                    return
                connection.bytes_received(count)
                if count < len(buffer) and not drains:
                    break
        except BlockingIOError:
            if drains:
                self._watch(link, self._stream(link), write=bool(self._stream(link).output))
        except OSError as error:
            self._fail(link, error)
            return
        except AuthenticationError as error:
            self.pool.denied(link, error)
            return
        except ProtocolError as error:
            self.pool.lost(link, f"lost: {error}")
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
    """Return the reason why a system call failed, as text."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__
