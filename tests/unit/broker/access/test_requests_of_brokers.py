"""Requests that only brokers may send: other clients need the permission CLUSTER_ACTION, and a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.session import Session
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.security.principal import Principal
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.cluster import SimulatedCluster

ON: dict[str, Any] = {"authorizer_class_name": "headrace", "super_users": "User:broker"}


def of(name: str) -> Session:
    return Session(client_host="10.0.0.1", principal=Principal(name))


def marker_of_a_group(harness: BrokerHarness, session: Session) -> int:
    """End a transaction in `__consumer_offsets`, and return the error code."""
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    topic = WritableTxnMarkerTopic(name=OFFSETS_TOPIC, partition_indexes=[0])
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, topics=[topic])
    response = harness.call(WriteTxnMarkersRequest(markers=[marker]), session=session)
    return int(response.markers[0].topics[0].partitions[0].error_code)


@pytest.fixture
def broker() -> BrokerHarness:
    return SimulatedCluster(1, offsets_topic_num_partitions=1, **ON).brokers[1]


def test_a_super_user_ends_transactions_of_groups_as_a_broker_does(broker: BrokerHarness) -> None:
    assert marker_of_a_group(broker, of("broker")) == ErrorCode.NONE


def test_a_client_without_the_permission_of_brokers_writes_no_markers(
    broker: BrokerHarness,
) -> None:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert marker_of_a_group(broker, of("alice")) == denied
    assert "audit_authorization_denied" in broker.journal.events("warning")


def test_a_client_without_the_permission_of_brokers_adds_no_partitions_for_others(
    broker: BrokerHarness,
) -> None:
    for version in (4, 5):
        response = broker.call(AddPartitionsToTxnRequest(), version, session=of("alice"))
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        response = broker.call(AddPartitionsToTxnRequest(), version, session=of("broker"))
        assert response.error_code == ErrorCode.NONE


def test_a_broker_without_a_cluster_takes_no_client_for_a_broker() -> None:
    alone = BrokerHarness(offsets_topic_num_partitions=1, **ON)
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert marker_of_a_group(alone, of("broker")) == refused
