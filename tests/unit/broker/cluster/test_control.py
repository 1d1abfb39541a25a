"""The controller of a cluster: who becomes it, the leaders that it elects, and what happens when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.core.cluster.damping import Damping
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    DELETED,
    STATES,
    ControllerRecord,
    TombstoneRecord,
    decode,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.cluster import SimulatedCluster

PARTITIONS = 33


def controller(cluster: SimulatedCluster) -> int:
    """Return the controller, as the metadata store has it; -1 for none."""
    entry = cluster.content.get(CONTROLLER_KEY)
    return -1 if entry is None else decode(entry, ControllerRecord).broker


def started(brokers: int = 3, **options: Any) -> tuple[SimulatedCluster, int, list[int]]:
    """Return a cluster with its controller and the other brokers."""
    cluster = SimulatedCluster(brokers, in_memory=True, **options)
    cluster.run_until(lambda: controller(cluster) >= 0)
    cluster.advance(100)
    found = controller(cluster)
    return cluster, found, [number for number in cluster.brokers if number != found]


def leaders(cluster: SimulatedCluster, count: int = PARTITIONS) -> set[int]:
    return {cluster.leader("t", index) for index in range(count)}


def active(cluster: SimulatedCluster) -> list[int]:
    """Return the brokers that take themselves for the controller."""
    return [
        number
        for number, each in cluster.brokers.items()
        if each.is_running
        and each.broker.services.control is not None
        and each.broker.services.control.is_controller
    ]


def at_each_commit(cluster: SimulatedCluster, broker: int, act: Callable[[int], object]) -> None:
    """Call `act` with the number of each commit of a broker as the controller, before the commit is sent."""
    store, count = cluster.brokers[broker].metadata, 0
    send = store.commit

    def commit(checks: Sequence[Any], operations: Sequence[Any]) -> Any:
        nonlocal count
        if any(each.key == CONTROLLER_EPOCH_KEY for each in checks):
            count += 1
            act(count)
        return send(checks, operations)

    store.commit = commit  # type: ignore[method-assign]  # only this test looks at commits


def test_one_of_the_brokers_becomes_the_controller() -> None:
    cluster, found, _ = started()
    assert active(cluster) == [found]


def test_a_broker_without_a_cluster_has_no_controller() -> None:
    assert BrokerHarness().broker.services.control is None


def test_a_cluster_of_one_broker_has_a_controller() -> None:
    cluster = SimulatedCluster(1, in_memory=True)
    cluster.run_until(lambda: active(cluster) == [1])


def test_another_replica_leads_when_the_leader_dies() -> None:
    cluster, found, (leader, other) = started()
    cluster.create_topic("t", replicas=[(leader, other, found)] * PARTITIONS)
    cluster.kill(leader)
    cluster.run_until(lambda: leaders(cluster) == {other})
    assert cluster.state("t", 32).isr == (other, found)
    cluster.advance(100)
    assert cluster.produce("t", b"a", partition=32, acks=-1).base_offset == 0


def test_a_partition_keeps_its_leader_when_no_other_replica_may_lead() -> None:
    cluster, found, (leader, other) = started()
    cluster.create_topic("t", replicas=[(leader, other, found), (leader,)])
    cluster.elect("t", 0, leader, isr=(leader,))
    before = cluster.state("t")
    cluster.kill(leader, ends_session=True)
    cluster.advance(10_000)
    assert cluster.state("t") == before
    cluster.start(leader)
    cluster.advance(1_000)
    assert cluster.leader("t") == cluster.leader("t", 1) == leader


@pytest.mark.parametrize("number", range(1, 4))
def test_all_leaders_are_replaced_whenever_the_controller_dies(number: int) -> None:
    """The controller stores 33 leaders in 2 commits. It dies before each of them, and after the last."""
    cluster, first, (leader, *others) = started(4)
    cluster.create_topic("t", replicas=[(leader, first, *others)] * PARTITIONS)

    def die(count: int) -> None:
        if count == number:
            cluster.timeline.at(cluster.now_ms, lambda: cluster.kill(first, ends_session=True))

    at_each_commit(cluster, first, die)
    cluster.kill(leader, ends_session=True)
    if number == 3:
        cluster.run_until(lambda: leaders(cluster) == {first})
        cluster.kill(first, ends_session=True)
    cluster.run_until(lambda: leaders(cluster) <= set(others), 10_000)
    assert controller(cluster) in others


def test_leaders_are_elected_although_each_new_controller_dies() -> None:
    """Each broker dies before its second commit as the controller, until two brokers are left."""
    cluster, first, others = started(6)
    leader, *rest = others
    cluster.create_topic("t", replicas=[(leader, first, *rest)] * PARTITIONS)

    def die_at_the_second(number: int) -> Callable[[int], object]:
        def die(count: int) -> None:
            if count == 2 and sum(each.is_running for each in cluster.brokers.values()) > 2:
                cluster.timeline.at(cluster.now_ms, lambda: cluster.kill(number, ends_session=True))

        return die

    for number in (first, *rest):
        at_each_commit(cluster, number, die_at_the_second(number))
    cluster.kill(leader, ends_session=True)
    cluster.run_until(lambda: sum(each.is_running for each in cluster.brokers.values()) == 2)
    running = {number for number, each in cluster.brokers.items() if each.is_running}
    cluster.run_until(lambda: leaders(cluster) <= running)


@pytest.mark.parametrize(
    "fault", ["unavailable", "unknown and void", "unknown and applied", "doubled"]
)
def test_leaders_are_elected_although_the_outcome_of_a_commit_is_lost(fault: Any) -> None:
    cluster, first, (leader, other) = started()
    cluster.create_topic("t", replicas=[(leader, other, first)] * PARTITIONS)
    faults = cluster.brokers[first].metadata.faults
    at_each_commit(cluster, first, lambda count: faults.extend([fault] * (count == 1)))
    cluster.kill(leader, ends_session=True)
    cluster.run_until(lambda: leaders(cluster) == {other}, 3_000)


def test_a_refused_election_delays_no_other() -> None:
    """(1) The controller elects leaders of 30 partitions. (2) The state of one of them has changed before the commit
    arrives.
    """
    cluster, first, (leader, other) = started()
    cluster.create_topic("t", replicas=[(leader, other, first)] * 30)

    def change(count: int) -> None:
        if count == 1:
            cluster.elect("t", 7, leader, isr=(leader, first))

    at_each_commit(cluster, first, change)
    cluster.kill(leader, ends_session=True)
    cluster.run_until(lambda: leader not in leaders(cluster, 30), 1_000)
    assert cluster.leader("t", 7) == first
    assert cluster.leader("t", 8) == other


def test_a_late_commit_of_a_replaced_controller_is_refused() -> None:
    """(1) The commit of the controller is delayed. (2) Its session ends, and another broker becomes the controller.
    (3) The commit arrives.
    """
    cluster, first, (leader, *others) = started(4)
    cluster.create_topic("t", replicas=[(leader, first, *others)])
    store = cluster.brokers[first].metadata
    at_each_commit(cluster, first, lambda _: store.faults.append("unknown and late"))
    cluster.kill(leader, ends_session=True)
    cluster.run_until(lambda: not store.faults and store._late)
    cluster.cut_store(first)
    store.lose_session()
    cluster.run_until(lambda: controller(cluster) in others)
    cluster.run_until(lambda: cluster.leader("t") in others)
    before = cluster.state("t")
    store.land()
    assert cluster.state("t") == before


def test_a_controller_without_its_session_stops_at_once() -> None:
    cluster, first, (leader, *others) = started(4)
    cluster.create_topic("t", replicas=[(leader, first, *others)] * PARTITIONS)
    cluster.cut_store(first)
    cluster.run_until(lambda: controller(cluster) in others)
    cluster.heal()
    cluster.run_until(lambda: active(cluster) == [controller(cluster)])
    cluster.run_until(lambda: cluster.brokers[first].broker.services.replicas.registration >= 0)
    assert "controller_replaced" in cluster.brokers[first].journal.events("warning")
    sent: list[int] = []
    at_each_commit(cluster, first, sent.append)
    cluster.kill(leader, ends_session=True)
    cluster.run_until(lambda: leader not in leaders(cluster))
    assert sent == []


def frozen(cluster: SimulatedCluster) -> None:
    """Let the sessions of all brokers end, as after a pause of the metadata store."""
    for broker in cluster.brokers.values():
        broker.metadata.lose_session()
    cluster.run_until(lambda: controller(cluster) >= 0)
    cluster.advance(10_000)


def test_the_leaders_stay_when_the_sessions_of_all_brokers_end() -> None:
    cluster, *_ = started()
    cluster.create_topic("t", PARTITIONS)
    before = [cluster.leader("t", index) for index in range(PARTITIONS)]
    frozen(cluster)
    assert [cluster.leader("t", index) for index in range(PARTITIONS)] == before


def test_elections_in_progress_pause_when_most_brokers_are_gone() -> None:
    """(1) The controller elects leaders in place of one broker. (2) The sessions of two others end meanwhile."""
    cluster, first, (leader, *others) = started(5)
    numbers = [leader] * 100 + others[:2]
    cluster.create_topic(
        "t", replicas=[(number, *sorted({*cluster.brokers} - {number})) for number in numbers]
    )

    def end_sessions(count: int) -> None:
        for number in others[:2] if count == 1 else ():
            cluster.cut_store(number)
            cluster.brokers[number].metadata.lose_session()

    at_each_commit(cluster, first, end_sessions)
    cluster.kill(leader, ends_session=True)
    cluster.advance(1_000)
    assert [cluster.leader("t", index) for index in (100, 101)] == others[:2]
    cluster.heal()
    cluster.run_until(lambda: cluster.leader("t", 99) != leader)
    assert [cluster.leader("t", index) for index in (100, 101)] == others[:2]


def test_without_damping_the_first_broker_with_a_session_leads_all_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Damping, "waits_until_ms", lambda *_: None)
    cluster, *_ = started(store_delay_ms=20)
    cluster.create_topic("t", PARTITIONS)
    before = [cluster.leader("t", index) for index in range(PARTITIONS)]
    frozen(cluster)
    assert [cluster.leader("t", index) for index in range(PARTITIONS)] != before


def test_a_new_controller_waits_for_brokers_that_have_not_started_yet() -> None:
    """All brokers were down. The first one that starts may not take the partitions of the others."""
    cluster, *_ = started()
    cluster.create_topic("t", PARTITIONS)
    before = [cluster.leader("t", index) for index in range(PARTITIONS)]
    for number in cluster.brokers:
        cluster.kill(number, ends_session=True)
    for number in cluster.brokers:
        cluster.start(number)
        cluster.advance(1_000)
    cluster.advance(10_000)
    assert [cluster.leader("t", index) for index in range(PARTITIONS)] == before


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_draining_broker_leads_nothing_that_another_broker_can_lead(
    is_controller: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    cluster, first, (other, third) = started()
    number = first if is_controller else other
    rest = [third, other if is_controller else first]
    replicas = [(number, *rest)] * PARTITIONS + [(number,)]
    cluster.create_topic("t", replicas=replicas)
    broker = cluster.brokers[number]
    draining = broker.broker.drain(cluster.now_ms)
    assert draining is not None
    assert draining.partitions_left != 0
    cluster.run_until(lambda: draining.partitions_left == 0)
    assert leaders(cluster) == {third}
    assert cluster.leader("t", PARTITIONS) == number
    cluster.advance(1_000)
    assert cluster.state("t").isr == tuple(rest), "a draining broker does not join the ISR again"
    broker.stop()
    cluster.run_until(lambda: controller(cluster) in rest)
    broker.start()
    cluster.run_until(lambda: number in cluster.state("t").isr)


def test_brokers_that_drain_together_do_not_wait_for_each_other() -> None:
    cluster, *_ = started()
    cluster.create_topic("t", PARTITIONS)
    progress = [each.broker.drain(cluster.now_ms) for each in cluster.brokers.values()]
    cluster.run_until(lambda: all(each and each.partitions_left == 0 for each in progress), 1_000)


def test_a_draining_broker_does_not_become_the_controller() -> None:
    cluster, first, others = started()
    for number in others:
        cluster.brokers[number].broker.drain(cluster.now_ms)
    cluster.advance(100)
    cluster.kill(first, ends_session=True)
    cluster.advance(5_000)
    assert active(cluster) == []


def test_a_deletion_ends_without_a_broker_that_is_away() -> None:
    cluster, first, (leader, other) = started()
    cluster.create_topic("t", 3, replicas=[(leader, other, first)] * 3, leaders=[other] * 3)
    topic_id = bytes.fromhex(cluster._record("t").topic_id)
    states = [state_key(topic_id, index) for index in range(3)]
    assert all(map(cluster.content.get, states))
    cluster.kill(leader, ends_session=True)
    cluster.run_until(lambda: leader not in cluster.state("t").isr)
    cluster.brokers[other].call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), 1)
    cluster.run_until(lambda: not any(map(cluster.content.get, states)))
    tombstone = cluster.content.get(f"{DELETED}{topic_id.hex()}")
    assert tombstone is not None
    assert decode(tombstone, TombstoneRecord).brokers == (leader,)
    cluster.start(leader)
    assert cluster.content.get(f"{DELETED}{topic_id.hex()}") is None
    cluster.advance(6_000)
    assert not [each for each in cluster.content.entries() if each.key.startswith(STATES)]


def test_an_unclean_election_is_logged_as_an_error() -> None:
    cluster, first, (leader, other) = started()
    cluster.create_topic("t", replicas=[(leader, other)], unclean_leader_election_enable="true")
    cluster.elect("t", 0, leader, isr=(leader,))
    cluster.kill(leader, ends_session=True)
    cluster.run_until(lambda: cluster.leader("t") == other)
    cluster.advance(100)
    events = cluster.brokers[first].journal.events("error")
    assert events.count("unclean_leader_elected") == 1
