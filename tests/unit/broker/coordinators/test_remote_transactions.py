"""Transactions of two brokers: broker 1 coordinates them, broker 2 leads the partitions and coordinates the groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.context import RequestContext
from headrace.broker.coordinators.remote import Confirmations
from headrace.broker.session import LOCAL, PEER
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.storage.os_files import OsFileSystem
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.transactional_producer import (
    OPTIONS,
    BumpingProducer,
    Producer,
    committed_values,
    group_offset,
)

OF_LEADERS = {ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT}
"""The requests that the producer sends to broker 2."""


class Sent:
    """A request from one broker to the other."""

    def __init__(self, to: int, request: Message) -> None:
        self.to = to
        self.request = request
        self.response: Deferred[Any] = Deferred()


class Network:
    """Implements `Peers` with the brokers of a test. Requests and responses wait until the test delivers them."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerHarness] = {}
        self.down: set[int] = set()
        self.requests: deque[Sent] = deque()
        self.responses: deque[tuple[Sent, Any]] = deque()
        self.sent: list[ApiKey] = []

    def send(self, broker_id: int, request: Message, deadline_ms: int) -> Deferred[Any]:
        assert deadline_ms > self.brokers[broker_id].now_ms
        sent = Sent(broker_id, request)
        self.requests.append(sent)
        self.sent.append(ApiKey(request.API_KEY))
        return sent.response

    def deliver_requests(self) -> None:
        while self.requests:
            sent = self.requests.popleft()
            self._handle(sent)

    def _handle(self, sent: Sent) -> None:
        if sent.to in self.down:
            self.responses.append((sent, ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "down")))
            return
        other = self.brokers[sent.to]
        key = sent.request.API_KEY
        version = max(api.served.max for api in other.broker.apis if api.key == key)
        header = RequestHeader(key, version, 0, "broker")
        context = RequestContext(other.now_ms, header, "", "", 0, PEER)
        reply = other.broker.handle(context, sent.request)
        if isinstance(reply, Deferred):
            reply.on_done(lambda response: self.responses.append((sent, response)))
        else:
            self.responses.append((sent, reply))

    def deliver_responses(self) -> None:
        while self.responses:
            sent, response = self.responses.popleft()
            sent.response.resolve(response)

    def step(self) -> bool:
        """Deliver everything, and let the brokers work; return whether anything happened."""
        busy = bool(self.requests or self.responses)
        self.deliver_requests()
        self.deliver_responses()
        for harness in self.brokers.values():
            harness.broker.tick(harness.now_ms)
            busy |= harness.sync()
        return busy or bool(self.requests or self.responses)


class PeerHarness(BrokerHarness):
    """A broker of a network."""

    def __init__(self, network: Network, directory: Path, **options: Any) -> None:
        self.peers = network
        super().__init__(files=OsFileSystem(directory), **options)


class Cluster:
    """The two brokers, in the form in which `Producer` uses a single one."""

    def __init__(self, directory: Path) -> None:
        self.network = Network()
        for broker_id in (1, 2):
            harness = PeerHarness(
                self.network, directory / str(broker_id), broker_id=broker_id, **OPTIONS
            )
            self.network.brokers[broker_id] = harness
            harness.create_topic("t", partitions=2)
            for kind, key in ((0, "g"), (1, "id")):
                harness.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
        self.coordinator, self.leader = self.network.brokers[1], self.network.brokers[2]
        self.coordinator.broker.services.offsets_topic.end_all()
        self.leader.broker.services.transactions.end_all()
        for name in ("t", OFFSETS_TOPIC):
            lead(self.coordinator, name, 2)
        lead(self.leader, TRANSACTIONS_TOPIC, 1)

    @property
    def now_ms(self) -> int:
        return self.coordinator.now_ms

    def send(self, request: Message, version: int | None = None) -> Any:
        to = self.leader if request.API_KEY in OF_LEADERS else self.coordinator
        return to.send(request, version)

    def call(self, request: Message, version: int | None = None) -> Any:
        pending = self.send(request, version)
        while not pending.done:
            assert self.network.step(), "the request is never answered"
        return pending.response

    def sync(self) -> bool:
        return self.network.step()

    def settle(self) -> None:
        while self.network.step():
            pass

    def advance(self, milliseconds: int) -> None:
        for harness in self.network.brokers.values():
            harness.advance(milliseconds)

    @property
    def open_transactions(self) -> list[int]:
        partitions = self.leader.broker.services.partitions
        return [
            producer_id
            for place in (("t", 0), ("t", 1), (OFFSETS_TOPIC, 0))
            for producer_id in partitions.require(*place).log.producers.transactions.open
        ]


def lead(harness: BrokerHarness, name: str, broker_id: int) -> None:
    """Let all replicas of a topic lie on another broker."""
    services = harness.broker.services
    topic = services.topics.require(name)
    topic.replicas = [(broker_id,)] * topic.partitions_count
    services.partitions._served[name] = [None] * topic.partitions_count


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def producer_of(cluster: Cluster, kind: type[Producer]) -> Producer:
    harness: Any = cluster
    return kind(harness)


KINDS = pytest.mark.parametrize("kind", [Producer, BumpingProducer])


@KINDS
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_is_confirmed_and_ended_by_its_coordinator(
    cluster: Cluster, kind: type[Producer], *, committed: bool
) -> None:
    producer = producer_of(cluster, kind)
    for value in (b"first", b"second"):
        if kind is Producer:
            assert producer.add(0, 1) == [0, 0]
        cluster.network.sent.clear()
        assert producer.send(value, 0) == 0
        assert producer.send(value, 1) == 0
        assert producer.send(value + b" again", 0) == 0
        confirmations = cluster.network.sent.count(ApiKey.ADD_PARTITIONS_TO_TXN)
        assert confirmations == 2, "the log of the partition confirms the later batch"
        assert producer.end(committed=committed) == 0
        cluster.settle()
        assert cluster.network.sent.count(ApiKey.WRITE_TXN_MARKERS) == 2
        assert cluster.open_transactions == []
    expected = [b"first", b"first again", b"second", b"second again"] if committed else []
    fetched = committed_values(cluster.leader, 0)
    assert fetched == expected if committed else not set(fetched) & set(expected)


def test_a_batch_outside_its_transaction_is_refused(cluster: Cluster) -> None:
    producer = producer_of(cluster, Producer)
    assert producer.add(1) == [0]
    assert producer.send(b"a", 0) == ErrorCode.INVALID_TXN_STATE
    late = producer_of(cluster, Producer)
    assert late.add(1) == [0]
    assert producer.send(b"a", 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert cluster.open_transactions == []


@KINDS
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_a_group_are_part_of_the_transaction(
    cluster: Cluster, kind: type[Producer], *, committed: bool
) -> None:
    producer = producer_of(cluster, kind)
    if kind is Producer:
        assert producer.commit_offset(5) != 0, "the group is not in the transaction"
        assert producer.add_offsets() == 0
    assert producer.commit_offset(5) == 0
    cluster.network.sent.clear()
    assert producer.commit_offset(7, partition=0) == 0
    assert cluster.network.sent == [], "the log of the group confirms the later request"
    assert producer.end(committed=committed) == 0
    cluster.settle()
    assert cluster.network.sent == [ApiKey.WRITE_TXN_MARKERS]
    assert cluster.open_transactions == []
    assert group_offset(cluster.leader) == (0, 7 if committed else -1)


def confirmed_while_it_ends(cluster: Cluster, request: Message, version: int) -> Any:
    """Return the response to a request whose confirmation arrives after the marker of its transaction."""
    producer = producer_of(cluster, Producer)
    producer.add(0)
    producer.add_offsets()
    request = request if request.API_KEY != ApiKey.PRODUCE else producer.produce_request(b"late")
    if request.API_KEY != ApiKey.PRODUCE:
        request = producer.commit_request(5)
    pending = cluster.send(request, version)
    network = cluster.network
    network.deliver_requests()
    late, network.responses = network.responses, deque()
    assert producer.end() == 0
    cluster.settle()
    network.responses = late
    cluster.settle()
    return pending.response


@pytest.mark.parametrize("voids", [True, False])
def test_a_marker_voids_the_confirmations_in_flight(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, voids: bool
) -> None:
    if not voids:
        monkeypatch.setattr(Confirmations, "marker_written", lambda *_: None)
    producer = producer_of(cluster, Producer)
    response = confirmed_while_it_ends(cluster, producer.produce_request(b"late"), 9)
    (part,) = response.responses[0].partition_responses
    if voids:
        assert part.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "the client tries again"
        assert cluster.open_transactions == []
    else:
        assert part.error_code == 0
        assert cluster.open_transactions, "no marker ever ends this transaction"
    response = confirmed_while_it_ends(cluster, producer.commit_request(5), 3)
    (part,) = response.topics[0].partitions
    assert part.error_code == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if voids else 0)
    services = cluster.leader.broker.services
    assert not services.transactions.remote.confirmations.pending


def test_without_the_other_broker_producers_retry_and_markers_are_written_later(
    cluster: Cluster,
) -> None:
    producer = producer_of(cluster, Producer)
    producer.add(0)
    cluster.network.down = {1}
    assert producer.send(b"a", 0) == ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.network.down = {2}
    assert producer.send(b"a", 0) == 0
    assert producer.end() == 0
    cluster.settle()
    cluster.advance(1_000)
    cluster.settle()
    assert cluster.open_transactions
    cluster.network.down = set()
    cluster.advance(60_000)
    cluster.settle()
    assert cluster.open_transactions == []
    assert committed_values(cluster.leader, 0) == [b"a"]


def test_a_leader_that_does_not_know_the_topic_yet_gets_the_marker_again(cluster: Cluster) -> None:
    producer = producer_of(cluster, Producer)
    producer.add(0)
    producer.send(b"a", 0)
    partitions = cluster.leader.broker.services.partitions
    served, partitions._served["t"] = partitions._served["t"], []
    assert producer.end() == 0
    cluster.settle()
    partitions._served["t"] = served
    assert cluster.open_transactions
    cluster.advance(60_000)
    cluster.settle()
    assert cluster.open_transactions == []


def markers(name: str) -> WriteTxnMarkersRequest:
    topic = WritableTxnMarkerTopic(name=name, partition_indexes=[0])
    marker = WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=True, topics=[topic]
    )
    return WriteTxnMarkersRequest(markers=[marker])


def code_of(response: Any) -> int:
    return int(response.markers[0].topics[0].partitions[0].error_code)


def test_only_brokers_end_transactions_in_internal_topics(cluster: Cluster) -> None:
    request, leader = markers(OFFSETS_TOPIC), cluster.leader
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(leader.call(request, session=LOCAL)) == refused
    assert code_of(leader.call(request, session=PEER)) == 0
    request = markers(TRANSACTIONS_TOPIC)
    assert code_of(cluster.coordinator.call(request, session=PEER)) == refused


# --- a single broker ---


def test_a_single_broker_answers_its_own_requests(tmp_path: Path) -> None:
    harness = BrokerHarness(files=OsFileSystem(tmp_path), **OPTIONS)
    harness.create_topic("t")
    peers = harness.broker.services.transactions.remote._peers
    own = peers.send(1, markers("t"), 0)
    handled = own.done
    assert not handled, "it is handled when no state is being changed"
    for _ in range(3):
        harness.broker.tick(harness.now_ms)
        harness.sync()
    assert code_of(own.value) == 0
    other = peers.send(2, markers("t"), 0)
    assert other.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_single_broker_sends_no_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness(files=OsFileSystem(tmp_path), **OPTIONS)
    harness.create_topic("t", partitions=2)
    for key_type, key in ((0, "g"), (1, "id")):
        harness.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))
    sent: list[Callable[..., object]] = []
    remote = harness.broker.services.transactions.remote
    monkeypatch.setattr(type(remote), "_send", lambda *arguments: sent.append(arguments[0]))
    producers = [Producer(harness, "id"), BumpingProducer(harness, "other")]
    assert producers[0].add(0, 1) == [0, 0]
    assert producers[0].add_offsets() == 0
    for producer in producers:
        assert producer.send(b"a", 0) == 0
        assert producer.commit_offset(3) == 0
        assert producer.end() == 0
        while harness.sync():
            pass
    harness.broker.services.transactions.end(0)
    assert producers[0].send(b"b", 0) != 0
    assert sent == []


def test_a_leader_remembers_a_bounded_number_of_begun_transactions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = cluster.leader.broker.services.transactions.remote
    producer = producer_of(cluster, Producer)
    assert producer.add(0, 1) == [0, 0]
    assert [producer.send(b"a", 0), producer.send(b"a", 1)] == [0, 0]
    assert set(remote.begun) == {(TopicPartition("t", each), producer.id) for each in (0, 1)}
    assert producer.end() == 0
    cluster.settle()
    assert not remote.begun
    monkeypatch.setattr("headrace.broker.coordinators.remote.BEGUN_LIMIT", 1)
    assert producer.add(0, 1) == [0, 0]
    assert [producer.send(b"a", 0), producer.send(b"a", 1)] == [0, 0]
    assert set(remote.begun) == {(TopicPartition("t", 1), producer.id)}
    remote.role_changed(TopicPartition("t", 0))
    assert remote.begun
    remote.role_changed(TopicPartition("t", 1))
    assert not remote.begun
