"""The keys that sign tokens (JSON Web Key Sets): read at the start, and again at intervals.

The server reads only the URLs of the configuration, from files or over https, without redirections, with limits on time
and size. If a token names an unknown key, the server reads the key set again, at most every `MISSING_INTERVAL_S`.
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
            ConfigError: A key set cannot be read.
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
    """Return a URL without the parts that may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL of the keys"
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def read_keys(url: str) -> bytes:
    """Return the content of a URL of the configuration.

    Raises:
        OSError: The content cannot be read in time.
        ConfigError: The URL is no file: or https: URL, the content is too large, or the response is not HTTP.
    """
    try:
        return _content(url)
    except (
        HTTPException,
        ValueError,
        OverflowError,
    ) as error:  # of the URL, its port, or the response
        raise ConfigError(f"{error}") from error


def _content(url: str) -> bytes:
    parts = urlsplit(url)
    if parts.username is not None:
        raise ConfigError("the URL must not contain a user and password")
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
    """Ends a connection when its time is over.

    The time-out of a socket starts again with each byte: a server that sends single bytes could block the thread for
    days, in the handshake, the headers or the body.
    """

    def __init__(self) -> None:
        self._timer = threading.Timer(_TIMEOUT_S, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._over = False

    def watch(self, sock: socket.socket) -> None:
        """Add a connection that the deadline ends."""
        with self._lock:
            self._sockets.append(sock.dup())  # TLS takes over the object, but not the duplicate
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
            if self._over:  # the deadline also ended a response that looks complete
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
    """A handler of https: URLs whose connections a deadline ends."""

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
    """Refuses redirections: only the URL of the configuration is read."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse the redirection, so that it becomes an error."""
