"""All replicas have the records of a leader that an unclean election chose, also replicas that have been away."""

from __future__ import annotations

import pytest

from tests.fixtures.cluster import SimulatedCluster


def lost(durability: str) -> SimulatedCluster:
    """Return a cluster in which broker 2 leads without a committed record, which brokers 1 and 3 have and are down."""
    cluster = SimulatedCluster(3)
    cluster.create_topic(
        "t",
        replicas=[(1, 3, 2)],
        unclean_leader_election_enable="true",
        headrace_durability=durability,
    )
    cluster.produce("t", b"a")
    cluster.advance(1_000)
    cluster.kill(2, ends_session=True)
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 3})
    for value in (b"b", b"c"):
        cluster.produce("t", value)
    cluster.advance(10_000)  # the high watermark is in the checkpoint
    cluster.kill(3, ends_session=True)
    cluster.run_until(lambda: cluster.state("t").isr == (1,))
    cluster.kill(1, ends_session=True)
    cluster.start(2)
    cluster.run_until(lambda: cluster.leader("t") == 2)
    cluster.advance(100)
    return cluster


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("appends", [False, True])
def test_replicas_with_lost_records_have_the_records_of_the_leader(
    appends: bool,  # noqa: FBT001 - a parameter of the test
    durability: str,
) -> None:
    cluster = lost(durability)
    if appends:
        cluster.produce("t", b"d")
    for each in (1, 3):
        cluster.start(each)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert len({cluster.log_of(each, "t") for each in cluster.brokers}) == 1
    assert cluster.replica(1, "t").log.log_end_offset == 1 + appends
    for broker in cluster.brokers.values():
        assert "replica_stopped" not in broker.journal.events("error")
    cluster.produce("t", b"e", acks=-1)


def test_a_replica_that_is_away_for_a_later_election_has_the_records_of_the_leader() -> None:
    cluster = lost("fsync")
    cluster.produce("t", b"d")
    cluster.start(3)
    cluster.run_until(lambda: set(cluster.state("t").isr) == {2, 3})
    cluster.kill(2, ends_session=True)
    cluster.run_until(lambda: cluster.leader("t") == 3)
    cluster.start(1)
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 3})
    assert cluster.log_of(1, "t") == cluster.log_of(3, "t")
    cluster.start(2)
    cluster.run_until(lambda: cluster.is_in_sync("t"))


@pytest.mark.parametrize("power", [False, True])
def test_a_replica_that_began_anew_starts_again(power: bool) -> None:  # noqa: FBT001 - a parameter of the test
    cluster = lost("fsync")
    cluster.start(1)
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 2})
    cluster.kill(1, power=power, ends_session=True)
    cluster.start(1)
    cluster.produce("t", b"f")
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 2})
    cluster.run_until(lambda: cluster.log_of(1, "t") == cluster.log_of(2, "t"))
