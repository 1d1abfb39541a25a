"""The sockets of a blocking client: non-blocking ones behind one selector, and a way to wake who waits for them.

What may take long and cannot be interrupted, looking up a name or asking the program for a token, is done by threads
of its own; they leave a note in `_notes` of what is to be done with the outcome, under the lock again.
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
"""Below every system's IOV_MAX."""

_READ: Final = selectors.EVENT_READ
_CONNECTING: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})

AddressInfo = tuple[Any, ...]
"""What `getaddrinfo` returns for one address."""
Ready = list[tuple[selectors.SelectorKey, int]]


class Stream:
    """A link's socket, or the attempts to open one."""

    __slots__ = ("address", "addresses", "connected", "failures", "output", "sock", "tls", "wanted")

    def __init__(self) -> None:
        self.address: object = None
        """That of the socket."""
        self.addresses: deque[AddressInfo] = deque()
        """Those of the host's addresses that are still to be tried."""
        self.failures: list[str] = []
        self.sock: socket.socket | TlsSocket | None = None
        self.tls: TlsSocket | None = None
        """The same, if it is under TLS."""
        self.wanted = selectors.EVENT_WRITE
        """What the selector watches for."""
        self.connected = False
        """Whether the connection takes bytes: under TLS, when that has shaken hands."""
        self.output: deque[memoryview] = deque()


class Sockets:
    """The shell of a `Pool`; all but `wait` and `wake` under the lock of the client."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        """Prepare.

        Args:
            config: How connections are protected; without it, not at all.

        Raises:
            ConfigError: A file with certificates or keys cannot be used, or a function is for asyncio.
        """
        self._tls: ssl.SSLContext | None = None
        self._credentials: Credentials | None = None
        if config is not None and config.encrypted:
            from headrace.clients.drivers.tls import client_context  # noqa: PLC0415 - most clients need none of it

            self._tls = client_context(config)
        if config is not None and config.authenticates:
            self._credentials = Credentials(config)
            if self._credentials.asks_a_coroutine:
                raise ConfigError("a coroutine function for tokens needs a client of headrace.aio")
        self.pool: Pool
        self.stirred = False
        """Whether something was begun since this was last cleared, so that somebody should wait for the answer."""
        self._selector = selectors.DefaultSelector()
        self._silent: set[object] = set()
        """Addresses that did not answer when they were tried last: another of the same host is tried before."""
        self._notes: deque[tuple[Link, Callable[[], object]]] = deque()
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
                self._guarded(key.data, partial(self._serve, key.data, events))
        while self._notes:
            self._guarded(*self._notes.popleft())

    def _guarded(self, link: Link, work: Callable[[], object]) -> None:
        """Do something for a link; the link is given up if that raises an exception, so that its calls end."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever waits for the connection is told
            self.pool.failed(link, error)

    def end(self) -> None:
        """Close the selector; the pool has closed the links."""
        self._selector.close()
        self._wakes.close()
        self._waker.close()

    def disown(self) -> None:
        """Close this process's copies of the descriptors, in a forked child; the parent's connections live on."""
        watched = list(self._selector.get_map().values())
        # Nothing is unregistered: the parent's epoll instance is the same, and forgets nothing while the parent has it.
        self._selector.close()
        for key in watched:
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets, not bare descriptors
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

    def authenticate(self, link: Link) -> None:
        """Present credentials: at once, or when a thread has got a token from the program."""
        credentials = self._credentials
        assert credentials is not None, "only a client that logs in is asked to"
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
        """Write as much as the socket takes; the rest goes when the selector says so."""
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
        except Exception as error:  # noqa: BLE001 - whoever waits for the link is told
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
        except BaseException as error:  # noqa: BLE001 - it is told to whoever waits for the connection
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
                stream.wanted = selectors.EVENT_WRITE
                self._selector.register(sock, stream.wanted, link)
                return
            sock.close()
            stream.failures.append(os_reason(OSError(code, os.strerror(code))))
        self.pool.refused(link, ", ".join(dict.fromkeys(stream.failures)))

    def _close_socket(self, stream: Stream) -> None:
        if stream.sock is not None:
            with contextlib.suppress(KeyError):  # it failed between two registrations
                self._selector.unregister(stream.sock)
            stream.sock.close()
            stream.sock = None

    def _watch(self, link: Link, stream: Stream, *, write: bool) -> None:
        """Have the selector fire when there is something to read, and when there is room to write if need be."""
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
        # Under TLS either direction may have waited for the other.
        if events & selectors.EVENT_READ or tls is not None:
            self._receive(link, stream.sock)
        if link.lost is None and (events & selectors.EVENT_WRITE or (tls and stream.output)):
            self.flush(link)
            self.pool.received(link)  # what has no answer is complete when it is written

    def _open(self, link: Link, stream: Stream) -> None:
        """Go on with a connection that does not take bytes yet."""
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
        self, link: Link, stream: Stream, sock: socket.socket, context: ssl.SSLContext
    ) -> None:
        from headrace.clients.drivers.tls import TlsSocket  # noqa: PLC0415 - most clients need none of it

        self._selector.unregister(sock)
        stream.sock = stream.tls = TlsSocket(context, sock, link.address[0])
        self._selector.register(stream.tls, stream.wanted, link)
        link.open = True

    def _has_shaken_hands(self, link: Link, stream: Stream, tls: TlsSocket) -> bool:
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
        """Give up a link over which a system call or TLS failed."""
        if self._tls is not None and not link.ready:
            from headrace.clients.drivers.tls import distrust  # noqa: PLC0415 - most clients need none of it

            reason = distrust(link.peer, error)
            if reason is not None:
                self.pool.denied(link, reason)
                return
        self.pool.lost(link, f"lost: {os_reason(error)}")

    def _receive(self, link: Link, sock: socket.socket | TlsSocket) -> None:
        connection = link.connection
        drains = self._tls is not None  # what TLS has taken in does not make the selector fire
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
    """Return why a system call failed, in words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__
