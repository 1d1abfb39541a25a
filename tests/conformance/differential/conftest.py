"""The two brokers, started once for all scenarios."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.conformance.differential.pair import Broker, Pair
from tests.conformance.differential.peer import Peer, advertised, common_versions
from tests.fixtures.kafka import TEST_SETTINGS, KafkaServer
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS, HeadraceServer, Target

WARM_UP_S = 30
SETTINGS = {"group.max.size": "5", "offset.metadata.max.bytes": "100"}
AT_ONCE = {"group.consumer.assignment.interval.ms": "0"}  # Headrace never delays an assignment


def _broker(target: Target) -> Broker:
    host, port = target.bootstrap.rsplit(":", 1)
    return Broker(target.name, (host, int(port)))


def _warm_up(broker: Broker) -> None:
    """Wait until the broker gives out producer ids and coordinates groups, which a new Kafka does not do at once."""
    peer = Peer(
        broker.name, broker.address, {22: (0, 4), 10: (0, 4), 2: (1, 1), 15: (0, 0), 3: (0, 9)}
    )
    deadline = time.monotonic() + WARM_UP_S
    try:
        while peer.quiet(InitProducerIdRequest(transactional_id=None)).error_code or any(
            found.error_code
            for found in peer.quiet(
                FindCoordinatorRequest(coordinator_keys=["warm"]), 4
            ).coordinators
        ):
            assert time.monotonic() < deadline, f"{broker.name} did not become ready"
            time.sleep(0.05)
        peer.await_leaders(OFFSETS_TOPIC)
        groups = DescribeGroupsRequest(groups=[f"warm-{number}" for number in range(40)])
        while any(group.error_code for group in peer.quiet(groups, 0).groups):
            assert time.monotonic() < deadline, f"{broker.name} did not load its groups"
            time.sleep(0.05)
    finally:
        peer.close()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("differential")
    kafka = KafkaServer(directory / "kafka", settings={**TEST_SETTINGS, **SETTINGS, **AT_ONCE})
    headrace = HeadraceServer(
        directory / "headrace",
        settings={**HEADRACE_TEST_SETTINGS, **SETTINGS},
        arguments=["--config=durability=os"],
    )
    try:
        kafka.launch()
        headrace.start()
        kafka.wait_ready()
        sides = _broker(kafka), _broker(headrace)
        for side in sides:
            _warm_up(side)
        yield Pair(*sides, common_versions(*(advertised(side.address) for side in sides)))
    finally:
        headrace.stop()
        kafka.stop()
