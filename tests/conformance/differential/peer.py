"""The connections of a scenario to one broker: raw requests over plain sockets, and a transcript of all answers."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from select import select
from typing import Any, TypeVar

from headrace.errors import ErrorCode
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader, decode_response, encode_request, response_class
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchTopic
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.types import FileRange
from tests.conformance.differential.normal import Normal, Symbols, normal

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=FetchRequest | ProduceRequest)
CLIENT_ID = "differential"
TIMEOUT_S = 20.0
CLOSED = "<connection closed>"
SILENT = "<no answer>"
Versions = dict[int, tuple[int, int]]


class Closed(Exception):  # noqa: N818 - an event, not an error of the test
    """The broker has closed the connection."""


class Connection:
    """One socket, with the requests that have no answer yet."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending: list[tuple[type[Message], int]] = []
        self._correlation_id = 0

    def send(self, request: Message, version: int, *, answered: bool = True) -> None:
        """Send a request; `receive` returns the answers in order."""
        self._correlation_id += 1
        cls = response_class(request.API_KEY)
        assert cls is not None
        if answered:
            self._pending.append((cls, version))
        header = RequestHeader(request.API_KEY, version, self._correlation_id, CLIENT_ID)
        payloads = encode_request(header, request)
        self.send_bytes(b"".join(p for p in payloads if not isinstance(p, FileRange)))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes. If the broker has closed the connection, reading an answer raises the error."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def await_answer(self, timeout_s: float) -> bool:
        """Wait for the first bytes of an answer, and return whether they came in time."""
        readable, _, _ = select([self.socket], [], [], timeout_s)
        return bool(readable)

    def receive(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the next answer.

        Raises:
            Closed: The broker closes the connection.
            TimeoutError: No answer comes in time.
        """
        cls, version = self._pending.pop(0)
        return decode_response(memoryview(self.receive_frame(timeout_s)), cls, version)[1]

    def receive_frame(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the next answer without its length."""
        self.socket.settimeout(timeout_s)
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not piece:
                raise Closed
            data += piece
        return bytes(data)

    def close(self) -> None:
        self.socket.close()


@dataclass(slots=True)
class Step:
    """One line of a transcript."""

    label: str
    outcome: Normal


@dataclass
class Peer:
    """The connections of one scenario to one broker, and the transcript."""

    name: str
    address: tuple[str, int]
    versions: Versions
    """The version range that both brokers serve, by API."""
    steps: list[Step] = field(default_factory=list)
    shared: dict[str, Normal] = field(default_factory=dict)
    started_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def __post_init__(self) -> None:
        self.symbols = Symbols(self.address, self.started_ms)
        self._connections: dict[str, Connection] = {}
        self._labels: dict[str, list[str]] = {}

    # --- requests ---

    def on(self, connection: str = "main") -> Connection:
        """Return the connection of this name; open it if there is none."""
        if connection not in self._connections:
            self._connections[connection] = Connection(self.address)
        return self._connections[connection]

    def drop(self, connection: str) -> None:
        if (found := self._connections.pop(connection, None)) is not None:
            found.close()

    def ask(
        self,
        label: str,
        request: Message,
        version: int | None = None,
        *,
        on: str = "main",
        patience_s: float = TIMEOUT_S,
    ) -> Any:
        """Send a request and note the answer; None if there is none, or the broker closes the connection."""
        self.send(label, request, version, on=on)
        return self.answer(on=on, patience_s=patience_s)

    def send(
        self, label: str, request: Message, version: int | None = None, *, on: str = "main"
    ) -> None:
        """Send a request without waiting. `answer` on the same connection returns the answer."""
        version = self.latest(request) if version is None else version
        self.on(on).send(request, version)
        self._labels.setdefault(on, []).append(f"{label} v{version}")

    def answer(self, *, on: str = "main", patience_s: float = TIMEOUT_S) -> Any:
        """Return the next answer on a connection, and note it."""
        label = self._labels[on].pop(0)
        try:
            response = self.on(on).receive(patience_s)
        except (Closed, TimeoutError) as error:
            if patience_s == TIMEOUT_S and isinstance(error, TimeoutError):
                raise TimeoutError(f"no answer to {label}") from error
            self.note(label, CLOSED if isinstance(error, Closed) else SILENT)
            self.drop(on)
            self._labels[on].clear()
            return None
        self.note(label, normal(response, self.symbols))
        return response

    def quiet(self, request: Message, version: int | None = None, *, on: str = "main") -> Any:
        """Send a request and return the answer without noting it."""
        connection = self.on(on)
        connection.send(request, self.latest(request) if version is None else version)
        return connection.receive()

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until a condition is true.

        Raises:
            AssertionError: The condition stays false.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, f"{self.name}: not {what}"

    def await_transactions(self) -> None:
        """Wait for the coordinator of transaction "t". The first request makes the broker create and load its topic."""
        find = FindCoordinatorRequest(key="t", key_type=1)
        self.wait_for("for transactions", lambda: not self.quiet(find, 1).error_code)
        describe = DescribeTransactionsRequest(transactional_ids=["t"])
        loading = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        self.wait_for(
            "for transactions",
            lambda: self.quiet(describe).transaction_states[0].error_code not in loading,
        )

    def note(self, label: str, outcome: Normal) -> None:
        """Add a line to the transcript."""
        self.steps.append(Step(label, outcome))

    def note_answer(self, label: str, response: Message) -> None:
        """Add an answer to the transcript."""
        self.note(label, normal(response, self.symbols))

    def note_shared(self, label: str, outcome: Normal) -> None:
        """Add a line that is compared only if the other broker has a line with the same label."""
        self.shared[label] = outcome

    def latest(self, request: Message) -> int:
        """Return the highest version that both brokers serve."""
        return self.versions[request.API_KEY][1]

    def range_of(self, cls: type[Message], *, since: int = 0) -> range:
        """Return all versions that both brokers serve."""
        low, high = self.versions[cls.API_KEY]
        return range(max(low, cls.MIN_VERSION, since), high + 1)

    # --- the first steps of many scenarios ---

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic and wait until the broker serves it."""
        settings = [
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=settings
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        (result,) = self.quiet(request).topics
        assert result.error_code == 0, (self.name, result)
        self.await_leaders(name)

    def delete(self, name: str) -> None:
        """Delete a topic, and check that this succeeds."""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        (result,) = self.quiet(request, 5).responses
        assert result.error_code == 0, (self.name, result)

    def topic_id(self, name: str) -> bytes:
        """Return the id of a topic; one that no topic has if there is no topic of this name."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        (topic,) = self.quiet(request, 12).topics
        return bytes(topic.topic_id) if topic.error_code == 0 else b"\x07" * 16

    def by_id(self, request: R) -> R:
        """Add the ids of the topics that a Fetch or a Produce names, for the versions with ids."""
        for topic in request.topics if isinstance(request, FetchRequest) else request.topic_data:
            name = topic.topic if isinstance(topic, FetchTopic) else topic.name
            topic.topic_id = self.topic_id(name)
        return request

    def await_leaders(self, name: str) -> None:
        """Wait until every partition of a topic has a leader, and the leader knows it."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            (topic,) = self.quiet(request, 9).topics
            if topic.error_code == 0 and self._leads(topic):
                return
            assert time.monotonic() < deadline, (self.name, topic)

    def _leads(self, topic: MetadataResponseTopic) -> bool:
        # Kafka names a leader a moment before the leader itself knows.
        partitions = [
            ListOffsetsPartition(partition_index=p.partition_index, timestamp=-1)
            for p in topic.partitions
        ]
        name = topic.name
        assert name is not None
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=partitions)]
        )
        (listed,) = self.quiet(request, 1).topics
        return all(p.error_code == 0 for p in listed.partitions)

    def produce(self, topic: str, batch: bytes, partition: int = 0) -> PartitionProduceResponse:
        """Append a valid batch."""
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        part: PartitionProduceResponse = self.quiet(request, 9).responses[0].partition_responses[0]
        assert part.error_code == 0, (self.name, part)
        return part

    def producer(self) -> tuple[int, int]:
        """Return a new producer id and its epoch."""
        response = self.quiet(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        )
        assert response.error_code == 0, (self.name, response)
        return response.producer_id, response.producer_epoch

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def advertised(address: tuple[str, int]) -> Versions:
    """Ask a broker for the versions that it serves."""
    connection = Connection(address)
    try:
        connection.send(ApiVersionsRequest(), 0)
        response: ApiVersionsResponse = connection.receive()
    finally:
        connection.close()
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def common_versions(left: Versions, right: Versions) -> Versions:
    """Return the versions that both brokers serve."""
    return {
        key: (max(left[key][0], right[key][0]), min(left[key][1], right[key][1]))
        for key in left.keys() & right.keys()
    }
