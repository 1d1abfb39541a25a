"""The registration of a broker that starts: its broker epoch, and in a cluster its live entry."""

from __future__ import annotations

from headrace.core.cluster.membership import Membership
from headrace.core.cluster.records import LIVE_BROKERS
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.cluster import SimulatedCluster


def membership_of(cluster: SimulatedCluster, broker_id: int) -> Membership:
    return cluster.brokers[broker_id].broker.services.membership


def test_brokers_of_a_cluster_see_each_other_after_their_starts() -> None:
    cluster = SimulatedCluster(2, advertised_listeners="PLAINTEXT://host:9092")
    cluster.advance(100)
    for broker_id in cluster.brokers:
        membership = membership_of(cluster, broker_id)
        assert list(membership.live) == [1, 2]
        other = membership.live[3 - broker_id]
        assert other.endpoints == {"PLAINTEXT": ("host", 9092)}
        assert other.broker_epoch == cluster.registration(3 - broker_id)


def test_a_restart_takes_over_the_live_entry_of_the_same_log_directory_with_the_next_epoch() -> (
    None
):
    cluster = SimulatedCluster(2)
    cluster.advance(100)
    before = membership_of(cluster, 2).live[1]
    cluster.kill(1, ends_session=False)
    cluster.start(1)
    cluster.advance(100)
    after = membership_of(cluster, 2).live[1]
    assert (after.broker_epoch, after.incarnation) == (before.broker_epoch + 1, before.incarnation)


def test_a_broker_whose_session_ends_is_not_live_any_more() -> None:
    cluster = SimulatedCluster(2)
    cluster.advance(100)
    cluster.kill(1, ends_session=True)
    cluster.advance(100)
    assert list(membership_of(cluster, 2).live) == [2]


def test_a_broker_without_a_cluster_has_no_live_entry() -> None:
    content = MemoryMetadata()
    harness = BrokerHarness(metadata=MemoryMetadataStore(content))
    assert not [entry for entry in content.entries() if entry.key.startswith(LIVE_BROKERS)]
    assert list(harness.broker.services.membership.live) == [1]
