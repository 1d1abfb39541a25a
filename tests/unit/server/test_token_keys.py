"""Keys of tokens: read at the start, at intervals, or if one is missing, and never from another place."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.broker.access.authentication import Authenticator
from headrace.config.broker import BrokerConfig
from headrace.errors import ConfigError
from headrace.server import jwks
from headrace.server.jwks import KeyReader, read_keys
from tests.fixtures.broker_harness import BrokerHarness, RecordingJournal
from tests.fixtures.certificates import make_certificates
from tests.fixtures.sasl_server import Issuer
from tests.unit.server.loops import on_loop


def authenticator_for(url: str, refresh_ms: int = 3_600_000) -> Authenticator:
    harness = BrokerHarness(
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=url,
        sasl_oauthbearer_jwks_endpoint_refresh_ms=refresh_ms,
    )
    return harness.broker.services.authenticator


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def path(tmp_path: Path, issuer: Issuer) -> Path:
    path = tmp_path / "the keys.json"
    path.write_text(issuer.key_set())
    return path


def write(path: Path, content: str | None) -> None:
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content)


def known(authenticator: Authenticator, url: str) -> int:
    return len(authenticator._keys[url])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - a thread's work, which notifies no future
            await asyncio.sleep(0.01)


@on_loop
async def run_refresh(path: Path, issuer: Issuer) -> None:
    url = path.as_uri()
    write(path, issuer.key_set())
    authenticator, journal = authenticator_for(url), RecordingJournal()
    # In milliseconds. A configuration cannot ask so often.
    authenticator.key_urls[url] = 20  # type: ignore[index]  # a dict, for this test
    reader = KeyReader(asyncio.get_running_loop(), authenticator, journal)
    assert known(authenticator, url) == 1
    write(path, "garbage")
    await until(lambda: bool(journal.lines))
    assert journal.events("error")[0] == "token_keys_not_read"
    assert known(authenticator, url) == 1
    both = Issuer()
    both.add_ec("second")
    write(path, both.key_set())
    await until(lambda: known(authenticator, url) == 2)
    reader.close()


def test_are_read_again_and_kept_while_they_cannot_be(path, issuer):
    run_refresh(path, issuer)


@on_loop
async def run_missing(path: Path, issuer: Issuer) -> None:
    url = path.as_uri()
    write(path, issuer.key_set())
    authenticator = authenticator_for(url)
    reader = KeyReader(asyncio.get_running_loop(), authenticator, RecordingJournal())
    both = Issuer()
    both.add_ec("second")
    write(path, both.key_set())
    reads: list[str] = []
    reader._read = reads.append  # type: ignore[method-assign, assignment]  # the counted function
    for _ in range(5):
        authenticator.key_missing(url)
    assert reads == [], "within the interval of the last time"
    reader._read_s[url] -= jwks.MISSING_INTERVAL_S
    authenticator.key_missing(url)
    assert reads == [url]
    del reader._read
    authenticator.key_missing(url)
    for _ in range(5):
        authenticator.key_missing(url)
    await until(lambda: known(authenticator, url) == 2)
    reader.close()


def test_a_missing_key_has_them_read_but_not_often(path, issuer):
    run_missing(path, issuer)


@on_loop
async def run_start(path: Path) -> None:
    loop = asyncio.get_running_loop()
    for content in (None, "garbage", '{"keys": []}', " " * (1 << 20) + "{}"):
        write(path, content)
        with pytest.raises(ConfigError, match=r"keys\.json"):
            KeyReader(loop, authenticator_for(path.as_uri()), RecordingJournal())


def test_no_start_without_them(path):
    run_start(path)


@pytest.mark.parametrize(
    "url", ["http://localhost/keys", "ftp://x/y", "file://host/keys.json", "data:,x", "/etc/hosts"]
)
def test_only_files_and_https(url):
    with pytest.raises(ConfigError):
        read_keys(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost:port/keys",
        "https://localhost:99999/keys",
        "https://[::1/keys",
        "https://localhost/a b",
        "https://me:pass@localhost/keys",
    ],
)
def test_a_url_that_cannot_be_asked_is_an_error_in_one_line(url):
    with pytest.raises(ConfigError) as caught:
        run_once(url)
    assert "pass@" not in str(caught.value)


@on_loop
async def run_once(url: str) -> None:
    KeyReader(asyncio.get_running_loop(), authenticator_for(url), RecordingJournal())


def test_the_error_for_an_invalid_url_does_not_contain_the_password():
    with pytest.raises(ConfigError, match=r"got 'http:'") as caught:
        authenticator_for("http://me:pass@localhost/keys")
    assert "pass" not in str(caught.value)


def test_a_url_is_logged_without_its_secret_parts():
    assert jwks._named("https://me:pass@host/keys?token=x#y") == "https://host/keys"


class Handler(http.server.BaseHTTPRequestHandler):
    content = b""
    over = threading.Event()
    """Set at the end of the test."""

    def do_GET(self) -> None:
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hosts")
            self.end_headers()
            return
        if self.path.startswith("/slow"):
            self._drip()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.content if self.path == "/keys" else b" " * (2 << 20))

    def _drip(self) -> None:
        """Send single bytes, in the headers or after them: each restarts the client's time-out."""
        self.wfile.write(b"HTTP/1.0 200 OK\r\n" + b"\r\n" * self.path.endswith("body"))
        with contextlib.suppress(OSError):
            for _ in range(200):  # ten seconds, unless the deadline ends it
                self.wfile.write(b"x")
                if self.over.wait(0.05):
                    return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificates = make_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.pem)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Handler.over.clear()
    yield f"https://localhost:{server.server_port}"
    Handler.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("where", ["headers", "body"])
def test_a_server_that_sends_single_bytes_reaches_the_deadline(https, monkeypatch, where):
    monkeypatch.setattr(jwks, "_TIMEOUT_S", 0.3)
    with pytest.raises(TimeoutError, match=r"more than 0\.3 s"):
        read_keys(f"{https}/slow-{where}")


def test_over_https_from_that_place_alone(https, monkeypatch, issuer):
    Handler.content = issuer.key_set().encode()
    assert read_keys(f"{https}/keys") == Handler.content
    with pytest.raises(OSError, match="302"):
        read_keys(f"{https}/elsewhere")
    with pytest.raises(ConfigError, match="bytes"):
        read_keys(f"{https}/large")
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        read_keys(f"{https}/keys")
    assert BrokerConfig().sasl_oauthbearer_jwks_endpoint_url == ""
