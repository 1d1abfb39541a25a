"""Replicas that may lack records leave ISR and ELR when their broker starts, whatever interrupts the start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from headrace.core.cluster.records import (
    LIVE_BROKERS,
    REGISTRATIONS,
    TOPIC_CONFIGS,
    RegistrationRecord,
    TopicConfigRecord,
    decode,
    encode,
)
from headrace.core.log import LogManager, PartitionSpec
from headrace.core.replica.role import Role
from headrace.errors import StorageError
from headrace.metadata_stores.sessions import SimulatedMetadataStore
from headrace.ports import Put
from tests.fixtures.broker_harness import values
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.crash_files import CrashFileSystem

WEAKER = ("os", "interval:1000")


class _Killed(BaseException):
    """The process is killed."""


def made(durability: str, *, partitions: int = 1) -> SimulatedCluster:
    """Return a cluster with a topic on brokers 1 and 2, which broker 1 leads, and one record in partition 0."""
    cluster = SimulatedCluster(2)
    replicas = [(1, 2)] * partitions
    cluster.create_topic("t", replicas=replicas, headrace_durability=durability)
    assert cluster.produce("t", b"a").base_offset == 0
    cluster.advance(20)
    return cluster


def without_controller(cluster: SimulatedCluster) -> None:
    """Let no broker elect leaders or change the ISR while broker 2 is down: broker 1 is down, too."""
    cluster.kill(1)


def configure(cluster: SimulatedCluster, durability: str) -> None:
    """Change the durability of the topic."""
    record = TopicConfigRecord({"headrace.durability": durability})
    cluster.commit(Put(f"{TOPIC_CONFIGS}t", encode(record)))
    cluster.advance(20)


def members(cluster: SimulatedCluster, partition: int = 0) -> set[int]:
    state = cluster.state("t", partition)
    return {*state.isr, *state.elr}


def reasons(cluster: SimulatedCluster, broker_id: int = 2) -> list[object]:
    lines = cluster.brokers[broker_id].journal.lines
    return [fields["reason"] for _, event, fields in lines if event == "replicas_left_isr"]


@pytest.mark.parametrize("durability", WEAKER)
def test_a_replica_that_is_not_synced_leaves_the_isr_after_a_power_cut(durability: str) -> None:
    cluster = made(durability)
    without_controller(cluster)
    cluster.kill(2, power=True)
    cluster.start(2)
    assert members(cluster) == {1}
    assert reasons(cluster) == ["power cut"]


def test_a_replica_that_is_synced_stays_in_the_isr_after_a_power_cut() -> None:
    cluster = made("fsync")
    without_controller(cluster)
    cluster.kill(2, power=True)
    cluster.start(2)
    assert members(cluster) == {1, 2}
    assert reasons(cluster) == []


@pytest.mark.parametrize("durability", [*WEAKER, "fsync"])
def test_a_replica_stays_in_the_isr_after_a_killed_process(durability: str) -> None:
    cluster = made(durability)
    without_controller(cluster)
    cluster.kill(2)
    cluster.start(2)
    assert members(cluster) == {1, 2}
    assert reasons(cluster) == []


def test_a_replica_stays_in_the_isr_after_a_clean_shutdown_and_a_start_of_the_machine() -> None:
    cluster = made("os")
    without_controller(cluster)
    cluster.brokers[2].stop()
    cluster.brokers[2].boot_id = "another"
    cluster.start(2)
    assert members(cluster) == {1, 2}


def test_without_a_boot_id_every_killed_process_counts_as_a_power_cut() -> None:
    cluster = made("os")
    without_controller(cluster)
    cluster.kill(2)
    cluster.brokers[2].boot_id = None
    cluster.start(2)
    assert members(cluster) == {1}


def test_a_topic_that_became_synced_before_the_power_cut_leaves_the_isr() -> None:
    cluster = made("os")
    without_controller(cluster)
    cluster.kill(2, power=True)
    configure(cluster, "fsync")
    cluster.start(2)
    assert members(cluster) == {1}


def test_a_topic_that_became_synced_stays_in_the_isr_after_a_later_power_cut() -> None:
    cluster = made("os")
    configure(cluster, "fsync")
    cluster.brokers[2].restart()
    cluster.run_until(lambda: members(cluster) == {1, 2})
    without_controller(cluster)
    cluster.kill(2, power=True)
    cluster.start(2)
    assert members(cluster) == {1, 2}


def test_a_topic_that_is_synced_no_longer_leaves_the_isr() -> None:
    cluster = made("fsync")
    configure(cluster, "os")
    cluster.advance(20)
    without_controller(cluster)
    cluster.kill(2, power=True)
    cluster.start(2)
    assert members(cluster) == {1}


def test_a_leader_that_may_lack_records_leads_no_longer() -> None:
    cluster = made("os")
    cluster.kill(2)
    cluster.kill(1, power=True)
    cluster.start(1)
    assert cluster.leader("t") == -1
    assert members(cluster) == {2}
    cluster.start(2)
    cluster.run_until(lambda: cluster.leader("t") == 2)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert values(cluster.fetch("t", 0).records) == [b"a"]


def test_a_partition_with_one_replica_is_led_after_a_power_cut() -> None:
    cluster = SimulatedCluster(1)
    cluster.create_topic("t", replicas=[(1,)], headrace_durability="os")
    cluster.produce("t", b"a")
    cluster.kill(1, power=True)
    cluster.start(1)
    assert cluster.replica(1, "t").role is Role.LEADER


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_all_replicas_of_a_replaced_directory_leave_the_isr(durability: str) -> None:
    cluster = made(durability, partitions=70)
    without_controller(cluster)
    cluster.kill(2, ends_session=True)
    cluster.brokers[2].files = CrashFileSystem()
    cluster.start(2)
    assert [members(cluster, index) for index in range(70)] == [{1}] * 70
    assert reasons(cluster) == ["other incarnation"]


def damaged(_logs: LogManager, spec: PartitionSpec, *_: object) -> None:
    raise StorageError(f"{spec.topic_partition} is damaged")


def test_a_replica_that_is_not_served_leaves_the_isr_while_another_can_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = made("fsync")
    without_controller(cluster)
    cluster.kill(2)
    monkeypatch.setattr(LogManager, "open_log", damaged)
    cluster.start(2)
    assert members(cluster) == {1}
    assert reasons(cluster) == ["not served"]


def test_the_last_replica_stays_in_the_isr_when_it_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = made("fsync")
    cluster.elect("t", 0, 2, isr=[2])
    without_controller(cluster)
    cluster.kill(2)
    monkeypatch.setattr(LogManager, "open_log", damaged)
    cluster.start(2)
    assert (cluster.leader("t"), members(cluster)) == (2, {2})


def test_the_broker_is_not_live_before_its_replicas_have_left() -> None:
    cluster = made("os")
    without_controller(cluster)
    cluster.kill(2, power=True)
    seen: list[tuple[bool, set[int], int]] = []
    before = cluster.registration(2)

    def look() -> None:
        live = cluster.content.get(f"{LIVE_BROKERS}2") is not None
        seen.append((live, members(cluster), cluster.registration(2) - before))

    cluster.content.listeners["test"] = look
    cluster.start(2)
    assert list(dict.fromkeys((live, frozenset(isr), epoch) for live, isr, epoch in seen)) == [
        (True, frozenset({1, 2}), 0),
        (False, frozenset({1, 2}), 1),
        (False, frozenset({1}), 1),
        (True, frozenset({1}), 1),
    ]


def power_cut(cluster: SimulatedCluster) -> None:
    cluster.kill(2, power=True)


def new_directory(cluster: SimulatedCluster) -> None:
    """Replace the directory of broker 2, whose last registration does not name the old one."""
    cluster.kill(2, ends_session=True)
    cluster.brokers[2].files = CrashFileSystem()
    record = RegistrationRecord(cluster.registration(2), "")
    cluster.commit(Put(f"{REGISTRATIONS}2", encode(record)))


def earlier_directory(cluster: SimulatedCluster) -> None:
    """Start broker 2 on a new directory until it has all records, and replace that by the earlier one."""
    cluster.kill(2, ends_session=True)
    earlier, cluster.brokers[2].files = cluster.brokers[2].files, CrashFileSystem()
    cluster.start(2)
    cluster.start(1)
    cluster.run_until(lambda: all(members(cluster, index) == {1, 2} for index in range(31)))
    cluster.kill(1)
    cluster.kill(2, ends_session=True)
    cluster.brokers[2].files = earlier


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("commits", range(8))
@pytest.mark.parametrize(
    "lose",
    [
        power_cut,
        pytest.param(new_directory, marks=pytest.mark.slow),
        pytest.param(earlier_directory, marks=pytest.mark.slow),
    ],
)
def test_a_start_that_ends_between_two_commits_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[SimulatedCluster], None],
    commits: int,
    *,
    sends: bool,
) -> None:
    cluster = made("os", partitions=31)
    without_controller(cluster)
    lose(cluster)
    broker, left, send = cluster.brokers[2], [commits], SimulatedMetadataStore.commit

    def commit(store: SimulatedMetadataStore, checks: Any, operations: Any) -> Any:
        if store is broker.metadata:
            left[0] -= 1
            if left[0] < 0:
                if sends:
                    send(store, checks, operations)
                raise _Killed
        return send(store, checks, operations)

    with monkeypatch.context() as patch, suppress(_Killed):
        patch.setattr(SimulatedMetadataStore, "commit", commit)
        cluster.start(2)
    if broker.is_running:
        broker.kill(ends_session=True)
    else:
        broker.metadata.down = True
        broker.metadata.close()
    cluster.advance(20_000)  # the session ends, if it had a live entry
    cluster.start(2)
    assert [members(cluster, index) for index in range(31)] == [{1}] * 31
    assert cluster.content.get(f"{LIVE_BROKERS}2") is not None


def test_the_registration_names_the_log_directory() -> None:
    cluster = SimulatedCluster(1)
    entry = cluster.content.get(f"{REGISTRATIONS}1")
    assert entry is not None
    first = cluster.brokers[1].broker.services.log_store.dirs.first
    assert decode(entry, RegistrationRecord).incarnation == first.directory_id
