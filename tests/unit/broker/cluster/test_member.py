"""The registration of a broker in its cluster: after its logs are open, again in each session, and its lease."""

from __future__ import annotations

import pytest

from headrace.broker.cluster.member import Member
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.replication.replicas import Replicas
from headrace.core.cluster.records import LIVE_BROKERS, LiveRecord, decode
from headrace.core.replica.role import NO_REGISTRATION, Role
from headrace.errors import ConfigError, ErrorCode
from headrace.ports import Delete
from tests.fixtures.broker_harness import RecordingJournal, batch, produce_request
from tests.fixtures.cluster import SimulatedCluster

HEARTBEAT_INTERVAL_MS, LEASE_MS = 1_500, 4_500
"""The times that belong to the session timeout of a simulated cluster."""


def replicas_of(cluster: SimulatedCluster, broker_id: int = 1) -> Replicas:
    return cluster.brokers[broker_id].broker.services.replicas


def live_record(cluster: SimulatedCluster, broker_id: int = 1) -> LiveRecord | None:
    entry = cluster.content.get(f"{LIVE_BROKERS}{broker_id}")
    return None if entry is None else decode(entry, LiveRecord)


def role_of(cluster: SimulatedCluster, broker_id: int = 1) -> Role:
    """Return the role of broker 1 in partition 0, of which it has the only replica, and of broker 2 in partition 1."""
    return cluster.replica(broker_id, "t", broker_id - 1).role


@pytest.fixture
def cluster() -> SimulatedCluster:
    made = SimulatedCluster(2)
    made.create_topic("t", replicas=[(1,), (1, 2)])
    made.advance(100)
    return made


def test_a_broker_that_has_started_leads_and_follows(cluster: SimulatedCluster) -> None:
    cluster.brokers[2].restart()
    assert role_of(cluster, 2) is Role.FOLLOWER
    cluster.brokers[1].restart()
    assert role_of(cluster, 1) is Role.LEADER


def test_a_broker_registers_when_its_logs_are_open(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = cluster.registration(1)
    cluster.brokers[1].stop()
    seen: list[tuple[int, LiveRecord | None]] = []
    start = Member.start

    def look(member: Member) -> None:
        seen.append((cluster.registration(1), live_record(cluster)))
        assert member._replicas.partitions_count == 2
        assert member._replicas.registration == NO_REGISTRATION
        start(member)

    monkeypatch.setattr(Member, "start", look)
    cluster.start(1)
    assert seen == [(epoch, None)]
    assert cluster.registration(1) == replicas_of(cluster).registration == epoch + 1
    live = live_record(cluster)
    assert live is not None
    assert live.broker_epoch == epoch + 1


def test_a_broker_registers_again_when_its_session_has_ended(cluster: SimulatedCluster) -> None:
    epoch, leader_epoch = cluster.registration(1), cluster.state("t").leader_epoch
    cluster.brokers[1].metadata.lose_session()
    cluster.run_until(lambda: cluster.replica(1, "t").leader_epoch > leader_epoch)
    assert role_of(cluster) is Role.LEADER
    assert cluster.replica(1, "t").leader_epoch == leader_epoch + 1
    assert cluster.registration(1) == epoch + 1
    assert live_record(cluster) is not None
    assert not replicas_of(cluster).is_suspect
    assert cluster.produce("t", b"a").error_code == ErrorCode.NONE


def test_a_broker_has_no_role_between_two_registrations(cluster: SimulatedCluster) -> None:
    cluster.brokers[1].metadata.faults = ["none"] * 100
    cluster.brokers[1].metadata.lose_session()
    cluster.run_until(lambda: replicas_of(cluster).registration == NO_REGISTRATION)
    assert replicas_of(cluster).is_suspect
    cluster.brokers[1].metadata.down = True
    cluster.advance(10)
    assert role_of(cluster) is Role.OFFLINE
    cluster.heal()
    cluster.run_until(lambda: role_of(cluster) is Role.LEADER)


def test_a_registration_that_fails_is_tried_again(cluster: SimulatedCluster) -> None:
    epoch = cluster.registration(2)
    cluster.brokers[2].metadata.lose_session()
    cluster.run_until(lambda: replicas_of(cluster, 2).registration == NO_REGISTRATION)
    cluster.brokers[2].metadata.faults = ["unavailable", "unknown and applied"]
    cluster.run_until(lambda: role_of(cluster, 2) is Role.OFFLINE)
    cluster.run_until(lambda: role_of(cluster, 2) is Role.FOLLOWER)
    assert cluster.registration(2) == replicas_of(cluster, 2).registration > epoch


def test_a_live_entry_that_is_deleted_is_written_again(cluster: SimulatedCluster) -> None:
    epoch = cluster.registration(1)
    cluster.store.commit([], [Delete(f"{LIVE_BROKERS}1")])
    cluster.run_until(lambda: live_record(cluster) is not None)
    assert cluster.registration(1) == epoch + 1


def test_heartbeats_extend_the_lease(cluster: SimulatedCluster) -> None:
    acknowledged_ms = cluster.brokers[1].metadata.session.acknowledged_ms
    assert acknowledged_ms is not None
    cluster.advance(10 * LEASE_MS)
    latest_ms = cluster.brokers[1].metadata.session.acknowledged_ms
    assert latest_ms is not None
    assert cluster.now_ms - latest_ms <= HEARTBEAT_INTERVAL_MS + 10
    assert not replicas_of(cluster).is_suspect


def test_a_broker_without_its_store_is_suspect_when_its_lease_ends(
    cluster: SimulatedCluster,
) -> None:
    cluster.cut_store(1)
    cluster.advance(LEASE_MS - HEARTBEAT_INTERVAL_MS - 10)
    assert not replicas_of(cluster).is_suspect
    cluster.advance(HEARTBEAT_INTERVAL_MS + 10)
    assert replicas_of(cluster).is_suspect
    assert role_of(cluster) is Role.LEADER


def test_the_lease_continues_when_the_store_returns_within_the_session(
    cluster: SimulatedCluster,
) -> None:
    epoch = cluster.registration(1)
    cluster.cut_store(1)
    cluster.run_until(lambda: replicas_of(cluster).is_suspect)
    cluster.heal()
    cluster.run_until(lambda: not replicas_of(cluster).is_suspect)
    assert cluster.registration(1) == epoch
    assert role_of(cluster) is Role.LEADER


def test_a_broker_whose_session_expired_without_its_store_registers_when_the_store_returns(
    cluster: SimulatedCluster,
) -> None:
    epoch = cluster.registration(1)
    cluster.cut_store(1)
    cluster.advance(20_000)
    assert live_record(cluster) is None
    assert replicas_of(cluster).is_suspect
    cluster.heal()
    cluster.run_until(
        lambda: role_of(cluster) is Role.LEADER and not replicas_of(cluster).is_suspect
    )
    assert cluster.registration(1) == replicas_of(cluster).registration == epoch + 1


def test_another_data_directory_is_refused_while_the_broker_is_live() -> None:
    cluster = SimulatedCluster(2)
    epoch = cluster.registration(1)
    claim = cluster.content.get("brokers/process/1")
    with pytest.raises(ConfigError, match="broker 1 runs already, with another data directory"):
        cluster.add_broker(1)
    assert cluster.content.get("brokers/process/1") == claim
    assert cluster.registration(1) == epoch


def test_another_data_directory_is_accepted_when_the_session_has_ended() -> None:
    cluster = SimulatedCluster(2)
    cluster.kill(1, ends_session=True)
    epoch = cluster.registration(1)
    cluster.add_broker(1)
    assert cluster.registration(1) == epoch + 1


def test_the_lease_is_shorter_in_a_shorter_session() -> None:
    cluster = SimulatedCluster(1, session_timeout_ms=2_000)
    cluster.advance(10_000)
    assert not replicas_of(cluster).is_suspect
    cluster.cut_store(1)
    cluster.advance(1_000)
    assert replicas_of(cluster).is_suspect


def test_a_record_with_acks_1_is_not_acknowledged_by_one_replica_when_the_lease_has_ended(
    cluster: SimulatedCluster,
) -> None:
    cluster.cut_store(1)
    cluster.cut(1, 2)
    cluster.run_until(lambda: replicas_of(cluster).is_suspect)
    pending = cluster.brokers[1].send(produce_request("t", 1, batch(b"a"), acks=1))
    cluster.advance(1_000)
    assert not pending.done
    cluster.brokers[1].metadata.down = False
    cluster.run_until(lambda: not replicas_of(cluster).is_suspect)
    assert pending.done, "the lease lasts again, and the leader has the record"


def take_over(cluster: SimulatedCluster) -> None:
    """Let another process of broker 1 begin."""
    MetadataWriter(cluster.session(), 1, bytes(15) + b"x", RecordingJournal()).begin()


def test_a_process_that_was_taken_over_ends(cluster: SimulatedCluster) -> None:
    broker = cluster.brokers[1]
    take_over(cluster)
    cluster.run_until(lambda: not broker.is_running)
    assert broker.broker.failed
    assert broker.journal.events("error").count("broker_taken_over") == 1


def test_a_process_that_was_taken_over_has_no_role_and_writes_nothing(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster.brokers[1]
    monkeypatch.setattr(broker, "kill", lambda: None)  # the shell does not end the process
    take_over(cluster)
    cluster.run_until(lambda: broker.broker.failed)
    cluster.advance(10)
    assert replicas_of(cluster).registration == NO_REGISTRATION
    assert role_of(cluster) is Role.OFFLINE
    own = [entry for entry in cluster.content.entries() if "/1" in entry.key]
    cluster.advance(20_000)
    assert [entry for entry in cluster.content.entries() if "/1" in entry.key] == own
