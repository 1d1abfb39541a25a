"""A small broker on a real socket, with faults on demand.

It keeps the batches it is sent, checks the sequences of idempotent producers as Kafka does, and serves one node's
share of Produce, Fetch, Metadata, ListOffsets and InitProducerId.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import RequestHeader, decode_request, encode_response
from headrace.protocol.messages import fetch, produce
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse
from headrace.records.batch import BatchHeader
from headrace.records.reader import read_records
from headrace.types import FileRange, TopicPartition

VERSIONS = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.API_VERSIONS: 4,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.SASL_AUTHENTICATE: 2,
}


@dataclass
class Log:
    """One partition: its batches with their base offsets patched in, and the producers' last sequences."""

    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    sequences: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Producer id to (epoch, next sequence, base offset of the last batch)."""
    last: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id to (base sequence, records) of the last batch."""

    def append(self, batch: bytes) -> tuple[ErrorCode, int]:
        header = BatchHeader.parse(batch)
        known = self.sequences.get(header.producer_id)
        if header.producer_id >= 0 and known is not None and known[0] > header.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if header.producer_id >= 0 and known is not None and known[0] == header.producer_epoch:
            if self.last[header.producer_id] == (header.base_sequence, header.records_count):
                return ErrorCode.NONE, known[2]
            if header.base_sequence != known[1]:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        base = self.end_offset
        self.batches.append(base.to_bytes(8, "big") + batch[8:])
        self.end_offset += header.records_count
        if header.producer_id >= 0:
            following = header.base_sequence + header.records_count
            self.sequences[header.producer_id] = (header.producer_epoch, following, base)
            self.last[header.producer_id] = (header.base_sequence, header.records_count)
        return ErrorCode.NONE, base

    def records(self):
        return [record for batch in self.batches for record in read_records(batch)]


@dataclass
class Fault:
    """A fault of one request of an API, with `code` as the error."""

    api: ApiKey
    kind: str
    """drop: close the connection; drop_after: execute, then close; silence: send no response; code: send an error;
    code_after: execute a Produce request, then send an error."""
    code: ErrorCode = ErrorCode.NONE


class FakeCluster:
    """Brokers that share partitions; `faults` is worked off in order, each by the next request of its API."""

    def __init__(
        self,
        nodes: int = 1,
        topics: dict[str, int] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self.logins: list[bytes] = []
        """First messages of SASL mechanisms; each is believed."""
        self.session_lifetime_ms = 0
        self.logs: dict[TopicPartition, Log] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        """The leader epochs of partitions whose leader has moved (see `move`); 0 for others."""
        self.versions = dict(VERSIONS)
        """The newest version of each API."""
        self.topic_ids: dict[str, bytes] = {}
        """The ids of topics that are not the usual ones."""
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[int, object]] = []
        self.max_batch_bytes: int | None = None
        self.producer_ids = 0
        self.lock = threading.Lock()
        self.brokers = {node: FakeBroker(self, node) for node in range(1, nodes + 1)}
        for name, count in (topics or {}).items():
            for number in range(count):
                where = TopicPartition(name, number)
                self.logs[where] = Log()
                self.leaders[where] = 1 + number % nodes

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.brokers[1].port}"

    def take_fault(self, api: int) -> Fault | None:
        for fault in self.faults:
            if fault.api == api:
                self.faults.remove(fault)
                return fault
        return None

    def topic_id(self, name: str) -> bytes:
        return self.topic_ids.get(name) or name.encode().ljust(16, b"-")[:16]

    def name_of(self, topic_id: bytes) -> str | None:
        names = (where.topic for where in self.logs)
        return next((name for name in names if self.topic_id(name) == topic_id), None)

    def move(self, topic: str, partition: int, leader: int) -> None:
        """Let another broker lead a partition, in the next leader epoch."""
        where = TopicPartition(topic, partition)
        with self.lock:
            self.leaders[where] = leader
            self.epochs[where] = self.epochs.get(where, 0) + 1

    def count(self, kind: type) -> int:
        return sum(1 for _, request in self.requests if isinstance(request, kind))

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class FakeBroker:
    """One node: a thread that accepts, a thread for each connection."""

    def __init__(self, cluster: FakeCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.connections: set[socket.socket] = set()
        self.threads: list[threading.Thread] = []
        self.accepted = 0
        self.port = 0
        self.listen()

    def listen(self) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        self.listener.listen()
        self._spawn(self._accept, self.listener)

    def close(self) -> None:
        """Stop listening and close every connection."""
        # A blocking accept does not notice a close from another thread; a shutdown it does.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()
        self.threads.clear()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            self.connections.add(connection)
            self._spawn(self._serve, connection)

    def _serve(self, plain: socket.socket) -> None:
        connection = plain
        if self.cluster.tls is not None:
            try:
                connection = self.cluster.tls.wrap_socket(plain, server_side=True)
            except OSError:
                plain.close()
                return
            finally:
                self.connections.discard(plain)
            self.connections.add(connection)
        stream = connection.makefile("rb")
        try:
            while True:
                size = int.from_bytes(stream.read(4), "big")
                frame = stream.read(size)
                if not size or len(frame) < size:
                    return
                reply = self._handle(memoryview(frame))
                if reply is None:
                    return
                if reply:
                    connection.sendall(reply)
        except OSError:
            return
        finally:
            stream.close()
            connection.close()
            self.connections.discard(connection)

    def _handle(self, frame: memoryview) -> bytes | None:
        """Return the reply; b"" for none; None to close."""
        header, request = decode_request(frame)
        with self.cluster.lock:
            self.cluster.requests.append((self.node, request))
            fault = self.cluster.take_fault(header.api_key)
            if fault is not None and fault.kind == "drop":
                return None
            is_refused = fault is not None and fault.kind == "code"
            code = fault.code if fault is not None and is_refused else ErrorCode.NONE
            response = self._respond(header, request, code)
            if fault is not None and fault.kind == "code_after":
                for topic in response.responses:
                    for part in topic.partition_responses:
                        part.error_code, part.base_offset = fault.code, -1
            if fault is not None and fault.kind == "drop_after":
                return None
            if fault is not None and fault.kind == "silence":
                return b""
        if response is None:
            return b""
        return b"".join(
            bytes(part)
            for part in encode_response(header, response)
            if not isinstance(part, FileRange)
        )

    def _respond(self, header: RequestHeader, request, code: ErrorCode):
        responders = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.SASL_HANDSHAKE: self._sasl_handshake,
            ApiKey.SASL_AUTHENTICATE: self._sasl_authenticate,
        }
        return responders[ApiKey(header.api_key)](request, code)

    def _api_versions(self, _request, code):
        rows = [
            ApiVersion(api_key=key, min_version=4 if key == ApiKey.FETCH else 0, max_version=newest)
            for key, newest in self.cluster.versions.items()
        ]
        return ApiVersionsResponse(error_code=code, api_keys=rows)

    def _sasl_handshake(self, request, code):
        return SaslHandshakeResponse(error_code=code, mechanisms=[request.mechanism])

    def _sasl_authenticate(self, request, code):
        self.cluster.logins.append(bytes(request.auth_bytes))
        return SaslAuthenticateResponse(
            error_code=code, session_lifetime_ms=self.cluster.session_lifetime_ms
        )

    def _metadata(self, request, _code):
        cluster = self.cluster
        names = {where.topic for where in cluster.logs}
        wanted = names if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node, host="127.0.0.1", port=broker.port)
                for node, broker in cluster.brokers.items()
            ],
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    topic_id=cluster.topic_id(name),
                    error_code=0 if name in names else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=where.partition,
                            leader_id=cluster.leaders[where],
                            leader_epoch=cluster.epochs.get(where, 0),
                        )
                        for where in sorted(cluster.logs)
                        if where.topic == name
                    ],
                )
                for name in wanted
            ],
        )

    def _produce(self, request, code):
        topics = []
        moved = {}
        for topic in request.topic_data:
            parts = []
            name = self.cluster.name_of(topic.topic_id) if any(topic.topic_id) else topic.name
            for data in topic.partition_data:
                where = TopicPartition(name or "", data.index)
                if name is None:
                    error, offset = ErrorCode.UNKNOWN_TOPIC_ID, -1
                else:
                    error, offset = self._append(where, bytes(data.records), code)
                part = PartitionProduceResponse(
                    index=data.index, error_code=error, base_offset=offset
                )
                if error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    leader = moved[where] = self.cluster.leaders[where]
                    part.current_leader = produce.LeaderIdAndEpoch(
                        leader_id=leader, leader_epoch=self.cluster.epochs.get(where, 0)
                    )
                parts.append(part)
            topics.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=parts
                )
            )
        endpoints = [produce.NodeEndpoint(**self._address(node)) for node in set(moved.values())]
        response = ProduceResponse(responses=topics, node_endpoints=endpoints)
        return response if request.acks else None

    def _address(self, node: int) -> dict[str, Any]:
        return {"node_id": node, "host": "127.0.0.1", "port": self.cluster.brokers[node].port}

    def _append(
        self, where: TopicPartition, batch: bytes, code: ErrorCode
    ) -> tuple[ErrorCode, int]:
        limit = self.cluster.max_batch_bytes
        if code:
            return code, -1
        if self.cluster.leaders[where] != self.node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if limit is not None and len(batch) > limit:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        return self.cluster.logs[where].append(batch)

    def _fetch(self, request, code):
        responses = []
        moved = set()
        for topic in request.topics:
            name = self.cluster.name_of(topic.topic_id) if any(topic.topic_id) else topic.topic
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else code
            parts = [
                self._fetch_one(TopicPartition(name or "", p.partition), p, unknown)
                for p in topic.partitions
            ]
            for part in parts:
                if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    where = TopicPartition(name or "", part.partition_index)
                    moved.add(self.cluster.leaders[where])
                    part.current_leader = fetch.LeaderIdAndEpoch(
                        leader_id=self.cluster.leaders[where],
                        leader_epoch=self.cluster.epochs.get(where, 0),
                    )
            responses.append(
                FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts)
            )
        endpoints = [fetch.NodeEndpoint(**self._address(node)) for node in moved]
        return FetchResponse(responses=responses, node_endpoints=endpoints)

    def _fetch_one(self, where, wanted, code):
        log = self.cluster.logs.get(where, Log())
        if not code and self.cluster.leaders[where] != self.node:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not code and wanted.fetch_offset > log.end_offset:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        batches = [
            b for b in log.batches if BatchHeader.parse(b).last_offset >= wanted.fetch_offset
        ]
        return PartitionData(
            partition_index=where.partition,
            error_code=code,
            high_watermark=log.end_offset,
            last_stable_offset=log.end_offset,
            records=b"" if code else b"".join(batches)[: wanted.partition_max_bytes],
        )

    def _list_offsets(self, request, code):
        topics = []
        for topic in request.topics:
            parts = [
                ListOffsetsPartitionResponse(
                    partition_index=p.partition_index,
                    error_code=code,
                    offset=0
                    if p.timestamp == -2
                    else self.cluster.logs[
                        TopicPartition(topic.name, p.partition_index)
                    ].end_offset,
                )
                for p in topic.partitions
            ]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    def _init_producer_id(self, request, code):
        if code:
            return InitProducerIdResponse(error_code=code)
        if request.transactional_id is not None and request.producer_id >= 0:
            return InitProducerIdResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        self.cluster.producer_ids += 1
        return InitProducerIdResponse(producer_id=self.cluster.producer_ids, producer_epoch=0)
