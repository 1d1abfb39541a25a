"""The keys that tokens are signed with (JSON Web Key Sets): read at the start, and again from time to time.

Only the URLs of the configuration are ever read, from files or over https, without redirections, within bounds of time
and size. A token with an unknown key has its set read again, no more often than every `MISSING_INTERVAL_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.parse import unquote, urlsplit

from headrace.broker.access.authentication import Authenticator
from headrace.errors import ConfigError
from headrace.ports import Journal

MISSING_INTERVAL_S: Final = 10.0
_TIMEOUT_S: Final = 10.0
_BYTES_LIMIT: Final = 1 << 20
_PIECE_BYTES: Final = 65_536


class KeyReader:
    """Reads the key sets of a broker."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, authenticator: Authenticator, journal: Journal
    ) -> None:
        """Read every set once.

        Raises:
            ConfigError: One cannot be read.
        """
        self._loop = loop
        self._authenticator = authenticator
        self._journal = journal
        self._thread = ThreadPoolExecutor(1, "headrace-keys")
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._read_s: dict[str, float] = {}
        self._reading: set[str] = set()
        for url in authenticator.key_urls:
            try:
                authenticator.keys_read(url, read_keys(url))
            except (OSError, ConfigError) as error:
                raise ConfigError(f"{_named(url)}: {_reason(error)}") from error
            self._schedule(url)
        authenticator.key_missing = self._missing

    def close(self) -> None:
        """Stop reading the key sets."""
        for timer in self._timers.values():
            timer.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _schedule(self, url: str) -> None:
        self._read_s[url] = self._loop.time()
        delay_s = self._authenticator.key_urls[url] / 1000
        self._timers[url] = self._loop.call_later(delay_s, self._read, url)

    def _missing(self, url: str) -> None:
        if self._loop.time() - self._read_s[url] >= MISSING_INTERVAL_S:
            self._read(url)

    def _read(self, url: str) -> None:
        self._timers[url].cancel()
        self._schedule(url)
        if url in self._reading:
            return
        self._reading.add(url)
        future = self._loop.run_in_executor(self._thread, read_keys, url)
        future.add_done_callback(lambda done: self._done(url, done))

    def _done(self, url: str, future: asyncio.Future[bytes]) -> None:
        self._reading.discard(url)
        if future.cancelled():
            return
        try:
            self._authenticator.keys_read(url, future.result())
        except (OSError, ConfigError) as error:
            self._journal.error("token_keys_not_read", url=_named(url), error=_reason(error))


def _reason(error: Exception) -> str:
    return str(error.reason) if isinstance(error, URLError) else str(error)


def _named(url: str) -> str:
    """Return a URL without what may be secret in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL of the keys"
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def read_keys(url: str) -> bytes:
    """Return what a URL of the configuration names.

    Raises:
        OSError: It cannot be read in time.
        ConfigError: It is no file: or https: URL, too large, or not answered in HTTP.
    """
    try:
        return _content(url)
    except (HTTPException, ValueError, OverflowError) as error:  # the URL, a port, or the answer
        raise ConfigError(f"{error}") from error


def _content(url: str) -> bytes:
    parts = urlsplit(url)
    if parts.username is not None:
        raise ConfigError("no user and password in the URL: who is to log in needs no key set")
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"}:
            raise ConfigError("a file: URL has an absolute path: file:///path")
        return _bounded(Path(unquote(parts.path)))
    if parts.scheme != "https":
        raise ConfigError("only https: and file: URLs are read")
    content = bytearray()
    with _Deadline() as deadline:
        opener = urllib.request.build_opener(_NoRedirects, _Https(deadline))
        with opener.open(url, timeout=_TIMEOUT_S) as response:
            while piece := response.read1(_PIECE_BYTES):
                content += piece
                if len(content) > _BYTES_LIMIT:
                    raise ConfigError(f"more than {_BYTES_LIMIT} bytes")
    return bytes(content)


class _Deadline:
    """Ends a connection when its time is over, whatever it waits for.

    The time-out of a socket begins anew with each byte: a server that sends one now and then would keep the thread for
    days, in the handshake, the headers or the body alike.
    """

    def __init__(self) -> None:
        self._timer = threading.Timer(_TIMEOUT_S, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._over = False

    def watch(self, sock: socket.socket) -> None:
        """End this connection, too."""
        with self._lock:
            self._sockets.append(sock.dup())  # TLS takes the object over, and not the duplicate
            if self._over:
                self._shut()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for sock in self._sockets:
                sock.close()
            self._sockets.clear()
            if self._over:  # also of an answer that ended there without being whole
                raise TimeoutError(f"it took more than {_TIMEOUT_S:g} s")

    def _end(self) -> None:
        with self._lock:
            self._over = True
            self._shut()

    def _shut(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Https(urllib.request.HTTPSHandler):
    """Makes connections that a deadline watches."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, request: urllib.request.Request) -> Any:
        """Open the URL over TLS."""

        def make(host: str, **options: Any) -> HTTPSConnection:
            connection = HTTPSConnection(host, **options)

            def connect(*given: Any, **named: Any) -> socket.socket:
                sock = socket.create_connection(*given, **named)
                self._deadline.watch(sock)
                return sock

            connection._create_connection = connect  # type: ignore[attr-defined]  # noqa: SLF001 - before TLS begins
            return connection

        return self.do_open(make, request, context=self._context)  # type: ignore[attr-defined]  # the base's own


def _bounded(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigError("there is no such file")
    with path.open("rb") as file:
        content = file.read(_BYTES_LIMIT + 1)
    if len(content) > _BYTES_LIMIT:
        raise ConfigError(f"more than {_BYTES_LIMIT} bytes")
    return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A key set is where the configuration says, or nowhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirection: it becomes an error."""
