"""A surge: ten times as many requests in a second as the broker was measured to sustain.

The load is open-loop: its size depends on the time alone. Requests that a socket does not take wait in the client
and still count as offered; so back-pressure shows as requests that wait in sockets, or never leave the client.
"""

from __future__ import annotations

import contextlib
import selectors
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from crc32c import crc32c

from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import RequestHeader, decode_response
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, VERSIONS, WireClient, encoded
from tests.fixtures.processes import ServerProcess, running_server

MIB = 1 << 20
CONNECTIONS = 24
PARTITIONS = 4
IN_FLIGHT = 1_000
MEASURED_S = 1.0
SURGE_S = 1.0
FACTOR = 10
PRODUCE_VERSION = VERSIONS[ApiKey.PRODUCE]
VALUE = b"%012d" + b"." * 200
CRC_AT, CRC_FROM = 17, 21


class Template:
    """One produce request with a record; the value's number, the checksum and the correlation id are filled in."""

    def __init__(self, partition: int) -> None:
        batch = build_batch([(None, VALUE % 0, (), NOW_MS)])
        data = PartitionProduceData(index=partition, records=batch)
        topic = TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])
        header = RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 0, "surge")
        self._frame = bytearray(encoded(header, request))
        self._batch = self._frame.index(batch)
        self._end = self._batch + len(batch)
        self._number = self._frame.index(VALUE % 0)

    def request(self, number: int) -> bytes:
        """Return the request that carries this number."""
        frame = self._frame
        frame[self._number : self._number + 12] = b"%012d" % number
        checksum = crc32c(memoryview(frame)[self._batch + CRC_FROM : self._end])
        struct.pack_into(">I", frame, self._batch + CRC_AT, checksum)
        struct.pack_into(">i", frame, 8, number)
        return bytes(frame)


class Flow:
    """One connection, with requests that were made in advance, and the answers."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        self.partition = number % PARTITIONS
        self._first = number * 10_000_000
        self._template = Template(self.partition)
        self._client = WireClient((server.host, server.port), 60)
        self.socket = self._client.sock
        self.socket.settimeout(0)
        self._stream = memoryview(b"")
        self._size = len(self._template.request(0))
        self.prepared = 0
        self._written = 0
        self._received = bytearray()
        self._counted_to = 0
        self.answered = 0

    def prepare(self, count: int) -> None:
        """Make requests in advance, so that the load only has to send them."""
        first = self._first + self.prepared
        more = (self._template.request(number) for number in range(first, first + count))
        self._stream = memoryview(b"".join([self._stream, *more]))
        self.prepared += count

    @property
    def sent(self) -> int:
        """The number of requests of which the socket has taken a part."""
        return -(-self._written // self._size)

    def send(self, up_to: int) -> None:
        """Send the part of the requests before number `up_to` that the socket takes."""
        end = min(up_to, self.prepared) * self._size
        with contextlib.suppress(BlockingIOError):
            while self._written < end:
                self._written += self.socket.send(self._stream[self._written : end][: 4 * MIB])

    def receive(self) -> None:
        """Read the bytes that have arrived, and count the answers in them."""
        with contextlib.suppress(BlockingIOError):
            while data := self.socket.recv(MIB):
                self._received += data
            raise ConnectionError("the server closed the connection")
        while len(self._received) - self._counted_to >= 4:
            (size,) = struct.unpack_from(">i", self._received, self._counted_to)
            if len(self._received) - self._counted_to < 4 + size:
                break
            self._counted_to += 4 + size
            self.answered += 1

    def finish(self) -> None:
        """Send the rest of a request that was cut, and wait for all answers."""
        self.socket.settimeout(60)
        end = self.sent * self._size
        self.socket.sendall(self._stream[self._written : end])
        self._written = end
        self.socket.settimeout(0)
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while self.answered < self.sent:
                assert selector.select(60), "no more answers"
                self.receive()

    def acknowledged(self) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the value of each record that was acknowledged."""
        position, numbers = 0, iter(range(self._first, self._first + self.answered))
        while position < len(self._received):
            (size,) = struct.unpack_from(">i", self._received, position)
            frame = memoryview(self._received)[position + 4 : position + 4 + size]
            _, answer = decode_response(frame, ProduceResponse, PRODUCE_VERSION)
            (part,) = answer.responses[0].partition_responses
            number = next(numbers)
            if part.error_code == ErrorCode.NONE:
                yield part.base_offset, VALUE % number
            position += 4 + size

    def close(self) -> None:
        self._client.close()


def drive(
    flows: Sequence[Flow], seconds: float, wanted: Callable[[Flow, float], int]
) -> tuple[int, float]:
    """Send on all connections; return the number of answers, and the seconds until they came.

    Args:
        flows: The connections.
        seconds: The duration.
        wanted: Returns the number of requests that a flow must have sent after these seconds.
    """
    before = sum(flow.answered for flow in flows)
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            selector.register(flow.socket, selectors.EVENT_READ, flow)
        while (elapsed := time.monotonic() - began) < seconds:
            for flow in flows:
                flow.send(wanted(flow, elapsed))
            for key, _ in selector.select(0.005):
                key.data.receive()
    return sum(flow.answered for flow in flows) - before, time.monotonic() - began


class PeakMemory(threading.Thread):
    """Samples the memory of the server."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(server.pid)
        self._stopping = threading.Event()
        self.before = self.peak = int(self._process.memory_info().rss)

    def run(self) -> None:
        while not self._stopping.wait(0.05):
            self.peak = max(self.peak, int(self._process.memory_info().rss))

    def stop(self) -> int:
        """Return the largest growth in bytes."""
        self._stopping.set()
        self.join(10)
        return self.peak - self.before


def cpu_s(server: ServerProcess) -> float:
    """Return the CPU seconds that the server has used.

    CPU seconds say how much work a response costs. The rate of responses also depends on what else the machine does.
    """
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def latency_ms(client: WireClient) -> float:
    """Return the median time of an acknowledged Produce request."""
    taken = []
    batch = build_batch([(None, b"calm", (), NOW_MS)])
    for _ in range(20):
        began = time.perf_counter()
        assert client.produce("t", 0, batch).error_code == ErrorCode.NONE
        taken.append(time.perf_counter() - began)
    return sorted(taken)[10] * 1000


def test_ten_times_the_sustainable_rate_loses_nothing_and_passes_without_a_trace(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path))
        client = stack.enter_context(WireClient((server.host, server.port), 60))
        client.create_topic("t", PARTITIONS)
        calm_ms = latency_ms(client)
        flows = [
            stack.enter_context(contextlib.closing(Flow(server, number)))
            for number in range(CONNECTIONS)
        ]
        for flow in flows:
            flow.prepare(6_000)
        drive(flows, 0.5, lambda flow, _: flow.answered + IN_FLIGHT)  # to warm up
        cpu_before_s, answered_before = cpu_s(server), sum(flow.answered for flow in flows)
        count, seconds = drive(flows, MEASURED_S, lambda flow, _: flow.answered + IN_FLIGHT)
        sustainable = count / seconds
        for flow in flows:
            flow.finish()
        calm_answered = sum(flow.answered for flow in flows) - answered_before
        calm_cpu_s = (cpu_s(server) - cpu_before_s) / calm_answered
        for flow in flows:
            flow.prepare(int(FACTOR * sustainable * SURGE_S / CONNECTIONS) + 1)
        memory = PeakMemory(server)
        memory.start()
        cpu_before_s, answered_before = cpu_s(server), sum(flow.answered for flow in flows)
        starts = {flow: flow.sent for flow in flows}
        each = FACTOR * sustainable / CONNECTIONS
        count, seconds = drive(flows, SURGE_S, lambda flow, now: starts[flow] + int(each * now))
        offered = FACTOR * sustainable * seconds
        assert client.produce("t", 0, build_batch([(None, b"x", (), NOW_MS)])).error_code == 0
        for flow in flows:
            flow.finish()
        assert memory.stop() < 80 * MIB
        assert count < offered / 3, "it was a surge"
        surge_answered = sum(flow.answered for flow in flows) - answered_before
        surge_cpu_s = (cpu_s(server) - cpu_before_s) / surge_answered
        assert surge_cpu_s < 3 * calm_cpu_s, "a response costs nearly as much as before"

        deadline = time.monotonic() + 30
        while latency_ms(client) > 3 * calm_ms + 5:
            assert time.monotonic() < deadline, "it does not recover"
        for partition in range(PARTITIONS):
            stored = {record.offset: record.value for record in client.read("t", partition)}
            for flow in flows:
                if flow.partition == partition:
                    acknowledged = list(flow.acknowledged())
                    assert len(acknowledged) == flow.sent, "nothing was refused"
                    assert all(stored[offset] == value for offset, value in acknowledged)
        assert "Traceback" not in server.log
