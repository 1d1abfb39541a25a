"""Run servers of other kinds for orientation: NATS JetStream and Redis Streams, from Debian's packages.

Their loads speak the wire protocol themselves: a Python client library needs ten times the processor time of the server
and would be the limit. Both servers take records one by one, so their rates stand beside those of brokers that receive
batches. The table says so.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from benchmarks.macro.latency import ReceiverFactory, SenderFactory
from benchmarks.macro.report import HEADRACE, KAFKA
from benchmarks.macro.servers import produce_frame, produced_error, read_response
from benchmarks.macro.workloads import Run
from tests.fixtures.kafka import free_ports, log_tail, signal_and_wait

NATS, REDIS = "nats", "redis"
IN_FLIGHT = 500  # records that are not acknowledged
READ_COUNT = 5_000  # entries of one XREAD
START_TIMEOUT_S = 10
STOP_TIMEOUT_S = 10
SIGTERM = 15

# The meaning of an acknowledgement of each server, by preset; None if the server has no equivalent.
DURABILITY: Mapping[str, Mapping[str, str | None]] = {
    "os": {
        NATS: "file storage with its default settings: acknowledged from the page cache",
        REDIS: "appendonly yes, appendfsync everysec: acknowledged from the page cache, synced each second",
    },
    "fsync": {NATS: None, REDIS: "appendfsync always: synced before the acknowledgement"},
}


class Link:
    """A socket with a buffered reader."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = cast("BinaryIO", self.socket.makefile("rb", buffering=1 << 18))

    def send(self, data: bytes) -> None:
        """Send all bytes of `data`."""
        self.socket.sendall(data)

    def line(self) -> bytes:
        """Return the next line.

        Raises:
            ConnectionError: The server closed the connection.
        """
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        return line

    def close(self) -> None:
        """Close the socket and its reader."""
        self.stream.close()
        self.socket.close()


class PeerServer:
    """A server of another kind in its own directory."""

    def __init__(self, directory: Path, preset: str) -> None:
        directory.mkdir(parents=True)
        self.directory, self.preset = directory, preset
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Return the address as `HOST:PORT`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the running server."""
        assert self._process is not None
        return self._process.pid

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts the server."""

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Raises:
            TimeoutError: The server does not accept connections in time.
        """
        log = self.directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._answers():
                return
            time.sleep(0.02)
        self.stop()
        raise TimeoutError(f"{self.command()[0]} does not answer: {log_tail(log)}")

    def _answers(self) -> bool:
        try:
            Link(self.bootstrap).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Stop the server, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            signal_and_wait(process, SIGTERM, STOP_TIMEOUT_S)


class NatsServer(PeerServer):
    """NATS with JetStream on files."""

    def command(self) -> list[str]:
        """Return the command that starts the server."""
        options = ["--jetstream", "--store_dir", str(self.directory), "--addr", "127.0.0.1"]
        return ["nats-server", *options, "--port", str(self.port)]


class RedisServer(PeerServer):
    """Redis with an append-only file."""

    def command(self) -> list[str]:
        """Return the command that starts the server."""
        often = "always" if self.preset == "fsync" else "everysec"
        options = ["--dir", str(self.directory), "--bind", "127.0.0.1", "--save", ""]
        persistence = ["--appendonly", "yes", "--appendfsync", often]
        return ["redis-server", "--port", str(self.port), *options, *persistence]


PROGRAMS: Mapping[str, tuple[str, type[PeerServer]]] = {
    NATS: ("nats-server", NatsServer),
    REDIS: ("redis-server", RedisServer),
}


def why_not(name: str, preset: str) -> str | None:
    """Return why a server takes no part in a preset; None if it takes part."""
    program, _ = PROGRAMS[name]
    if DURABILITY[preset][name] is None:
        return f"{name} has no durability that compares with {preset}"
    if shutil.which(program) is None:
        return f"{name} is not installed (Debian: apt-get install {program})"
    return None


def version(name: str) -> str:
    """Return the version that the server's program prints."""
    program, _ = PROGRAMS[name]
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split()[:3])


# Redis: an array of bulk strings is a command.


def _command(*words: bytes) -> bytes:
    bulks = [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%s" % (len(words), b"".join(bulks))


def redis_add(_: Link, topic: str, value: bytes) -> bytes:
    """Return an XADD command of one entry with one field."""
    return _command(b"XADD", topic.encode(), b"*", b"v", value)


def redis_acknowledged(link: Link) -> None:
    """Read the answer to an XADD: the id, as a bulk string."""
    if not link.line().startswith(b"$"):
        raise RuntimeError("Redis refused a record")
    link.line()


class RedisSender:
    """A sender that uses XADD for each record and does not wait."""

    def __init__(self, address: str, topic: str) -> None:
        self._link, self._topic, self._sent = Link(address), topic, 0

    def send(self, value: bytes) -> None:
        """Send one record without waiting."""
        self._link.send(redis_add(self._link, self._topic, value))
        self._sent += 1

    def finish(self) -> None:
        """Read all outstanding answers."""
        for _ in range(self._sent):
            redis_acknowledged(self._link)
        self._link.close()


def redis_receiver(address: str, topic: str) -> Iterator[bytes]:
    """Yield the values of a stream as they arrive, read with XREAD."""
    link, last = Link(address), b"0"
    options = (b"XREAD", b"COUNT", b"%d" % READ_COUNT, b"BLOCK", b"30000", b"STREAMS")
    while True:
        link.send(_command(*options, topic.encode(), last))
        if not link.line().startswith(b"*1"):  # the streams; *-1 if nothing came
            return
        link.line()  # *2
        _bulk(link)  # the name
        for _ in range(int(link.line()[1:])):
            link.line()  # *2
            last = _bulk(link)
            link.line()  # *2
            _bulk(link)  # v
            yield _bulk(link)


def _bulk(link: Link) -> bytes:
    size = int(link.line()[1:])
    return link.stream.read(size + 2)[:size]


# NATS: PUB subject reply size, payload; MSG subject sid [reply] size, payload.


def _nats(address: str) -> Link:
    link = Link(address)
    link.line()  # INFO
    link.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\n')
    return link


def _inbox(link: Link) -> bytes:
    return b"ack.%d" % link.socket.getsockname()[1]


def nats_publish(link: Link, topic: str, value: bytes) -> bytes:
    """Return a publish command whose acknowledgement goes to the inbox of the connection."""
    return b"PUB %s %s %d\r\n%s\r\n" % (topic.encode(), _inbox(link), len(value), value)


def _nats_message(link: Link) -> bytes:
    while not (line := link.line()).startswith(b"MSG"):
        if line.startswith(b"PING"):
            link.send(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise RuntimeError(line.decode())
    size = int(line.rsplit(b" ", 1)[1])
    return link.stream.read(size + 2)[:size]


def nats_acknowledged(link: Link) -> None:
    """Read the acknowledgement of one publish."""
    answer = _nats_message(link)
    if b'"seq"' not in answer:
        raise RuntimeError(answer.decode())


def nats_open(address: str) -> Link:
    """Open a connection on which acknowledgements arrive."""
    link = _nats(address)
    link.send(b"SUB %s 1\r\n" % _inbox(link))
    return link


def _nats_call(address: str, subject: str, request: Mapping[str, object]) -> None:
    link = _nats(address)
    body = json.dumps(request).encode()
    link.send(b"SUB answer 1\r\nPUB %s answer %d\r\n%s\r\n" % (subject.encode(), len(body), body))
    answer = json.loads(_nats_message(link))
    link.close()
    if "error" in answer:
        raise RuntimeError(str(answer["error"]))


class NatsSender:
    """A sender that publishes records one by one and does not wait."""

    def __init__(self, address: str, topic: str) -> None:
        self._link, self._topic, self._sent = nats_open(address), topic, 0

    def send(self, value: bytes) -> None:
        """Send one record without waiting."""
        self._link.send(nats_publish(self._link, self._topic, value))
        self._sent += 1

    def finish(self) -> None:
        """Read all outstanding acknowledgements."""
        for _ in range(self._sent):
            nats_acknowledged(self._link)
        self._link.close()


def nats_receiver(address: str, topic: str) -> Iterator[bytes]:
    """Yield the values of a stream as they arrive, pushed by an ordered consumer without acknowledgements."""
    link = _nats(address)
    link.send(b"SUB push.%s 1\r\n" % topic.encode())
    config = {"deliver_subject": f"push.{topic}", "deliver_policy": "all", "ack_policy": "none"}
    request = {"stream_name": topic, "config": config}
    _nats_call(address, f"$JS.API.CONSUMER.CREATE.{topic}", request)
    while True:
        yield _nats_message(link)


# Kafka: a Produce request with one batch of one record.


def kafka_produce(_: Link, topic: str, value: bytes) -> bytes:
    """Return a request with one record and acks=all."""
    return produce_frame(topic, 0, len(value))


def kafka_acknowledged(link: Link) -> None:
    """Read the answer to a request."""
    response = read_response(link.stream)
    name_bytes = response[6] - 1  # a compact string has its length plus one before it
    if error := produced_error(response, "-" * name_bytes):
        raise RuntimeError(f"error {error}")


def create(name: str, address: str, topic: str) -> None:
    """Create a stream, if the server needs it."""
    if name == NATS:
        config = {"name": topic, "subjects": [topic], "storage": "file", "num_replicas": 1}
        _nats_call(address, f"$JS.API.STREAM.CREATE.{topic}", config)


SENDERS: Mapping[str, SenderFactory] = {NATS: NatsSender, REDIS: RedisSender}
RECEIVERS: Mapping[str, ReceiverFactory] = {NATS: nats_receiver, REDIS: redis_receiver}
_ADD: Mapping[str, tuple[Callable[[Link, str, bytes], bytes], Callable[[Link], None]]] = {
    NATS: (nats_publish, nats_acknowledged),
    REDIS: (redis_add, redis_acknowledged),
    KAFKA: (kafka_produce, kafka_acknowledged),
    HEADRACE: (kafka_produce, kafka_acknowledged),
}


def produce(
    name: str, address: str, topic: str, *, records: int, record_bytes: int, producers: int = 1
) -> Run:
    """Send records one by one, on a connection for each producer, with a fixed number in flight in all."""
    publish, acknowledged = _ADD[name]
    connect = nats_open if name == NATS else Link
    links = [connect(address) for _ in range(producers)]
    in_flight = max(1, IN_FLIGHT // producers)
    bursts = [publish(link, topic, b"x" * record_bytes) * in_flight for link in links]
    turns = records // (in_flight * producers)
    begun = time.perf_counter()
    for link, burst in zip(links, bursts, strict=True):
        link.send(burst)
    for turn in range(turns):
        for link, burst in zip(links, bursts, strict=True):
            for _ in range(in_flight):
                acknowledged(link)
            if turn + 1 < turns:
                link.send(burst)
    elapsed = time.perf_counter() - begun
    for link in links:
        link.close()
    count = turns * in_flight * producers
    return Run(count / elapsed, count * record_bytes / 1e6)


def consume(name: str, address: str, topic: str, *, records: int, record_bytes: int) -> Run:
    """Read a stream from its start."""
    begun = time.perf_counter()
    for number, _ in enumerate(RECEIVERS[name](address, topic), 1):
        if number == records:
            break
    elapsed = time.perf_counter() - begun
    return Run(records / elapsed, records * record_bytes / 1e6)
