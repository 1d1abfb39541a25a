"""A raw client: one blocking socket, our codec, no retries, no metadata. For tests that examine every byte."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, Self, TypeVar

from headrace.protocol.codec import Message
from headrace.protocol.frame import (
    RequestHeader,
    decode_response,
    encode_request,
    response_class,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.reader import Record, read_records
from headrace.types import FileRange

M = TypeVar("M", bound=Message)

CLIENT_ID = "wire"
NOW_MS = int(time.time() * 1000)
"""A time for records that retention does not delete."""
VERSIONS = {0: 9, 1: 11, 18: 3, 19: 5, 22: 4, 3: 9}


def encoded(header: RequestHeader, request: Message) -> bytes:
    """Return the bytes of a request."""
    payloads = encode_request(header, request)
    return b"".join(payload for payload in payloads if not isinstance(payload, FileRange))


class WireClient:
    """One connection; `send` and `receive` may be apart, so that requests can be pipelined."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 20.0) -> None:
        self.sock = socket.create_connection(address, timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._pending: dict[int, tuple[type[Message], int]] = {}

    def send(self, request: Message, version: int | None = None) -> int:
        """Send a request, and return its correlation id."""
        self._correlation_id += 1
        version = VERSIONS[request.API_KEY] if version is None else version
        header = RequestHeader(request.API_KEY, version, self._correlation_id, CLIENT_ID)
        cls = response_class(request.API_KEY)
        assert cls is not None
        self._pending[self._correlation_id] = (cls, version)
        self.sock.sendall(encoded(header, request))
        return self._correlation_id

    def receive_frame(self) -> bytes:
        """Receive one response without its length; raise ConnectionError if the server has closed."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def receive(self) -> tuple[int, Any]:
        """Receive the next response; return its correlation id and the message."""
        frame = memoryview(self.receive_frame())
        (correlation_id,) = struct.unpack_from(">i", frame)
        cls, version = self._pending.pop(correlation_id)
        return decode_response(frame, cls, version)

    def request(self, request: Message, version: int | None = None) -> Any:
        """Send a request and wait for its response."""
        correlation_id = self.send(request, version)
        received, response = self.receive()
        assert received == correlation_id
        return response

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)

    def closed_by_server(self) -> bool:
        """Whether the server closes the connection, and sends nothing before."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def ping(self) -> None:
        """Send ApiVersions and wait for the answer, which shows that the server serves this connection."""
        response = self.request(ApiVersionsRequest())
        assert response.error_code == 0
        assert response.api_keys

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        (result,) = self.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        assert result.error_code == 0, result

    def init_producer_id(self) -> tuple[int, int]:
        """Obtain a producer id and its epoch."""
        response = self.request(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        )
        assert response.error_code == 0
        return response.producer_id, response.producer_epoch

    def send_batch(self, topic: str, partition: int, batch: bytes, *, acks: int = -1) -> int:
        """Send one batch, and return the correlation id. With acks=0 there is no response."""
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        correlation_id = self.send(request)
        if acks == 0:
            del self._pending[correlation_id]
        return correlation_id

    def produce(self, topic: str, partition: int, batch: bytes) -> PartitionProduceResponse:
        """Send one batch, and return the server's response."""
        self.send_batch(topic, partition, batch)
        _, response = self.receive()
        part = response.responses[0].partition_responses[0]
        assert isinstance(part, PartitionProduceResponse)
        return part

    def fetch(
        self, topic: str, partition: int, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 0
    ) -> PartitionData:
        """Fetch from one partition."""
        wanted = FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            partition_max_bytes=8 << 20,
        )
        response = self.request(
            FetchRequest(
                replica_id=-1,
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=8 << 20,
                session_epoch=-1,
                topics=[FetchTopic(topic=topic, partitions=[wanted])],
            )
        )
        assert response.error_code == 0
        part = response.responses[0].partitions[0]
        assert isinstance(part, PartitionData)
        return part

    def read(self, topic: str, partition: int, offset: int = 0) -> Iterator[Record]:
        """Read all records from `offset` to the high watermark."""
        while True:
            part = self.fetch(topic, partition, offset)
            assert part.error_code == 0, part.error_code
            assert part.high_watermark >= offset
            raw = part.records or b""
            assert not isinstance(raw, FileRange), "what was received is bytes"
            records = [record for record in read_records(raw) if record.offset >= offset]
            yield from records
            if not records:
                assert offset == part.high_watermark, "the log has a hole"
                return
            offset = records[-1].offset + 1

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
