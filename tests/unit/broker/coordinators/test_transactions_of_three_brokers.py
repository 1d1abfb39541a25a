"""Transactions of three brokers: 1 coordinates them, 2 leads the partition of records, 3 coordinates the groups."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.coordinators.remote import MARKER_TIMEOUT_MS
from headrace.broker.session import PEER
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.cluster_links import LATE_MS, Fate
from tests.fixtures.moving_transactions import committed_in
from tests.fixtures.transactional_producer import (
    BumpingProducer,
    Producer,
    committed_values,
    group_offset,
)

COORDINATOR, LEADER, GROUPS = 1, 2, 3
LEADERS = {ApiKey.PRODUCE: LEADER, ApiKey.TXN_OFFSET_COMMIT: GROUPS}
"""The brokers to which the producer sends requests, other than the coordinator."""
FAULTS: tuple[Fate, ...] = ("request lost", "response lost", "doubled")
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED
ATTEMPTS = 20


class Cluster:
    """The three brokers, in the form in which `Producer` uses a single one."""

    def __init__(self, seed: int = 0, transactions: tuple[int, ...] = (COORDINATOR,)) -> None:
        """Start the brokers. `transactions` are the replicas of `__transaction_state`."""
        self.simulated = SimulatedCluster(3, seed=seed)
        self.coordinator = COORDINATOR
        places = {TRANSACTIONS_TOPIC: transactions, "t": (LEADER,), OFFSETS_TOPIC: (GROUPS,)}
        for name, replicas in places.items():
            self.simulated.create_topic(name, replicas=[replicas])
        self.simulated.advance(1_000)

    @property
    def now_ms(self) -> int:
        return self.simulated.now_ms

    def sync(self) -> bool:
        self.simulated.advance(100)
        return True

    def send(self, request: Message, version: int | None = None) -> Any:
        to = LEADERS.get(ApiKey(request.API_KEY), self.coordinator)
        return self.simulated.brokers[to].send(request, version)

    def call(self, request: Message, version: int | None = None) -> Any:
        pending = self.send(request, version)
        self.simulated.run_until(lambda: pending.done, 120_000)
        return pending.response

    @property
    def open_transactions(self) -> int:
        """The number of transactions that are open in partitions."""
        return sum(
            len(self.simulated.replica(broker_id, name).log.producers.transactions.open)
            for broker_id, name in ((LEADER, "t"), (GROUPS, OFFSETS_TOPIC))
        )

    def wait_for_markers(self) -> None:
        self.simulated.run_until(lambda: not self.open_transactions, 300_000)
        self.simulated.advance(1_000)  # the markers are synced

    @property
    def outcome(self) -> tuple[list[bytes | None], int]:
        """The committed values, and the committed offset of the group."""
        brokers = self.simulated.brokers
        error, offset = group_offset(brokers[GROUPS])
        assert error == 0
        return committed_values(brokers[LEADER]), offset


def producer_of(cluster: Cluster, kind: type[Producer]) -> Producer:
    harness: Any = cluster
    return kind(harness)


def insist(cluster: Cluster, send: Any) -> None:
    """Repeat a request until it succeeds, as a client does."""
    for _ in range(ATTEMPTS):
        code = send()
        if code == 0:
            return
        assert ErrorCode(code) in {
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        }
        cluster.simulated.advance(2_000)
    raise AssertionError(f"refused {ATTEMPTS} times")


def write(cluster: Cluster, producer: Producer, value: bytes, offset: int) -> None:
    """Write a record and an offset in the open transaction, or in a new one."""
    if type(producer) is Producer:
        insist(cluster, lambda: producer.add(0)[0])
        insist(cluster, producer.add_offsets)
    insist(cluster, lambda: producer.send(value))
    insist(cluster, lambda: producer.commit_offset(offset))


KINDS = pytest.mark.parametrize("kind", [Producer, BumpingProducer])
OUTCOMES = pytest.mark.parametrize("committed", [True, False])


@KINDS
@OUTCOMES
def test_a_transaction_ends_on_all_brokers(kind: type[Producer], *, committed: bool) -> None:
    cluster = Cluster()
    producer = producer_of(cluster, kind)
    for value, offset in ((b"a", 5), (b"b", 6)):
        write(cluster, producer, value, offset)
        assert cluster.open_transactions == 2
        assert producer.end(committed=committed) == 0
        cluster.wait_for_markers()
    values, offset = cluster.outcome
    assert offset == (6 if committed else -1)
    assert (values == [b"a", b"b"]) is committed


@KINDS
@OUTCOMES
@pytest.mark.parametrize("fate", FAULTS)
@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("way", [(1, 2), (2, 1), (1, 3), (3, 1)])
def test_lost_and_doubled_requests_between_brokers_change_no_outcome(
    kind: type[Producer], way: tuple[int, int], skipped: int, fate: Fate, *, committed: bool
) -> None:
    cluster = Cluster()
    producer = producer_of(cluster, kind)
    delivered: list[Fate] = ["delivered"] * skipped
    cluster.simulated.links.way(*way).fates.extend([*delivered, fate])
    for value, offset in ((b"a", 5), (b"b", 6)):
        write(cluster, producer, value, offset)
        insist(cluster, lambda: producer.end(committed=committed))
        cluster.wait_for_markers()
    values, offset = cluster.outcome
    assert offset == (6 if committed else -1)
    assert (values == [b"a", b"b"]) is committed


def test_the_next_transaction_waits_a_few_seconds_for_a_marker_whose_response_is_lost() -> None:
    cluster = Cluster()
    producer = producer_of(cluster, BumpingProducer)
    write(cluster, producer, b"a", 5)
    cluster.simulated.links.way(COORDINATOR, LEADER).fates.append("response lost")
    assert producer.end() == 0
    ended_ms = cluster.now_ms
    insist(cluster, lambda: producer.send(b"b"))
    assert cluster.now_ms - ended_ms < 2 * MARKER_TIMEOUT_MS


@KINDS
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("events", range(0, 24, 2))
def test_a_coordinator_that_dies_while_it_ends_a_transaction_leaves_one_outcome(
    kind: type[Producer], events: int, *, power: bool, lost: bool
) -> None:
    """All partitions have the same outcome. It is the commit if the producer has a response that says so.

    If a marker is lost, the coordinator dies when one of two partitions has its marker.
    """
    cluster = Cluster(seed=events)
    simulated = cluster.simulated
    producer = producer_of(cluster, kind)
    simulated.brokers[COORDINATOR].sync_ms = 10
    write(cluster, producer, b"a", 5)
    if lost:
        simulated.links.way(COORDINATOR, GROUPS).fates.append("request lost")
    pending = cluster.send(producer.end_request(committed=True), producer.end_version)
    for _ in range(events):
        if simulated.timeline.next_deadline_ms is not None:
            simulated.timeline.run_next()
    is_committed = pending.done and pending.response.error_code == 0
    simulated.kill(COORDINATOR, power=power, ends_session=True)
    simulated.advance(500)
    simulated.start(COORDINATOR)
    cluster.wait_for_markers()
    assert cluster.outcome in (([b"a"], 5), ([], -1))
    if is_committed:
        assert cluster.outcome == ([b"a"], 5)


@pytest.mark.parametrize("broker_id", [LEADER, GROUPS])
@pytest.mark.parametrize("events", range(0, 24, 3))
def test_a_leader_that_dies_gets_its_marker_later(broker_id: int, events: int) -> None:
    cluster = Cluster(seed=events)
    simulated = cluster.simulated
    producer = producer_of(cluster, BumpingProducer)
    write(cluster, producer, b"a", 5)
    pending = cluster.send(producer.end_request(committed=True), producer.end_version)
    for _ in range(events):
        if simulated.timeline.next_deadline_ms is not None:
            simulated.timeline.run_next()
    simulated.kill(broker_id, power=True)
    simulated.run_until(lambda: pending.done)
    simulated.advance(40_000)
    simulated.start(broker_id)
    cluster.wait_for_markers()
    assert cluster.outcome == ([b"a"], 5)


@KINDS
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("events", range(0, 40, 4))
def test_a_coordinator_that_moves_while_it_ends_a_transaction_leaves_one_outcome(
    kind: type[Producer], events: int, *, dies: bool
) -> None:
    """The next coordinator completes the transaction, and serves the producer that follows."""
    cluster = Cluster(seed=events, transactions=(COORDINATOR, LEADER, GROUPS))
    simulated = cluster.simulated
    producer = producer_of(cluster, kind)
    write(cluster, producer, b"a", 5)
    pending = cluster.send(producer.end_request(committed=True), producer.end_version)
    for _ in range(events):
        if simulated.timeline.next_deadline_ms is not None:
            simulated.timeline.run_next()
    is_committed = pending.done and pending.response.error_code == 0
    if dies:
        simulated.kill(COORDINATOR, power=True)
    cluster.coordinator = GROUPS
    simulated.elect(TRANSACTIONS_TOPIC, 0, GROUPS, isr=(LEADER, GROUPS))
    cluster.wait_for_markers()
    assert cluster.outcome in (([b"a"], 5), ([], -1))
    if is_committed:
        assert cluster.outcome == ([b"a"], 5)
    following = producer_of(cluster, kind)
    write(cluster, following, b"b", 6)
    insist(cluster, following.end)
    cluster.wait_for_markers()
    values: list[bytes | None]
    values, offset = cluster.outcome
    assert (values[-1:], offset) == ([b"b"], 6)


@pytest.mark.parametrize(("broker_id", "name"), [(LEADER, "t"), (GROUPS, OFFSETS_TOPIC)])
def test_an_earlier_coordinator_is_fenced(broker_id: int, name: str) -> None:
    """(1) A marker is delayed. (2) The coordinator restarts, and writes the marker in its next epoch.

    (3) The producer begins another transaction. (4) The delayed marker arrives, and must not end that transaction.
    """
    cluster = Cluster()
    simulated = cluster.simulated
    producer = producer_of(cluster, Producer)
    write(cluster, producer, b"a", 5)
    earlier = simulated.replica(COORDINATOR, TRANSACTIONS_TOPIC).leader_epoch
    simulated.brokers[COORDINATOR].crash()
    insist(cluster, producer.end)
    cluster.wait_for_markers()
    assert simulated.replica(COORDINATOR, TRANSACTIONS_TOPIC).leader_epoch > earlier
    write(cluster, producer, b"b", 6)
    marker = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=True,
        coordinator_epoch=earlier,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[0])],
    )
    response = simulated.brokers[broker_id].call(
        WriteTxnMarkersRequest(markers=[marker]), session=PEER
    )
    assert response.markers[0].topics[0].partitions[0].error_code == FENCED
    assert cluster.open_transactions == 2
    insist(cluster, producer.end)
    cluster.wait_for_markers()
    assert cluster.outcome == ([b"a", b"b"], 6)


def test_a_partition_with_too_few_replicas_in_sync_gets_its_marker_when_it_has_enough() -> None:
    """The log gets no marker with every retry meanwhile."""
    cluster = Cluster()
    simulated = cluster.simulated
    placed = [(LEADER, GROUPS)]
    simulated.create_topic("u", replicas=placed, min_insync_replicas="2")
    producer = producer_of(cluster, Producer)
    insist(cluster, lambda: producer.add(0, topic="u")[0])
    insist(cluster, lambda: producer.send(b"a", topic="u"))
    simulated.run_until(lambda: simulated.is_in_sync("u"))
    simulated.cut(GROUPS, LEADER)
    simulated.elect("u", 0, LEADER, isr=(LEADER,))
    simulated.advance(100)
    assert producer.end() == 0
    simulated.advance(30_000)
    log = simulated.replica(LEADER, "u").log
    assert log.log_end_offset == 1
    simulated.heal()
    simulated.run_until(lambda: not log.producers.transactions.open)
    simulated.run_until(lambda: log.high_watermark == 2)
    assert log.log_end_offset == 2


@KINDS
def test_a_late_marker_does_not_end_the_next_transaction(
    kind: type[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(1) The connections break, and the coordinator sends the markers again. (2) The next transaction begins.

    (3) The first markers arrive.
    """
    cluster = Cluster()
    monkeypatch.setattr(cluster.simulated.links.chance, "randint", max)
    producer = producer_of(cluster, kind)
    write(cluster, producer, b"a", 5)
    for broker_id in (LEADER, GROUPS):
        cluster.simulated.links.way(COORDINATOR, broker_id).fates.append("late")
    assert producer.end() == 0
    cluster.simulated.advance(LATE_MS // 2)
    write(cluster, producer, b"b", 6)
    cluster.simulated.advance(LATE_MS)
    assert cluster.open_transactions == 2
    assert producer.end(committed=False) == 0
    cluster.wait_for_markers()
    assert committed_in(cluster.simulated.log_of(LEADER, "t")) == [b"a"]
    assert group_offset(cluster.simulated.brokers[GROUPS]) == (0, 5)


def test_a_coordinator_whose_lease_has_ended_confirms_no_batch() -> None:
    """Another broker may coordinate the transaction by now, and may have ended it."""
    cluster = Cluster(transactions=(COORDINATOR, LEADER, GROUPS))
    producer = producer_of(cluster, Producer)
    insist(cluster, lambda: producer.add(0)[0])
    replicas = cluster.simulated.brokers[COORDINATOR].broker.services.replicas
    replicas.is_suspect = True
    assert producer.send(b"a") == ErrorCode.NOT_ENOUGH_REPLICAS
    replicas.is_suspect = False
    assert producer.send(b"a") == 0
