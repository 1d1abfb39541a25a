"""The data of a broker under test, which makes requests expensive, and the permissions of the user who sends them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import headrace
from headrace.protocol.codec import Message
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headrace.records.builder import BatchBuilder, build_batch
from headrace.security.acls import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.cost.bombs import bombs
from tests.cost.broker import (
    PASSWORD,
    USER,
    Connection,
    Cost,
    WatchedBroker,
    decoded,
    framed,
)
from tests.cost.fields import Kind
from tests.cost.requests import Values

NOW_MS: Final = int(time.time() * 1000)


@dataclass(frozen=True)
class Scale:
    """The amount of data that the broker holds."""

    partitions: int
    """Number of partitions of the topic `few`."""
    topics: int
    """Number of further topics, with one partition each."""
    producers: int
    """Number of producers that have written to partition 0 of `few`."""
    groups: int
    members: int
    """Number of members of the group `few`, and of the consumer group `few.c`."""
    acls: int
    record_count: int
    """Number of records that each bomb of many records claims."""
    bomb_bytes: int
    """Size to which each bomb of one record inflates, in bytes."""
    connections: int
    """Number of connections that open at once, or one after the other."""
    created: int
    """Number of topics that an administrator creates at once. A request may have 1,000."""
    metadata_bytes: int = 300_000
    """Size of the metadata of each member of `few`, in bytes."""


TINY: Final = Scale(
    partitions=100,
    topics=50,
    producers=100,
    groups=20,
    members=2,
    acls=20,
    record_count=0,
    bomb_bytes=0,
    connections=2,
    created=10,
)
"""The sizes in `make check`: no bombs, which have tests of their own."""
SHORT: Final = Scale(
    partitions=300,
    topics=200,
    producers=2_000,
    groups=200,
    members=3,
    acls=100,
    record_count=300_000,
    bomb_bytes=8 << 20,
    connections=10,
    created=100,
)
LONG: Final = Scale(
    partitions=5_000,
    topics=2_000,
    producers=20_000,
    groups=1_000,
    members=25,
    acls=9_000,
    record_count=6_000_000,
    bomb_bytes=60 << 20,
    connections=60,
    created=1_000,
    metadata_bytes=120_000,
)
SPECIAL: Final[dict[str, dict[str, str]]] = {
    "few.plain": {},
    "few.compact": {"cleanup.policy": "compact"},
    "few.ttl": {"headrace.ttl.enable": "true"},
    "few.delay": {"headrace.delay.enable": "true"},
    "few.filter": {"headrace.filter.enable": "true"},
    "few.gzip": {"compression.type": "gzip", "compression.gzip.level": "9"},
    "few.zstd": {"compression.type": "zstd", "compression.zstd.level": "19"},
    "few.uncompressed": {"compression.type": "uncompressed", "max.message.bytes": "9000000"},
}
ATTEMPTS: Final = 50
PASSING: Final = {14, 15, 16, 51}
"""Temporary errors of coordinators: they are loading, or another request is in flight."""
RIGHTS: Final = [
    (ResourceType.TOPIC, Operation.READ),
    (ResourceType.TOPIC, Operation.WRITE),
    (ResourceType.TOPIC, Operation.DESCRIBE),
    (ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS),
    (ResourceType.GROUP, Operation.READ),
    (ResourceType.TRANSACTIONAL_ID, Operation.WRITE),
]


class Contents:
    """Fills a broker through its administrator's listener."""

    def __init__(self, broker: WatchedBroker, scale: Scale) -> None:
        self.broker = broker
        self.scale = scale
        self.planted: dict[str, list[str]] = {}
        """The bombs that the broker has accepted, by topic. The n-th has the time NOW_MS plus n seconds."""
        self.offsets: dict[str, list[int]] = {}
        """The committed offset of each partition with a committed offset."""
        self.planting: list[tuple[str, int, Cost]] = []
        """The cost of producing each bomb, accepted or refused."""
        self.unauthenticated_bytes = 512 << 10
        self._spare: Connection | None = None
        self.topic_ids: dict[str, bytes] = {}

    def make(self) -> Values:
        """Fill the broker, and return its contents."""
        self._users()
        with Connection(self.broker.admin) as admin:
            self._topics(admin)
            self._records(admin)
            if self.scale.record_count:
                self._bombs(admin)
            self._groups(admin)
            self._transactions(admin)
        names = ["few", *(f"few.{i}" for i in range(self.scale.topics))]
        return Values(
            {
                Kind.TOPIC: names,
                Kind.TOPIC_ID: [self.topic_ids[name] for name in names],
                Kind.PARTITION: list(range(self.scale.partitions)),
                Kind.GROUP: [
                    "few",
                    "few.o",
                    "few.c",
                    *(f"few.{i}" for i in range(self.scale.groups)),
                ],
                Kind.TRANSACTIONAL_ID: [f"few.{i}" for i in range(20)],
                Kind.PRODUCER_ID: [0],
                Kind.USER: [USER, *(f"user-{i}" for i in range(100))],
                Kind.RESOURCE: ["few"],
                Kind.SETTING: ["retention.ms", "cleanup.policy", "segment.bytes"],
                Kind.RECORDS: [build_batch([(b"k", b"v", (), NOW_MS)])],
            }
        )

    def spare(self) -> Connection:
        """Return a connection that the caller need not close."""
        if self._spare is None:
            self._spare = self.broker.connection(as_admin=True)
        return self._spare

    def _users(self) -> None:
        with headrace.Admin(self.broker.admin) as admin:
            admin.set_user(USER, PASSWORD, mechanisms=["SCRAM-SHA-256"])
            bindings = [
                AclBinding(
                    kind,
                    "few",
                    PatternType.PREFIXED,
                    f"User:{USER}",
                    "*",
                    operation,
                    Permission.ALLOW,
                )
                for kind, operation in RIGHTS
            ]
            bindings += [
                AclBinding(
                    ResourceType.TOPIC,
                    f"few.other-{number}",
                    PatternType.PREFIXED if number % 2 else PatternType.LITERAL,
                    f"User:{USER}",
                    "*",
                    Operation.READ,
                    Permission.ALLOW,
                )
                for number in range(self.scale.acls)
            ]
            for start in range(0, len(bindings), 500):
                admin.create_acls(bindings[start : start + 500])

    def _topics(self, admin: Connection) -> None:
        topics = [
            CreatableTopic(name="few", num_partitions=self.scale.partitions, replication_factor=1)
        ]
        topics += [
            CreatableTopic(name=f"few.{i}", num_partitions=1, replication_factor=1)
            for i in range(self.scale.topics)
        ]
        topics += [
            CreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
            )
            for name, configs in SPECIAL.items()
        ]
        for start in range(0, len(topics), 200):
            piece = topics[start : start + 200]
            answer = admin.call(CreateTopicsRequest(topics=piece, timeout_ms=60_000), 7)
            for each in answer.topics:
                assert each.error_code == 0, each.error_message
                self.topic_ids[each.name] = bytes(each.topic_id)

    def _records(self, admin: Connection) -> None:
        """Produce to every partition of the first topic, and with many producers to its first partition."""
        batch = build_batch([(b"k", b"v" * 100, (), NOW_MS)])
        admin.call(produce_request("few", dict.fromkeys(range(self.scale.partitions), batch)), 9)
        frames = []
        for producer in range(self.scale.producers):
            piece = build_batch(
                [(b"k", b"v", (), NOW_MS)],
                producer_id=1_000_000 + producer,
                producer_epoch=0,
                base_sequence=0,
            )
            frames.append(framed(produce_request("few", {0: piece}), 9))
        _pipelined(admin, frames)

    def _bombs(self, admin: Connection) -> None:
        for topic in SPECIAL:
            planted = self.planted.setdefault(topic, [])
            for name, made in bombs(self.scale.record_count, self.scale.bomb_bytes, topic):
                content = made(NOW_MS + 1000 * len(planted))
                frame = framed(produce_request(topic, {0: content}), 9)
                cost, answer = self.broker.measure_answer(frame, admin, ProduceRequest, 9)
                self.planting.append((f"Produce of a bomb to {topic}: {name}", len(frame), cost))
                result = answer.responses[0].partition_responses[0]
                if result.error_code == 0:
                    planted.append(name)
                    self.offsets.setdefault(topic, []).append(result.base_offset)

    def _groups(self, admin: Connection) -> None:
        names = ["few", "few.o", "few.c", *(f"few.{i}" for i in range(self.scale.groups))]
        for name in names[:50]:
            admin.call(FindCoordinatorRequest(coordinator_keys=[name], key_type=0), 4)
        self._offsets(admin, names[1], range(min(1000, self.scale.partitions)), "x" * 4000)
        for name in names[3:]:
            self._offsets(admin, name, [0], "")
        self._classic_members()
        self._consumer_members(admin)

    def _offsets(self, admin: Connection, group: str, partitions: Any, metadata: str) -> None:
        for start in range(0, len(partitions), 100):
            request = OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[
                    OffsetCommitRequestTopic(
                        name="few",
                        partitions=[
                            OffsetCommitRequestPartition(
                                partition_index=index,
                                committed_offset=0,
                                committed_metadata=metadata,
                            )
                            for index in partitions[start : start + 100]
                        ],
                    )
                ],
            )
            answer = admin.call(request, 7)
            assert answer.topics[0].partitions[0].error_code == 0, answer

    def _classic_members(self) -> None:
        """Fill a classic group whose members send and receive metadata of the largest size."""
        connections = [Connection(self.broker.admin) for _ in range(self.scale.members)]
        content = b"m" * self.scale.metadata_bytes
        for connection in connections:
            connection.sock.sendall(framed(_join(content), 3))
        answers = [_decoded(connection, JoinGroupRequest, 3) for connection in connections]
        assert len({answer.generation_id for answer in answers}) == 1, "they joined at once"
        members = [answer.member_id for answer in answers]
        assigned = [
            SyncGroupRequestAssignment(member_id=each, assignment=b"a" * (900_000 // len(members)))
            for each in members
        ]
        for connection, answer in zip(connections, answers, strict=True):
            request = SyncGroupRequest(
                group_id="few",
                generation_id=answer.generation_id,
                member_id=answer.member_id,
                assignments=assigned if answer.leader == answer.member_id else [],
            )
            connection.sock.sendall(framed(request, 3))
        for connection in connections:
            assert _decoded(connection, SyncGroupRequest, 3).error_code == 0
            connection.close()

    def _consumer_members(self, admin: Connection) -> None:
        for number in range(self.scale.members):
            answer = admin.call(
                ConsumerGroupHeartbeatRequest(
                    group_id="few.c",
                    member_id=f"member-{number}",
                    member_epoch=0,
                    subscribed_topic_names=["few"],
                    topic_partitions=[],
                    rebalance_timeout_ms=600_000,
                ),
                1,
            )
            assert answer.error_code == 0, answer.error_message

    def _transactions(self, admin: Connection) -> None:
        """Open transactions, with records in as many partitions as exist."""
        for number in range(20):
            name = f"few.{number}"
            made = begin(admin, name)
            batch = build_transactional(made.producer_id, made.producer_epoch)
            most = self.scale.partitions if number == 0 else 10
            admin.call(
                produce_request("few", dict.fromkeys(range(1, most), batch), transactional_id=name),
                12,
            )


def begin(connection: Connection, transactional_id: str) -> Any:
    """Return the response that makes a client the producer of a transactional id."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=600_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    made = None
    for _ in range(ATTEMPTS):
        connection.call(FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=1), 4)
        made = connection.call(request, 4)
        if made.error_code not in PASSING:
            break
        time.sleep(0.1)
    assert made is not None
    assert made.error_code == 0, made
    return made


def build_transactional(producer_id: int, producer_epoch: int) -> bytes:
    """Return a batch of one record that is part of a transaction."""
    builder = BatchBuilder(transactional=True)
    builder.append(key=b"k", value=b"v", timestamp_ms=NOW_MS)
    return bytes(builder.build(producer_id, producer_epoch, 0))


def _join(content: bytes, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="few",
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=5_000,
        member_id=member_id,
        protocol_type="other",
        protocols=[JoinGroupRequestProtocol(name="p", metadata=content)],
    )


def _decoded(connection: Connection, cls: type[Message], version: int) -> Any:
    return decoded(connection.receive(), cls, version)


def produce_request(
    topic: str, batches: Mapping[int, bytes | None], transactional_id: str | None = None
) -> ProduceRequest:
    return ProduceRequest(
        acks=1,
        timeout_ms=60_000,
        transactional_id=transactional_id,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[
                    PartitionProduceData(index=index, records=records)
                    for index, records in batches.items()
                ],
            )
        ],
    )


def _pipelined(connection: Connection, frames: list[bytes]) -> None:
    for start in range(0, len(frames), 100):
        piece = frames[start : start + 100]
        connection.sock.sendall(b"".join(piece))
        for _ in piece:
            connection.receive()
