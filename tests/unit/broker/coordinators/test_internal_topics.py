"""The creation of internal topics: requests wait for the metadata store, and the broker serves others meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace.broker.coordinators.offsets_topic import OffsetsTopic
from headrace.broker.metadata.commit_lane import COMMIT_TIMEOUT_MS
from headrace.broker.partitions.partition_deletion import PartitionDeletion
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import PartitionState, TopicRecord, encode
from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import Fault, SimulatedMetadataStore, Timeline, at_once
from headrace.ports import Put
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.fixtures.broker_harness import START_MS, BrokerHarness, Pending
from tests.fixtures.metadata_stores import commit, stored
from tests.unit.broker.metadata.test_slow_metadata import SlowHarness, harness

__all__ = ["harness"]

NONE = ErrorCode.NONE
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
NAMES = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}


def find(harness: BrokerHarness, kind: int = 0, version: int | None = None) -> Pending:
    request = FindCoordinatorRequest(key="k", key_type=kind, coordinator_keys=["k"])
    return harness.send(request, version)


def found(pending: Pending) -> ErrorCode:
    return ErrorCode(pending.response.coordinators[0].error_code)


def init_producer_id(harness: BrokerHarness) -> Pending:
    request = InitProducerIdRequest(
        transactional_id="k", transaction_timeout_ms=1_000, producer_id=-1, producer_epoch=-1
    )
    return harness.send(request)


def commit_offset(harness: BrokerHarness, group: str = "g") -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic]
    )
    return ErrorCode(harness.call(request, 8).topics[0].partitions[0].error_code)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("version", [3, None])
def test_find_coordinator_waits_for_the_store_and_the_broker_serves_others(
    harness: SlowHarness, kind: int, version: int | None
) -> None:
    pending = find(harness, kind, version)
    assert pending.waits
    assert harness.produce("t", b"a").error_code == NONE
    harness.advance(150)
    assert harness.broker.services.topics.get(NAMES[kind]) is None
    harness.advance(50)
    response = pending.response
    assert (response if version == 3 else response.coordinators[0]).error_code == NONE
    assert harness.broker.services.topics.require(NAMES[kind]).is_internal


def test_the_coordinator_is_ready_when_its_topic_is_created(harness: SlowHarness) -> None:
    find(harness)
    harness.advance(200)
    assert commit_offset(harness) == NONE
    pending = init_producer_id(harness)
    assert pending.waits
    harness.advance(1_000)
    harness.sync()
    assert pending.response.error_code == NONE


def test_a_topic_is_created_and_coordinated_if_the_client_has_gone(harness: SlowHarness) -> None:
    for kind in NAMES:
        find(harness, kind).cancel()
    harness.advance(1_000)
    assert commit_offset(harness) == NONE
    pending = init_producer_id(harness)
    harness.advance(1_000)
    harness.sync()
    assert pending.response.error_code == NONE


def test_requests_share_one_creation_and_one_cancelled_request_does_not_end_it(
    harness: SlowHarness,
) -> None:
    waiting = [find(harness, kind) for kind in (0, 0, 1, 0, 1)]
    waiting.pop(0).cancel()
    before = harness.content.version
    harness.advance(1_000)
    assert [found(each) for each in waiting] == [NONE] * 4
    assert harness.content.version == before + 2
    assert harness.journal.events("info").count("topic_created") == 3


def test_add_offsets_to_txn_and_metadata_create_the_topic_of_the_groups(
    harness: SlowHarness,
) -> None:
    init_producer_id(harness)
    harness.advance(1_000)
    request = AddOffsetsToTxnRequest(
        transactional_id="k", producer_id=0, producer_epoch=0, group_id="g"
    )
    adding = harness.send(request)
    assert adding.waits
    topics = [MetadataRequestTopic(name=OFFSETS_TOPIC)]
    described = harness.send(MetadataRequest(topics=topics))
    assert described.response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.advance(1_000)
    while not adding.done:
        assert harness.step() or harness.sync()
    assert adding.response.error_code == NONE
    again = harness.send(MetadataRequest(topics=topics))
    assert again.response.topics[0].error_code == NONE


def test_without_the_store_clients_retry_and_the_broker_serves_others(
    harness: SlowHarness,
) -> None:
    harness.metadata.down = True
    assert found(find(harness)) == NOT_AVAILABLE
    harness.metadata.down = False
    harness.delay_ms = lambda: 10 * COMMIT_TIMEOUT_MS
    pending = find(harness)
    harness.advance(COMMIT_TIMEOUT_MS - 1)
    assert pending.waits
    assert harness.produce("t", b"a").error_code == NONE
    harness.advance(1)
    assert found(pending) == NOT_AVAILABLE
    harness.delay_ms = at_once
    harness.advance(60 * COMMIT_TIMEOUT_MS)
    assert found(find(harness)) == NONE
    assert commit_offset(harness) == NONE


@pytest.mark.parametrize("fault", ["unknown and applied", "unknown and void", "unknown and late"])
def test_a_creation_with_an_unknown_outcome_is_repeated_or_found(
    harness: SlowHarness, fault: Fault
) -> None:
    harness.metadata.faults = [fault]
    pending = find(harness)
    harness.advance(COMMIT_TIMEOUT_MS)
    assert found(pending) in {NONE, NOT_AVAILABLE}
    harness.land()
    for _ in range(3):
        pending = find(harness)
        harness.advance(COMMIT_TIMEOUT_MS)
    assert found(pending) == NONE
    assert commit_offset(harness) == NONE
    assert len(stored(MemoryMetadataStore(harness.content), f"topics/{OFFSETS_TOPIC}")) == 1


# --- two brokers ---


class SlowCluster:
    """Two brokers whose messages to and from one metadata store take time."""

    def __init__(self, **options: Any) -> None:
        self.now_ms = START_MS
        self.content = MemoryMetadata()
        self.timeline = Timeline(lambda: self.now_ms)
        self.delays_ms: dict[int, Callable[[], int]] = {1: at_once, 2: at_once}
        self.store = MemoryMetadataStore(self.content)
        self.one, self.two = (
            BrokerHarness(
                metadata=SimulatedMetadataStore(
                    self.content, self.timeline, delay_ms=partial(self._delay_ms, number)
                ),
                broker_id=number,
                **options,
            )
            for number in (1, 2)
        )
        self.one.create_topic("t")
        self.advance(0)

    @property
    def both(self) -> tuple[BrokerHarness, BrokerHarness]:
        return self.one, self.two

    def advance(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while True:
            deadlines = [self.timeline.next_deadline_ms]
            deadlines += [each.broker.next_deadline_ms for each in self.both]
            due_ms = min((each for each in deadlines if each is not None), default=end_ms + 1)
            if due_ms > end_ms:
                break
            self._move(max(self.now_ms, due_ms))
            self.timeline.run()
            for each in self.both:
                each.broker.tick(self.now_ms)
                each.sync()
        self._move(end_ms)

    def _delay_ms(self, broker_id: int) -> int:
        return self.delays_ms[broker_id]()

    def _move(self, now_ms: int) -> None:
        self.now_ms = self.one.now_ms = self.two.now_ms = now_ms


def test_of_two_brokers_that_create_a_topic_at_once_one_does_and_the_other_finds_it() -> None:
    cluster = SlowCluster()
    cluster.delays_ms = {1: lambda: 100, 2: lambda: 150}
    first, second = find(cluster.one), find(cluster.two)
    initialised = [init_producer_id(each) for each in cluster.both]
    cluster.advance(5_000)
    assert found(first) == NONE
    assert found(second) == NOT_AVAILABLE, "broker 1 is the coordinator, and has no address here"
    codes = [each.response.error_code for each in initialised]
    assert codes == [NONE, ErrorCode.NOT_COORDINATOR]
    for name in NAMES.values():
        one, two = (each.broker.services.topics.require(name) for each in cluster.both)
        assert one.topic_id == two.topic_id
        assert set(two.replicas) == {(1,)}
    assert commit_offset(cluster.one) == NONE
    assert commit_offset(cluster.two) == ErrorCode.NOT_COORDINATOR


def test_a_refused_creator_waits_until_its_image_has_the_topic() -> None:
    """(1) Broker 1 creates the topic. (2) Broker 2 is refused, before it is notified of the topic."""
    cluster = SlowCluster()
    cluster.delays_ms[2] = iter([400, *[0] * 100]).__next__
    assert found(find(cluster.one)) == NONE
    second = find(cluster.two)
    cluster.advance(200)
    assert second.waits
    cluster.advance(5_000)
    assert second.done
    assert cluster.two.broker.services.topics.get(OFFSETS_TOPIC) is not None


def test_a_broker_coordinates_the_partitions_that_it_leads_of_a_topic_of_another_broker() -> None:
    """Nothing but the image says that this broker leads a partition of the new topic."""
    cluster = SlowCluster()
    topic_id = "77" * 16
    record = TopicRecord(topic_id, [(2,), (1,), (1, 2)])
    elected = Put(state_key(bytes.fromhex(topic_id), 2), encode(PartitionState(2, 5, (2,))))
    commit(cluster.store, [], [elected, Put(f"topics/{OFFSETS_TOPIC}", encode(record))])
    cluster.advance(1_000)
    groups_of = {
        harness.config.broker_id: {
            harness.broker.services.groups.partition_for(group)
            for group in map(str, range(30))
            if commit_offset(harness, group) == NONE
        }
        for harness in cluster.both
    }
    assert groups_of == {1: {1}, 2: {0, 2}}
    assert cluster.two.journal.events("error") == []


# --- exceptions in work for which no request waits ---


def work_failed(harness: BrokerHarness) -> list[object]:
    return [fields["work"] for _, event, fields in harness.journal.lines if event == "work_failed"]


def broken(*_arguments: object) -> Any:
    raise KeyError("a fault of the program")


def test_an_exception_in_a_load_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()
    monkeypatch.setattr(OffsetsTopic, "_forget_deleted_topics", broken)
    harness.create_offsets_topic()
    assert set(work_failed(harness)) == {"load of a coordinator"}


def test_an_exception_in_a_change_of_a_topic_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()
    harness.create_topic("t")
    monkeypatch.setattr(PartitionDeletion, "delete", broken)
    topic = harness.broker.services.topics.require("t")
    harness.broker.delete_topic(topic, harness.now_ms)
    assert work_failed(harness) == ["change of topic t"]


def test_an_exception_in_one_role_leaves_the_others_and_later_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = BrokerHarness()
    harness.create_topic("t", partitions=3)
    topic_id = harness.broker.services.topics.require("t").topic_id
    apply = Replicas.apply

    def some(self: Replicas, partition: Any, newest: Any) -> None:
        if partition.topic_partition.partition == 1:
            broken()
        apply(self, partition, newest)

    monkeypatch.setattr(Replicas, "apply", some)

    def leaders_change(epoch: int) -> list[int]:
        state = encode(PartitionState(2, epoch, (1, 2)))
        commit(
            harness.metadata, [], [Put(state_key(topic_id, number), state) for number in range(3)]
        )
        harness.advance(0)
        partitions = harness.broker.services.partitions.of(
            harness.broker.services.topics.require("t")
        )
        return [each.leader_epoch for each in partitions if each is not None]

    assert leaders_change(5) == [5, 0, 5]
    assert leaders_change(6) == [6, 0, 6]
    assert harness.journal.events("error") == ["role_not_changed"] * 2


def test_partitions_that_a_topic_gets_during_a_change_of_roles_are_no_fault() -> None:
    """(1) Roles change in steps. (2) The topic grows. (3) A changed state belongs to a new partition."""
    harness = BrokerHarness(max_partitions=20_000)
    harness.create_topic("t", partitions=3_000)
    services = harness.broker.services
    topic_id = services.topics.require("t").topic_id
    state = encode(PartitionState(2, 5, (1, 2)))
    for first in range(0, 3_000, 90):
        keys = [state_key(topic_id, number) for number in range(first, min(first + 90, 3_000))]
        commit(harness.metadata, [], [Put(key, state) for key in keys])
    commit(harness.metadata, [], [Put(state_key(topic_id, 3_000), state)])
    harness.broker.tick(harness.now_ms)
    admin, topic = services.topic_admin, services.topics.require("t")
    reply = services.steps.run(admin.grow_in_steps(topic, admin.added(topic, 3_001)))
    harness.advance(0)
    assert services.topics.require("t").partitions_count == 3_001, reply
    partitions = services.partitions.of(services.topics.require("t"))
    assert {each.leader_epoch for each in partitions if each is not None} == {5}
    assert harness.journal.events("error") == []
