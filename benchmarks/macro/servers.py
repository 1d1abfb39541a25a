"""Start the two brokers of a comparison, and measure their CPU, memory and time to the first acknowledgement."""

from __future__ import annotations

import platform
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import psutil

from benchmarks.macro.report import HEADRACE
from headrace.errors import ErrorCode
from headrace.protocol.frame import RequestHeader, encode_request
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from tests.fixtures.kafka import KAFKA_JVM_OPTIONS, KafkaServer, free_ports
from tests.fixtures.targets import HeadraceServer

PRESETS = {
    "os": "Headrace --durability os, Kafka with its default flush settings: acknowledged from the page cache",
    "fsync": "Headrace --durability fsync, Kafka with log.flush.interval.messages=1: synced before the acknowledgement",
}
PRODUCE_VERSION = 9
FIRST_ACK_TIMEOUT_S = 60
METADATA_VERSION = 9
PROCESS_CPU_CLOCK = 2  # of another process, in nanoseconds: the result of clock_getcpuclockid(3)
PAUSE_S = 0.002  # seconds between attempts

# A new group does not wait three seconds for further members, which would hide the cost of a join.
GROUP_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}

Server = HeadraceServer | KafkaServer


def make_server(target: str, preset: str, directory: Path) -> Server:
    """Return a broker that is not started yet, with the configuration of its users and `GROUP_SETTINGS`."""
    if target == HEADRACE:
        arguments = ["--durability", preset]
        (port,) = free_ports(1)
        return HeadraceServer(directory, settings=GROUP_SETTINGS, arguments=arguments, port=port)
    flush = {"log.flush.interval.messages": "1"} if preset == "fsync" else {}
    return KafkaServer(
        directory, settings={**GROUP_SETTINGS, **flush}, jvm_options=KAFKA_JVM_OPTIONS
    )


@dataclass(frozen=True)
class Cost:
    """The CPU time of a broker process between two moments, and the wall time, in seconds."""

    cpu_s: float
    wall_s: float


class Meter:
    """A reader of the resources of a broker process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.reset()

    def reset(self) -> None:
        """Begin a new measurement."""
        self._cpu, self._wall = self._cpu_s(), time.monotonic()

    def cost(self) -> Cost:
        """Return what the process used since the last reset."""
        return Cost(self._cpu_s() - self._cpu, time.monotonic() - self._wall)

    def rss_mb(self) -> float:
        """Return the resident memory, in MB (10^6 bytes)."""
        return float(self._process.memory_info().rss) / 1e6

    def peak_mb(self) -> float | None:
        """Return the peak resident memory in MB; None if the system does not report it."""
        status = Path(f"/proc/{self._process.pid}/status")
        if not status.exists():
            return None
        lines = [x for x in status.read_text().splitlines() if x.startswith("VmHWM")]
        return int(lines[0].split()[1]) * 1024 / 1e6

    def _cpu_s(self) -> float:
        try:
            return time.clock_gettime(~self._process.pid << 3 | PROCESS_CPU_CLOCK)
        except OSError:  # only Linux has this clock id
            times = self._process.cpu_times()
        return float(times.user + times.system)


def produce_frame(topic: str, partition: int, record_bytes: int, *, acks: int = -1) -> bytes:
    """Return the frame of a Produce request with one record."""
    batch = build_batch([(None, b"x" * record_bytes, (), int(time.time() * 1000))])
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return _frame(request, PRODUCE_VERSION)


def _frame(request: ProduceRequest | MetadataRequest, version: int) -> bytes:
    pieces = encode_request(RequestHeader(request.API_KEY, version, 1, "bench"), request)
    return b"".join(bytes(cast("bytes", piece)) for piece in pieces)


def read_response(stream: BinaryIO) -> bytes:
    """Return one response without its length.

    Raises:
        ConnectionError: The broker closed the connection.
    """
    length = stream.read(4)
    response = stream.read(int.from_bytes(length, "big")) if len(length) == 4 else b""
    if not response:
        raise ConnectionError("the broker closed the connection")
    return response


def produced_error(response: bytes, topic: str) -> int:
    """Return the error code of the one partition of a Produce response (version 9)."""
    # correlation id, tags, topics + 1, the name, partitions + 1, index
    return int(struct.unpack_from(">h", response, 4 + 1 + 1 + 1 + len(topic) + 1 + 4)[0])


def time_to_first_acknowledgement(server: Server, topic: str) -> float:
    """Start the broker; return the seconds until it acknowledged a record. Creates the topic if necessary.

    Raises:
        TimeoutError: The broker acknowledged no record in time.
    """
    host, port = server.bootstrap.rsplit(":", 1)
    server.prepare()
    begun = time.perf_counter()
    server.launch()
    deadline = begun + FIRST_ACK_TIMEOUT_S
    while time.perf_counter() < deadline:
        try:
            with socket.create_connection((host, int(port)), timeout=FIRST_ACK_TIMEOUT_S) as link:
                if _produce_until_acknowledged(link, topic, deadline):
                    return time.perf_counter() - begun
        except OSError:
            time.sleep(PAUSE_S)
    raise TimeoutError(f"no acknowledgement in {FIRST_ACK_TIMEOUT_S} s")


def _produce_until_acknowledged(link: socket.socket, topic: str, deadline: float) -> bool:
    """Send a record repeatedly; return whether it was acknowledged before the deadline."""
    stream = cast("BinaryIO", link.makefile("rb"))
    create = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
    )
    produce = produce_frame(topic, 0, 100)
    while time.perf_counter() < deadline:
        link.sendall(produce)
        if produced_error(read_response(stream), topic) == ErrorCode.NONE:
            return True
        link.sendall(_frame(create, METADATA_VERSION))
        read_response(stream)
        time.sleep(PAUSE_S)
    return False


def machine() -> dict[str, object]:
    """Return the facts on which the numbers depend, without names and paths."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = models[0].split(":", 1)[1].strip() if models else model
    return {
        "cpu": model,
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_before": [round(each, 2) for each in psutil.getloadavg()],
    }
