"""A random history of one broker, with members and producers that join, leave, and often send invalid requests.

Requests have ids of former members, old generations and epochs, and assignments that cannot be decoded. Members change
their protocol under one instance id. Topics are created, extended and deleted, groups and offsets are deleted. The
broker is killed and restarted. Time advances by milliseconds or minutes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.broker.context import CloseConnection
from headrace.errors import ErrorCode
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupRequestAssignment
from tests.fixtures.broker_harness import BrokerHarness, Pending, produce_request
from tests.simulation.groups import requests

GROUPS: Final = ["g0", "g1", "g2", "g3"]
TOPICS: Final = ["a", "b"]
PARTITIONS: Final = 3
REGEX: Final = "[ab]+"
REGEXES: Final = ["a.*", "b.*", REGEX]
INSTANCES: Final = [None, None, "i0", "i1"]
TRANSACTIONAL_IDS: Final = ["t0", "t1", "t2"]
GONE: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
FENCED: Final = {
    *GONE,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
}


@dataclass
class Classic:
    """The history's data of a member of the classic protocol."""

    group: str
    instance: str | None
    member_id: str = ""
    epoch: int = -1
    leader: str = ""
    members: list[str] = field(default_factory=list)
    joining: Pending | None = None


@dataclass
class Modern:
    """The history's data of a member of the KIP-848 protocol."""

    group: str
    instance: str | None
    member_id: str
    epoch: int = 0
    owned: requests.Owned = field(default_factory=list)


@dataclass
class Producer:
    """The history's data of a transactional producer."""

    transactional_id: str
    producer_id: int
    epoch: int
    modern: bool
    sequences: Counter[tuple[str, int, int]] = field(default_factory=Counter)


class History:
    """One history, which its seed determines.

    Attributes:
        harness: The broker.
        counts: The number of responses by request and error code.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"history {seed}")
        chance = self.chance
        self.harness = BrokerHarness(
            # Few partitions and short times, so that a history of a hundred requests has compaction and expiry.
            offsets_topic_num_partitions=2,
            transaction_state_log_num_partitions=2,
            offsets_topic_segment_bytes=(segment := chance.choice([1024, 1 << 20])),
            transaction_state_log_segment_bytes=segment,
            log_cleaner_backoff_ms=1000,
            log_cleaner_min_cleanable_ratio=0.0,
            log_cleaner_delete_retention_ms=chance.choice([0, 86_400_000]),
            offsets_retention_minutes=2,
            group_initial_rebalance_delay_ms=chance.choice([0, 3000]),
            transactional_id_expiration_ms=600_000,
        )
        for topic in TOPICS:
            self.harness.create_topic(topic, partitions=PARTITIONS)
        self.counts: Counter[str] = Counter()
        self.call(FindCoordinatorRequest(key_type=0, coordinator_keys=GROUPS))
        self.call(FindCoordinatorRequest(key_type=1, coordinator_keys=TRANSACTIONAL_IDS))
        self.lines: list[str] = []
        self._classic: list[Classic] = []
        self._modern: list[Modern] = []
        self._producers: list[Producer] = []
        self._made = 0
        self._events: dict[Callable[[], None], int] = {
            self._join: 10,
            self._sync: 10,
            self._heartbeats: 6,
            self._leave: 3,
            self._consumer_heartbeats: 14,
            self._consumer_leave: 4,
            self._commit: 6,
            self._delete_offsets: 1,
            self._delete_groups: 2,
            self._replace_topic: 1,
            self._grow_topic: 1,
            self._start_producer: 3,
            self._transaction: 12,
            self._time: 8,
            self._fall: 3,
        }

    def run(self, steps: int) -> None:
        """Run a number of random events."""
        for _ in range(steps):
            (event,) = self.chance.choices(list(self._events), list(self._events.values()))
            self.lines.append(f"{self.harness.now_ms} {event.__name__}")
            event()
            self._take_answers()
        errors = [line for line in self.harness.journal.lines if line[0] == "error"]
        assert not errors, errors[:3]

    def call(self, request: Any, version: int | None = None) -> Any:
        """Send a request and return its response; None if the response has to wait, or the connection is closed."""
        try:
            pending = self.harness.send(request, version)
        except CloseConnection:
            self.counts["closed connections"] += 1
            return None
        self.sync()
        if not pending.done:
            return None
        response = pending.response
        code = getattr(response, "error_code", None)
        assert code != ErrorCode.UNKNOWN_SERVER_ERROR, (request, response)
        return response

    def sync(self) -> None:
        """Sync everything that was written."""
        while self.harness.sync():
            pass

    def advance(self, milliseconds: int) -> None:
        """Advance the time. Everything that ticks write is synced at once."""
        harness = self.harness
        end_ms = harness.now_ms + milliseconds
        self.sync()
        while (due_ms := harness.broker.next_deadline_ms) is not None and due_ms <= end_ms:
            harness.now_ms = max(harness.now_ms, due_ms)
            harness.broker.tick(harness.now_ms)
            self.sync()
        harness.now_ms = end_ms

    # --- members of the classic protocol ---

    def _join(self) -> None:
        chance = self.chance
        group = chance.choice(GROUPS)
        mine = [member for member in self._classic if member.group == group]
        if mine and chance.random() < 0.5:
            member = chance.choice(mine)
        else:
            member = Classic(group, chance.choice(INSTANCES))
            self._classic.append(member)
        version = chance.choice([3, 5, 9])
        if version == 3:
            member.instance = None
        request = requests.join(
            group,
            member.member_id,
            member.instance,
            topics=chance.choice([["a"], ["a", "b"], ["b"]]),
            protocols=chance.choice([["range"], ["range", "other"], ["other", "range"]]),
            session_timeout_ms=chance.choice([6000, 30_000]),
            rebalance_timeout_ms=chance.choice([0, 10_000, 60_000]),
        )
        for _ in range(2):
            request.member_id = member.member_id
            pending = self.harness.send(request, version)
            self.sync()
            if not pending.done:
                member.joining = pending
                return
            if not self._joined(member, pending.response):
                return

    def _joined(self, member: Classic, response: Any) -> bool:
        """Take a response to JoinGroup; return whether the member has to send JoinGroup again at once."""
        self.counts[f"join {response.error_code}"] += 1
        if response.error_code == ErrorCode.NONE:
            member.member_id, member.epoch = response.member_id, response.generation_id
            member.leader = response.leader
            member.members = [each.member_id for each in response.members]
        elif response.error_code in GONE and member in self._classic:
            self._classic.remove(member)
        elif response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = response.member_id
            return True
        return False

    def _take_answers(self) -> None:
        for member in list(self._classic):
            if member.joining is not None and member.joining.done:
                pending, member.joining = member.joining, None
                self._joined(member, pending.response)

    def _sync(self) -> None:
        if not self._classic:
            return
        chance = self.chance
        member = chance.choice(self._classic)
        given: list[SyncGroupRequestAssignment] = []
        if member.leader == member.member_id:
            everything = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
            spread = {
                each: everything[number :: len(member.members)]
                for number, each in enumerate(member.members)
            }
            given = requests.assignments(spread)
            for each in given:
                if chance.random() < 0.05:
                    each.assignment = b"junk"
        self.call(
            requests.sync(member.group, member.member_id, member.instance, member.epoch, given), 4
        )

    def _heartbeats(self) -> None:
        for member in list(self._classic):
            if self.chance.random() < 0.6:
                response = self.call(
                    HeartbeatRequest(
                        group_id=member.group,
                        generation_id=member.epoch,
                        member_id=member.member_id,
                        group_instance_id=member.instance,
                    )
                )
                self.counts[f"heartbeat {response.error_code}"] += 1

    def _leave(self) -> None:
        if not self._classic:
            return
        chance = self.chance
        several = chance.sample(self._classic, min(len(self._classic), chance.choice([1, 1, 2])))
        leaving = [member for member in several if member.group == several[0].group]
        identities = [
            MemberIdentity(
                member_id=chance.choice([member.member_id, member.member_id, ""]),
                group_instance_id=member.instance,
            )
            for member in leaving
        ]
        self.call(LeaveGroupRequest(group_id=several[0].group, members=identities))
        for member in leaving:
            if chance.random() < 0.8:
                self._classic.remove(member)

    # --- members of KIP-848's protocol ---

    def _consumer_heartbeats(self) -> None:
        chance = self.chance
        for _ in range(chance.choice([1, 3])):
            if self._modern and chance.random() < 0.75:
                member = chance.choice(self._modern)
            else:
                self._made += 1
                member = Modern(chance.choice(GROUPS), chance.choice(INSTANCES), f"m{self._made}")
                self._modern.append(member)
            self._consumer_heartbeat(member)

    def _consumer_heartbeat(self, member: Modern) -> None:
        chance = self.chance
        fields: dict[str, Any] = {"rebalance_timeout_ms": -1}
        owned: requests.Owned | None = member.owned if chance.random() < 0.8 else None
        if member.epoch == 0 or chance.random() < 0.3:
            owned = member.owned if member.epoch else []
            fields = {
                "rebalance_timeout_ms": chance.choice([0, 10_000, 60_000]),
                "subscribed_topic_names": chance.choice([["a"], ["a", "b"], []]),
                "subscribed_topic_regex": chance.choice([None, "", *REGEXES]),
                "server_assignor": chance.choice([None, "range", "uniform"]),
            }
        response = self.call(
            requests.consumer_heartbeat(
                member.group, member.member_id, member.instance, member.epoch, owned, **fields
            )
        )
        self.counts[f"consumer heartbeat {response.error_code}"] += 1
        if response.error_code == ErrorCode.NONE:
            member.epoch = response.member_epoch
            if response.assignment is not None:
                member.owned = [
                    (each.topic_id, list(each.partitions))
                    for each in response.assignment.topic_partitions
                ]
        elif response.error_code in FENCED:
            member.epoch, member.owned = 0, []
            if chance.random() < 0.5:
                self._modern.remove(member)

    def _consumer_leave(self) -> None:
        if not self._modern:
            return
        member = self.chance.choice(self._modern)
        epoch = -2 if member.instance is not None and self.chance.random() < 0.6 else -1
        self.call(
            requests.consumer_heartbeat(
                member.group,
                member.member_id,
                member.instance,
                epoch,
                None,
                rebalance_timeout_ms=-1,
            )
        )
        if epoch == -1:
            self._modern.remove(member)
        else:
            member.epoch, member.owned = 0, []

    # --- offsets, groups and topics ---

    def _somebody(self, group: str | None = None) -> tuple[str, tuple[str, str | None, int]]:
        """Return a group, and the member id, instance id and epoch of a member, a former member, or no member."""
        chance = self.chance
        several: list[Classic | Modern] = [*self._classic, *self._modern]
        several = [member for member in several if group in {None, member.group}]
        if several and chance.random() < 0.7:
            member = chance.choice(several)
            return member.group, (member.member_id, member.instance, member.epoch)
        return group or chance.choice(GROUPS), ("", None, -1)

    def _place(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "topic": chance.choice(TOPICS),
            "partition": chance.randrange(PARTITIONS),
            "offset": chance.randrange(1000),
        }

    def _commit(self) -> None:
        group, identity = self._somebody()
        self.call(requests.commit(group, *identity, **self._place()), self.chance.choice([8, 9]))

    def _delete_offsets(self) -> None:
        partitions = [OffsetDeleteRequestPartition(partition_index=i) for i in range(PARTITIONS)]
        topic = OffsetDeleteRequestTopic(name=self.chance.choice(TOPICS), partitions=partitions)
        self.call(OffsetDeleteRequest(group_id=self.chance.choice(GROUPS), topics=[topic]))

    def _delete_groups(self) -> None:
        self.call(DeleteGroupsRequest(groups_names=self.chance.sample(GROUPS, 2)))

    def _replace_topic(self) -> None:
        topic = self.chance.choice(TOPICS)
        self.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)]))
        self.advance(self.chance.choice([0, 10, 2000]))
        self.harness.create_topic(topic, partitions=PARTITIONS)

    def _grow_topic(self) -> None:
        self.grow(self.chance.choice(TOPICS))

    def grow(self, name: str) -> None:
        """Add a partition to a topic."""
        topic = self.harness.broker.services.topics.get(name)
        assert topic is not None
        count = topic.partitions_count + 1
        grown = CreatePartitionsTopic(name=name, count=count, assignments=None)
        response = self.call(CreatePartitionsRequest(topics=[grown], timeout_ms=1000))
        assert response.results[0].error_code == ErrorCode.NONE, response

    # --- transactions ---

    def _start_producer(self) -> None:
        chance = self.chance
        transactional_id = chance.choice(TRANSACTIONAL_IDS)
        known = [p for p in self._producers if p.transactional_id == transactional_id]
        expected = chance.choice(known) if known and chance.random() < 0.4 else None
        response = self.call(
            InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=chance.choice([1000, 60_000]),
                producer_id=expected.producer_id if expected else -1,
                producer_epoch=expected.epoch if expected else -1,
            )
        )
        if response is not None and response.error_code == ErrorCode.NONE:
            modern = chance.random() < 0.5
            self._producers.append(
                Producer(
                    transactional_id, response.producer_id, response.producer_epoch, modern=modern
                )
            )
            del self._producers[:-8]

    def _transaction(self) -> None:
        if not self._producers:
            return
        chance = self.chance
        producer = chance.choice(self._producers[-3:])
        (act,) = chance.choices([self._write, self._write_offset, self._end], [30, 35, 35])
        act(producer)

    def _write(self, producer: Producer) -> None:
        topic, partition = self.chance.choice(TOPICS), self.chance.randrange(PARTITIONS)
        if not producer.modern:
            self.call(requests.add_partition(producer, topic, partition), 3)
        key = (topic, partition, producer.epoch)
        batch = requests.transactional_batch(
            producer.producer_id, producer.epoch, producer.sequences[key]
        )
        request = produce_request(
            topic, partition, batch, transactional_id=producer.transactional_id
        )
        response = self.call(request, 12 if producer.modern else 11)
        if response is not None and not response.responses[0].partition_responses[0].error_code:
            producer.sequences[key] += 1

    def _write_offset(self, producer: Producer) -> None:
        group = self.chance.choice(GROUPS)
        if not producer.modern:
            self.call(requests.add_group(producer, group), 3)
        _, identity = self._somebody(group)
        request = requests.transactional_commit(group, producer, identity, **self._place())
        self.call(request, 5 if producer.modern else 3)

    def _end(self, producer: Producer) -> None:
        request = EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=self.chance.random() < 0.6,
        )
        response = self.call(request, 5 if producer.modern else 4)
        if response is not None and response.error_code == ErrorCode.NONE and producer.modern:
            producer.producer_id = response.producer_id
            producer.epoch = response.producer_epoch

    # --- time, and the end of processes ---

    def _time(self) -> None:
        self.advance(self.chance.choice([10, 100, 1000, 5000, 7000, 20_000, 50_000, 130_000]))

    def _fall(self) -> None:
        if self.chance.random() < 0.5:
            self.harness.restart()
        else:
            self.harness.crash()
        for member in self._classic:
            member.joining = None
        self.counts["falls"] += 1
