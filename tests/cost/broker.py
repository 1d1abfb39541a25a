"""A measured broker process, and the cost of a request: loop time, memory, and the size of the response."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader, decode_response, encode_request, response_class
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.types import FileRange
from tests.cost.watched import GARBAGE, LONGEST, SLOTS, STEPS, TOTAL

PROGRAM = Path(__file__).with_name("watched.py")
START_TIMEOUT_S = 60
MIB = 1 << 20
BUGS = ("request_failed", "response_failed", "tick_failed", "Traceback")
USER, PASSWORD = "few", "the password of a user with few rights"


class Cost(NamedTuple):
    """The cost of one or several requests to the broker."""

    loop_ms: float
    """The longest step of the event loop, in CPU time."""
    garbage_ms: float
    """The longest garbage collection, in milliseconds. It is a part of a step, or of another thread."""
    steps: int
    total_ms: float
    memory_mb: float
    """The largest rise of the process's resident memory, in MiB; 0 on systems other than Linux."""
    answer_bytes: int
    outcome: str
    """"answered", "closed" by the broker, or "waits"."""


class Connection:
    """A client's connection: it sends bytes and receives frames."""

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self) -> bytes:
        """Return the next frame without its length. Raise ConnectionError when the broker has closed the connection."""
        size: int = struct.unpack(">i", self._receive(4))[0]
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            count = self.sock.recv_into(view)
            if not count:
                raise ConnectionError("closed by the broker")
            view = view[count:]
        return bytes(found)

    def call(self, request: Message, version: int) -> Any:
        """Send a request and return its response."""
        self.sock.sendall(framed(request, version))
        return decoded(self.receive(), type(request), version)

    def log_in(self, user: str, password: str) -> None:
        """Authenticate by SASL PLAIN."""
        assert self.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        token = f"\0{user}\0{password}".encode()
        answer = self.call(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert answer.error_code == 0, answer.error_message

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def decoded(frame: bytes, request: type[Message], version: int) -> Any:
    """Decode the response in a frame."""
    cls = response_class(request.API_KEY)
    assert cls is not None
    return decode_response(memoryview(frame), cls, version)[1]


def framed(request: Message, version: int, client_id: str | None = "cost") -> bytes:
    """Encode a request with its length."""
    header = RequestHeader(request.API_KEY, version, 1, client_id)
    payloads = encode_request(header, request)
    return b"".join(payload for payload in payloads if not isinstance(payload, FileRange))


class WatchedBroker:
    """`headrace serve` with an authorizer.

    Administrators use the first listener, and users authenticate on the second.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str], *, accel: bool = True) -> None:
        self._directory = directory
        self._settings = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "connection.failed.authentication.delay.ms": "0",
            "group.initial.rebalance.delay.ms": "500",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "log.retention.ms": "-1",
            **settings,
        }
        self._environment = {**os.environ, "HEADRACE_ACCEL": "1" if accel else "0"}
        self._process: subprocess.Popen[bytes]
        self._log: IO[bytes]
        self._numbers: memoryview
        self._lines_read = 0
        self.admin = self.user = ""

    def start(self) -> None:
        """Start the process, and wait for the ready line."""
        self._directory.mkdir(parents=True, exist_ok=True)
        measured = self._directory / "measured"
        measured.write_bytes(bytes(8 * SLOTS))
        with measured.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 8 * SLOTS)).cast("q")
        self._log = (self._directory / "log").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(PROGRAM), str(measured), "-m", "headrace.cli", "serve"),
                *(
                    "--loop",
                    "asyncio",
                    "--durability",
                    "os",
                    "--data",
                    str(self._directory / "data"),
                ),
                *(
                    "--listen",
                    "PLAINTEXT://127.0.0.1:0",
                    "--listen",
                    "SASL_PLAINTEXT://127.0.0.1:0",
                ),
                *(f"--config={name}={value}" for name, value in self._settings.items()),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
        )
        fields = dict(word.split("=", 1) for word in self._ready_line().split()[1:])
        listeners = dict(each.split("://") for each in fields["listeners"].split(","))
        self.admin, self.user = listeners["PLAINTEXT"], listeners["SASL_PLAINTEXT"]
        self._control = Connection(self.admin)

    def _ready_line(self) -> str:
        assert self._process.stdout is not None
        line, end = b"", time.monotonic() + START_TIMEOUT_S
        while not line.endswith(b"\n"):
            left = max(0.0, end - time.monotonic())
            readable, _, _ = select.select([self._process.stdout], [], [], left)
            piece = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            assert piece, f"the broker is not ready: {self.log_tail()}"
            line += piece
        return line.decode()

    def log_tail(self) -> str:
        return (self._directory / "log").read_text()[-3000:]

    def bugs(self) -> list[str]:
        """Return the log lines since the last call that report an exception in the broker."""
        lines = (self._directory / "log").read_text().splitlines()
        before, self._lines_read = self._lines_read, len(lines)
        return [line for line in lines[before:] if any(event in line for event in BUGS)]

    def stop(self) -> None:
        """Stop the broker's process."""
        self._control.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def connection(self, *, as_admin: bool = False) -> Connection:
        """Return a new connection: the administrator's, or that of the user with few permissions."""
        if as_admin:
            return Connection(self.admin)
        connection = Connection(self.user)
        connection.log_in(USER, PASSWORD)
        return connection

    # Measuring

    def measure(
        self,
        frames: Sequence[bytes],
        connection: Connection,
        *,
        answers: int | None = None,
        wait_s: float = 60.0,
    ) -> Cost:
        """Send frames in one write, wait for as many responses, and return the cost.

        Args:
            frames: Complete requests.
            connection: The connection.
            answers: The number of responses to wait for; None for one for each frame.
            wait_s: How long to wait for a response before the outcome is "waits", in seconds.
        """
        base = self._reset()
        received, outcome = 0, "answered"
        connection.sock.settimeout(wait_s)
        try:
            connection.sock.sendall(b"".join(frames))
            for _ in range(len(frames) if answers is None else answers):
                received += len(connection.receive())
        except TimeoutError:
            outcome = "waits"
        except OSError:
            outcome = "closed"
        self.settle()
        return self._cost(base, received, outcome)

    def measure_answer(
        self, frame: bytes, connection: Connection, request: type[Message], version: int
    ) -> tuple[Cost, Any]:
        """Measure one request, and return its response as well."""
        base = self._reset()
        connection.sock.sendall(frame)
        answer = connection.receive()
        self.settle()
        return self._cost(base, len(answer), "answered"), decoded(answer, request, version)

    def settle(self) -> None:
        """Return when the event loop has ended the step of everything sent before."""
        request = ApiVersionsRequest(client_software_name="cost", client_software_version="1")
        for _ in range(2):
            self._control.call(request, 3)

    def _reset(self) -> float:
        with contextlib.suppress(OSError):  # Linux: reset the peak
            Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        base = self._memory("VmRSS")
        self.settle()
        for number in (LONGEST, STEPS, TOTAL, GARBAGE):
            self._numbers[number] = 0
        return base

    def _cost(self, base: float, received: int, outcome: str) -> Cost:
        numbers = self._numbers
        return Cost(
            numbers[LONGEST] / 1e6,
            numbers[GARBAGE] / 1e6,
            numbers[STEPS],
            numbers[TOTAL] / 1e6,
            max(0.0, self._memory("VmHWM") - base),
            received,
            outcome,
        )

    def _memory(self, name: str) -> float:
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return 0.0
        line = next(line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024

    @property
    def resident_mb(self) -> float:
        """The present memory of the process, in MiB."""
        return self._memory("VmRSS")


def api_name(request: Message) -> str:
    """Return the name of a request's API."""
    return ApiKey(request.API_KEY).name
