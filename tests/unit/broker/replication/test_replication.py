"""Three brokers of which one leads: records reach all replicas, are committed, and survive the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.replication.fetchers import STOPPED_MS
from headrace.broker.replication.isr_changes import RETRY_INTERVAL_MS
from headrace.broker.session import Session
from headrace.config.broker import BrokerConfig
from headrace.core.cluster.records import (
    LIVE_BROKERS,
    REGISTRATIONS,
    LiveRecord,
    RegistrationRecord,
    encode,
)
from headrace.core.replica.isr import LAG_TIME_MS, Phase
from headrace.deferred import Deferred, resolved
from headrace.errors import ErrorCode
from headrace.ports import Delete, Put, versions_of
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from tests.fixtures.broker_harness import (
    Pending,
    batch,
    fetch_request,
    produce_request,
    values,
    with_ids,
)
from tests.fixtures.cluster import SimulatedCluster

_BACKOFF_MS = BrokerConfig().replica_fetch_backoff_ms


def register(cluster: SimulatedCluster, *brokers: int) -> None:
    for broker_id in brokers or cluster.brokers:
        incarnation = cluster.brokers[broker_id].broker.services.log_store.dirs.first.directory_id
        record = LiveRecord(cluster.registration(broker_id), incarnation)
        cluster.commit(Put(f"{LIVE_BROKERS}{broker_id}", encode(record)))
    cluster.advance(10)


def deregister(cluster: SimulatedCluster, broker_id: int) -> None:
    operations = [Delete(f"{LIVE_BROKERS}{broker_id}")]
    versions_of(cluster.store.wait(cluster.store.commit([], operations)))
    cluster.advance(20)


def delete_records(topic: str, partition: int, offset: int) -> DeleteRecordsRequest:
    part = DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=1_000
    )


def isr(cluster: SimulatedCluster) -> set[int]:
    return set(cluster.state("t").isr)


def in_sync(cluster: SimulatedCluster) -> None:
    cluster.run_until(lambda: cluster.is_in_sync("t"))


def part(pending: Pending) -> Any:
    return pending.response.responses[0].partition_responses[0]


def send(cluster: SimulatedCluster, value: bytes, acks: int = -1, **options: Any) -> Pending:
    request = produce_request("t", 0, batch(value), acks=acks, **options)
    return cluster.brokers[cluster.leader("t")].send(request)


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(3)
    register(cluster)
    cluster.create_topic("t", replicas=[(1, 2, 3)], min_insync_replicas="2")
    cluster.advance(100)
    return cluster


def test_a_record_is_acknowledged_when_all_replicas_have_synced_it(
    cluster: SimulatedCluster,
) -> None:
    assert cluster.produce("t", b"a").base_offset == 0
    assert [cluster.replica(each, "t").log.synced_offset for each in (1, 2, 3)] == [1, 1, 1]
    assert values(cluster.fetch("t", 0).records) == [b"a"]


def test_a_follower_does_not_report_records_before_it_has_synced_them(
    cluster: SimulatedCluster,
) -> None:
    cluster.brokers[2].sync_ms = 400
    cluster.brokers[2].cluster.chance.seed(7)  # a long sync
    pending = send(cluster, b"a")
    cluster.run_until(lambda: cluster.replica(2, "t").log.log_end_offset == 1)
    while cluster.replica(2, "t").log.synced_offset == 0:
        assert cluster.replica(1, "t").high_watermark == 0
        assert not pending.done
        cluster.timeline.run_next()
    cluster.run_until(lambda: pending.done)


def test_followers_learn_the_high_watermark_without_new_records(cluster: SimulatedCluster) -> None:
    cluster.produce("t", b"a")
    cluster.advance(20)
    assert [cluster.replica(each, "t").high_watermark for each in (1, 2, 3)] == [1, 1, 1]


def test_records_that_are_not_committed_are_not_visible(cluster: SimulatedCluster) -> None:
    cluster.cut(1, 2)
    pending = send(cluster, b"a")
    cluster.advance(1_000)
    assert not pending.done
    assert cluster.fetch("t", 0).records == b""
    assert cluster.replica(3, "t").log.log_end_offset == 1


def test_acks_of_one_two_and_three_replicas_wait_for_as_many(cluster: SimulatedCluster) -> None:
    cluster.cut(1, 2)
    one, two, three = (send(cluster, b"a", acks) for acks in (1, 2, 3))
    cluster.advance(500)
    assert (one.done, two.done, three.done) == (True, True, False)
    cluster.heal()
    cluster.run_until(lambda: three.done)
    assert part(three).error_code == ErrorCode.NONE


def test_a_broker_without_lease_acknowledges_only_what_is_committed(
    cluster: SimulatedCluster,
) -> None:
    """Another broker may lead already. The records of this one are lost then."""
    for broker_id in (2, 3):
        cluster.cut(1, broker_id)
    replicas = cluster.brokers[1].broker.services.replicas
    waiting = send(cluster, b"a", 1)
    replicas.is_suspect = True
    later = send(cluster, b"b", 1)
    cluster.advance(500)
    assert (waiting.done, later.done) == (False, False)
    cluster.heal()
    cluster.run_until(lambda: waiting.done and later.done)
    assert part(later).error_code == ErrorCode.NONE


def test_more_acks_than_replicas_are_invalid(cluster: SimulatedCluster) -> None:
    assert part(send(cluster, b"a", 4)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert part(send(cluster, b"a", -2)).error_code == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("version", [12, 13])
def test_acks_of_two_replicas_work_whether_the_topic_has_a_name_or_an_id(
    cluster: SimulatedCluster, version: int
) -> None:
    in_sync(cluster)
    leader = cluster.brokers[cluster.leader("t")]
    request = with_ids(leader, produce_request("t", 0, batch(b"a"), acks=2))
    pending = leader.send(request, version)
    cluster.run_until(lambda: pending.done)
    assert part(pending).error_code == ErrorCode.NONE


def test_acks_of_two_replicas_at_a_broker_that_does_not_lead_are_valid(
    cluster: SimulatedCluster,
) -> None:
    """The client has to find the new leader, and must not give up."""
    cluster.create_topic("alone", replicas=[(1,)])
    other = produce_request("t", 0, batch(b"a"), acks=2)
    missing = produce_request("missing", 0, batch(b"a"), acks=2)
    alone = produce_request("alone", 0, batch(b"a"), acks=2)
    not_led = cluster.brokers[2].send(other)
    assert part(not_led).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    unknown = cluster.brokers[2].send(missing)
    assert part(unknown).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    too_many = cluster.brokers[1].send(alone)
    assert part(too_many).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_more_acks_than_in_sync_replicas_are_refused_before_the_append(
    cluster: SimulatedCluster,
) -> None:
    deregister(cluster, 3)
    assert part(send(cluster, b"a", 3)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.replica(1, "t").log.log_end_offset == 0
    pending = send(cluster, b"a", 2)
    cluster.run_until(lambda: pending.done)
    assert part(pending).error_code == ErrorCode.NONE


# In-sync replicas


def test_a_replica_leaves_at_once_when_its_registration_goes(cluster: SimulatedCluster) -> None:
    cluster.kill(3)
    pending = send(cluster, b"a")
    cluster.advance(100)
    assert not pending.done
    deregister(cluster, 3)
    assert isr(cluster) == {1, 2}
    assert part(pending).error_code == ErrorCode.NONE


def test_a_replica_that_does_not_fetch_leaves_after_the_lag_time_and_returns(
    cluster: SimulatedCluster,
) -> None:
    cluster.cut(1, 3)
    cluster.advance(1)
    pending = send(cluster, b"a", timeout_ms=120_000)
    cluster.advance(LAG_TIME_MS - 1_000)
    assert isr(cluster) == {1, 2, 3}
    cluster.run_until(lambda: isr(cluster) == {1, 2}, LAG_TIME_MS)
    cluster.run_until(lambda: pending.done)
    cluster.heal()
    in_sync(cluster)


def test_too_few_in_sync_replicas_refuse_acks_all_before_the_append(
    cluster: SimulatedCluster,
) -> None:
    for broker_id in (2, 3):
        cluster.kill(broker_id)
        deregister(cluster, broker_id)
    assert (isr(cluster), set(cluster.state("t").elr)) == ({1}, {3})
    assert part(send(cluster, b"a")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.replica(1, "t").log.log_end_offset == 0
    one = send(cluster, b"b", 1)
    cluster.run_until(lambda: one.done)
    assert part(one).error_code == ErrorCode.NONE
    assert cluster.fetch("t", 0).records == b"", "the high watermark does not move"


def test_a_batch_that_waits_while_replicas_leave_gets_not_enough_replicas_after_append(
    cluster: SimulatedCluster,
) -> None:
    for broker_id in (2, 3):
        cluster.kill(broker_id)
    pending, two = send(cluster, b"a"), send(cluster, b"b", 2)
    cluster.advance(10)
    deregister(cluster, 3)
    assert not pending.done
    deregister(cluster, 2)
    assert part(pending).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert part(two).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_change_that_is_refused_is_proposed_again(cluster: SimulatedCluster) -> None:
    """(1) The store loses the connection. (2) A replica goes. (3) The connection is there again."""
    cluster.kill(3)
    cluster.advance(5)
    cluster.brokers[1].metadata.down = True
    deregister(cluster, 3)
    assert isr(cluster) == {1, 2, 3}
    cluster.heal()
    cluster.run_until(lambda: isr(cluster) == {1, 2}, 20 * RETRY_INTERVAL_MS)


def propose_slowly(cluster: SimulatedCluster, broker_id: int) -> None:
    """Let a replica leave, with a commit that takes some time to reach the store."""
    cluster.store_delay_ms = 0
    store = cluster.brokers[1].metadata
    commit = store.commit

    def late(checks: Any, operations: Any) -> Any:
        store.commit = commit  # type: ignore[method-assign]  # only the next commit is late
        result: Deferred[Any] = Deferred()
        cluster.timeline.at(cluster.now_ms + 300, lambda: result.follow(commit(checks, operations)))
        return result

    store.commit = late  # type: ignore[method-assign]  # the test delays a commit
    deregister(cluster, broker_id)
    leader = cluster.replica(1, "t")
    assert leader.isr is not None
    assert leader.isr.phase is Phase.PENDING


def test_a_change_of_a_former_leader_is_not_stored(cluster: SimulatedCluster) -> None:
    """(1) The leader proposes. (2) Another broker is elected. (3) The proposal reaches the store."""
    propose_slowly(cluster, 3)
    cluster.elect("t", 0, 2, isr=(1, 2, 3))
    elected = cluster.state("t").leader_epoch
    cluster.advance(400)
    state = cluster.state("t")
    assert (state.leader, state.leader_epoch) == (2, elected)


def test_a_change_is_not_stored_after_another_registration_of_the_leader(
    cluster: SimulatedCluster,
) -> None:
    propose_slowly(cluster, 3)
    registration = RegistrationRecord(cluster.registration(1) + 1)
    cluster.commit(Put(f"{REGISTRATIONS}1", encode(registration)))
    cluster.advance(400)
    assert isr(cluster) == {1, 2, 3}


def test_a_replica_whose_broker_has_registered_again_does_not_join(
    cluster: SimulatedCluster,
) -> None:
    """(1) The leader proposes to add replica 3. (2) Broker 3 starts anew. (3) The proposal reaches the store."""
    deregister(cluster, 3)
    assert isr(cluster) == {1, 2}
    store = cluster.brokers[1].metadata
    commit = store.commit
    registration = RegistrationRecord(cluster.registration(3) + 1)

    def after_registration(checks: Any, operations: Any) -> Any:
        store.commit = commit  # type: ignore[method-assign]  # only the next commit is late
        cluster.commit(Put(f"{REGISTRATIONS}3", encode(registration)))
        return commit(checks, operations)

    store.commit = after_registration  # type: ignore[method-assign]  # the test delays a commit
    record = LiveRecord(cluster.registration(3), "", {}, None)
    cluster.commit(Put(f"{LIVE_BROKERS}3", encode(record)))
    cluster.advance(RETRY_INTERVAL_MS // 2)
    assert cluster.registration(3) == registration.broker_epoch, "the leader has proposed"
    assert isr(cluster) == {1, 2}


# Failover


def test_the_next_leader_has_every_acknowledged_record(cluster: SimulatedCluster) -> None:
    for value in (b"a", b"b"):
        cluster.produce("t", value)
    cluster.kill(1, power=True)
    cluster.elect("t", 0, 2, isr=(2, 3))
    cluster.advance(50)
    assert cluster.produce("t", b"c").base_offset == 2
    assert values(cluster.fetch("t", 0).records) == [b"a", b"b", b"c"]


def test_a_former_leader_truncates_what_no_other_replica_has(cluster: SimulatedCluster) -> None:
    cluster.produce("t", b"a")
    cluster.advance(20)
    cluster.cut(1, 2)
    cluster.cut(1, 3)
    lost = send(cluster, b"lost", timeout_ms=100)
    cluster.run_until(lambda: lost.done)
    assert part(lost).error_code == ErrorCode.REQUEST_TIMED_OUT
    cluster.elect("t", 0, 2, isr=(2, 3))
    cluster.advance(50)
    cluster.produce("t", b"b")
    cluster.heal()
    in_sync(cluster)
    assert values(cluster.log_of(1, "t")) == [b"a", b"b"]
    assert "log_truncated" in cluster.brokers[1].journal.events("info")


def test_a_replica_whose_leader_lacks_committed_records_stops(cluster: SimulatedCluster) -> None:
    cluster.cut(3, 1)
    cluster.elect("t", 0, 1, isr=(1, 2))
    cluster.advance(20)
    cluster.produce("t", b"a")
    cluster.advance(20)
    assert cluster.replica(2, "t").high_watermark == 1
    cluster.elect("t", 0, 3, isr=(3,))
    cluster.heal()
    cluster.advance(3_000)
    for broker_id in (1, 2):
        assert cluster.brokers[broker_id].journal.events("error").count("replica_stopped") == 1
        assert values(cluster.log_of(broker_id, "t")) == [b"a"]


def test_a_replica_that_has_stopped_asks_its_leader_again(cluster: SimulatedCluster) -> None:
    test_a_replica_whose_leader_lacks_committed_records_stops(cluster)
    cluster.advance(STOPPED_MS)
    for broker_id in (1, 2):
        assert cluster.brokers[broker_id].journal.events("error").count("replica_stopped") == 2


def test_a_restarted_follower_catches_up(cluster: SimulatedCluster) -> None:
    cluster.produce("t", b"a")
    cluster.kill(3, power=True)
    deregister(cluster, 3)
    cluster.produce("t", b"b")
    cluster.start(3)
    register(cluster, 3)
    in_sync(cluster)
    assert values(cluster.log_of(3, "t")) == [b"a", b"b"]


def test_a_replica_that_has_truncated_learns_the_high_watermark(cluster: SimulatedCluster) -> None:
    """The response with the divergence has the high watermark, too. The replica does not take it then."""
    cluster.produce("t", b"a")
    cluster.advance(20)
    for broker_id in (2, 3):
        cluster.cut(1, broker_id)
    send(cluster, b"lost", timeout_ms=100)
    cluster.elect("t", 0, 2, isr=(2, 3))
    cluster.advance(50)
    cluster.produce("t", b"b")
    cluster.heal()
    in_sync(cluster)
    assert cluster.replica(1, "t").high_watermark == 2


def test_idle_partitions_are_not_in_requests_and_responses(cluster: SimulatedCluster) -> None:
    cluster.produce("t", b"a")
    cluster.advance(1_000)
    sent: list[Any] = []
    peers = cluster.brokers[2].peers
    send_to_peer = peers.send

    def send_noted(broker_id: int, request: Any, deadline_ms: int) -> Any:
        response = send_to_peer(broker_id, request, deadline_ms)
        sent.append((request, response))
        return response

    peers.send = send_noted  # type: ignore[method-assign]  # the test looks at the requests
    cluster.advance(3_000)
    assert 4 <= len(sent) <= 7
    assert all(not request.topics for request, _ in sent)
    assert all(not response.value.responses for _, response in sent[:-1])


# Fetches that are refused


def follower_fetch(
    cluster: SimulatedCluster, replica: int, broker_epoch: int, **options: Any
) -> Any:
    leader = cluster.replica(1, "t")
    topic_id = leader.log_dir.logs.topic_id(leader.topic_partition)
    session = options.pop("session", None) or Session(is_local=True, is_broker=True)
    request = fetch_request(
        ("t", 0, options.pop("offset", 0)),
        max_wait_ms=0,
        replica_state=ReplicaState(replica_id=replica, replica_epoch=broker_epoch),
        current_leader_epoch=leader.leader_epoch + options.pop("ahead", 0),
        session_epoch=-1,
        **options,
    )
    request.topics[0].topic_id = topic_id
    return cluster.brokers[1].call(request, session=session).responses[0].partitions[0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"replica": 2, "broker_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
        ({"replica": 2, "broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
        (
            {"replica": 2, "broker_epoch": 1, "session": Session(is_local=True)},
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),
        ({"replica": 4, "broker_epoch": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"replica": 1, "broker_epoch": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"replica": 2, "broker_epoch": 1, "ahead": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"replica": 2, "broker_epoch": 1, "ahead": -1}, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_fetch_that_is_refused_is_no_progress(
    cluster: SimulatedCluster, options: dict[str, Any], error: ErrorCode
) -> None:
    cluster.brokers[2].crash()
    register(cluster, 2)
    cluster.elect("t", 0, 1)
    cluster.advance(50)
    for broker_id in (2, 3):
        cluster.cut(1, broker_id)
    send(cluster, b"a")
    cluster.advance(5)
    assert follower_fetch(cluster, offset=1, **options).error_code == error
    leader = cluster.replica(1, "t")
    assert leader.isr is not None
    assert all(leader.isr.progress._of(each, 0) < 1 for each in (2, 3))


def test_an_offset_of_a_diverged_log_is_no_progress(cluster: SimulatedCluster) -> None:
    for broker_id in (2, 3):
        cluster.cut(1, broker_id)
    send(cluster, b"a")
    cluster.advance(5)
    found = follower_fetch(cluster, 2, 1, offset=5, last_fetched_epoch=0)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 1)
    leader = cluster.replica(1, "t")
    assert leader.isr is not None
    assert leader.isr.progress._of(2, 0) < 1


def test_a_replica_takes_the_start_of_the_leaders_log_before_it_joins(
    cluster: SimulatedCluster,
) -> None:
    in_sync(cluster)
    for number in range(4):
        send(cluster, b"%d" % number)
    cluster.run_until(lambda: cluster.replica(1, "t", 0).high_watermark == 4)
    cluster.cut(1, 3)
    cluster.cut(2, 3)
    send(cluster, b"4")
    cluster.run_until(lambda: isr(cluster) == {1, 2}, timeout_ms=3 * LAG_TIME_MS)
    deleted = cluster.brokers[1].send(delete_records("t", 0, 3))
    cluster.run_until(lambda: deleted.done)
    assert cluster.replica(1, "t", 0).log_start_offset == 3
    assert cluster.replica(3, "t", 0).log_start_offset == 0
    cluster.heal()
    cluster.run_until(lambda: isr(cluster) == {1, 2, 3})
    assert cluster.replica(3, "t", 0).log_start_offset == 3


def refusing(
    code: ErrorCode, sent: list[int], clock: Callable[[], int]
) -> Callable[..., Deferred[Any]]:
    """A leader that answers every fetch with an error; the times of the fetches are noted."""

    def send(_leader: int, request: Any, _deadline_ms: int) -> Deferred[Any]:
        sent.append(clock())
        if code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return resolved(FetchResponse(error_code=code, responses=[]))
        part = PartitionData(partition_index=0, error_code=code, records=b"")
        return resolved(FetchResponse(responses=[FetchableTopicResponse(partitions=[part])]))

    return send


@pytest.mark.parametrize(
    ("code", "at_once"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 1),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 1),
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 2),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 2),
    ],
)
def test_a_follower_pauses_when_the_leader_refuses_every_fetch(
    cluster: SimulatedCluster, code: ErrorCode, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_sync(cluster)
    follower, sent = cluster.brokers[2], list[int]()
    monkeypatch.setattr(follower.peers, "send", refusing(code, sent, lambda: cluster.now_ms))
    cluster.run_until(lambda: sent)
    cluster.advance(_BACKOFF_MS // 2)
    assert len(sent) == at_once
    cluster.advance(3 * _BACKOFF_MS)
    assert at_once + 2 <= len(sent) <= at_once + 4
    refused = follower.journal.events("error").count("follower_fetch_refused")
    assert refused == (at_once == 1)
