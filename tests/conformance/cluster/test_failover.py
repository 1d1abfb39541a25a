"""Clients of every library survive the loss of a leader: an idempotent producer and the members of a group.

The faults hit the broker that leads partition 0. `GroupUnderLoad` checks the result: the log has exactly the
acknowledged records, in order; members began where their group had committed, and got every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from headrace.testing.cluster.cluster import Cluster
from tests.conformance.clients.java import JavaClient
from tests.conformance.clients.observer import Observer
from tests.conformance.clients.scenario import (
    PARTITIONS,
    Client,
    GroupUnderLoad,
    Load,
    Member,
    ProgramClient,
)
from tools.fetch_java import JavaUnavailableError

pytestmark = pytest.mark.slow

PROGRAMS: Final = {
    "aiokafka": ["aio"],
    "confluent-kafka": ["confluent"],
    "headrace": ["headrace_client", "range"],
    "headrace-848": ["headrace_client", "server-side"],
    "kafka-python": ["kafka_python"],
}
"""The module of `tests.conformance.clients.programs` of each client, with its arguments."""


def isolate(cluster: Cluster, broker: int) -> None:
    """Cut a broker off from all other brokers. Clients and the metadata store reach it."""
    for other in (1, 2, 3):
        if other != broker:
            cluster.cut(broker, other)


FAULTS: Final[dict[str, Callable[[Cluster, int], object]]] = {
    "kill": Cluster.kill,
    "stop": Cluster.stop,
    "pause": Cluster.pause,
    "cut": isolate,
    "cut_store": Cluster.cut_store,
}
"""The faults of a leader."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    configs = {
        "group.consumer.min.session.timeout.ms": 2_000,
        "group.consumer.session.timeout.ms": 2_000,
        "group.consumer.min.heartbeat.interval.ms": 300,
        "group.consumer.heartbeat.interval.ms": 300,
        "group.min.session.timeout.ms": 1_000,
    }
    with Cluster(3, configs=configs, session_timeout_ms=500) as running:
        yield running


def make_client(name: str, cluster: Cluster, directory: Path) -> Client:
    if name == "java":
        try:
            return JavaClient(cluster.bootstrap, directory)
        except JavaUnavailableError as error:
            pytest.skip(str(error))
    module, *arguments = PROGRAMS[name]
    return ProgramClient.python(name, module, cluster.bootstrap, directory, arguments=arguments)


class ClusterObserver(Observer):
    """An observer of a cluster whose coordinators move.

    librdkafka 2.16 crashes if its admin client asks a broker for offsets that is not the coordinator any more.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.bootstrap)
        self._cluster = cluster

    def committed(self, group: str, topic: str) -> dict[int, int]:
        offsets = self._cluster.committed(group)
        return {
            where.partition: offset for where, offset in offsets.items() if where.topic == topic
        }


class Failover(GroupUnderLoad):
    """A group of two members under load, whose brokers fail."""

    def __init__(self, client: Client, cluster: Cluster, fault: str) -> None:
        super().__init__(client, ClusterObserver(cluster))
        self._cluster, self._fault = cluster, fault

    def _create_topic(self) -> None:
        self._cluster.create_topic(self.topic, PARTITIONS)

    def _phases(self, members: dict[str, Member], load: Load) -> None:
        cluster = self._cluster
        self._add(members, "one", "two")
        self._wait_progress(members)
        leader = cluster.leader(self.topic, 0)
        self.history.add("broker", "broker_down", {})
        FAULTS[self._fault](cluster, leader)
        if self._fault == "cut":
            # The leader stays the leader, alone in the ISR: it commits nothing. It may be the group's coordinator, too.
            cluster.wait_until(lambda: cluster.isr(self.topic, 0) == (leader,))
        else:
            cluster.wait_until(lambda: cluster.leader(self.topic, 0) not in {-1, leader})
            self._wait_progress(members)
        cluster.heal()
        if leader not in cluster.running:
            cluster.restart(leader)
        cluster.wait_in_sync(timeout_s=30)
        self._wait_progress(members)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [*PROGRAMS, pytest.param("java", marks=pytest.mark.java)])
def test_no_acknowledged_record_is_lost(
    cluster: Cluster, tmp_path: Path, name: str, fault: str
) -> None:
    client = make_client(name, cluster, tmp_path)
    try:
        Failover(client, cluster, fault).run()
    finally:
        client.close()
