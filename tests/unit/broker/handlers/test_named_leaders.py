"""Fetch and Produce name the new leader with the errors of a broker that does not lead (KIP-951)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.cluster.records import PartitionState
from headrace.errors import ErrorCode
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    with_ids,
)
from tests.unit.broker.test_cluster_views import harness, show

__all__ = ["harness"]  # a fixture


def fetched(harness: BrokerHarness, version: int, epoch: int = -1, **options: Any) -> Any:
    request = fetch_request(("t", 0, 0), max_wait_ms=0, current_leader_epoch=epoch, **options)
    return harness.call(with_ids(harness, request), version)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (3, ErrorCode.FENCED_LEADER_EPOCH)],
)
@pytest.mark.parametrize("session", [-1, 0])
def test_a_fetch_names_the_new_leader_with_its_address(harness, epoch, error, session):
    show(harness, PartitionState(2, 7, (2, 1), (), 1))
    response = fetched(harness, 16, epoch, session_epoch=session)
    part = response.responses[0].partitions[0]
    assert part.error_code == error
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 7)
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "broker-2", 9002)
    assert endpoint.rack == "b"


@pytest.mark.parametrize(("leader", "version"), [(2, 15), (3, 17), (4, 17), (-1, 17)])
def test_a_fetch_names_no_leader_without_an_address(harness, leader, version):
    show(harness, PartitionState(leader, 7, (2, 1), (), 1))
    response = fetched(harness, version)
    assert response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert response.responses[0].partitions[0].current_leader is None
    assert response.node_endpoints == []


def produced(harness: BrokerHarness, version: int, **options: Any) -> Any:
    request = produce_request("t", 0, batch(b"a"), **options)
    return harness.send(with_ids(harness, request), version)


@pytest.mark.parametrize("version", [10, 12, 13])
def test_a_produce_names_the_new_leader_with_its_address(harness, version):
    show(harness, PartitionState(2, 7, (2, 1), (), 1))
    check_leader(produced(harness, version).response)


@pytest.mark.parametrize("acks", [1, 2, -1])
def test_a_produce_that_waits_names_the_leader_that_takes_over(harness, acks):
    show(harness, PartitionState(1, 6, (1, 2), (), harness.broker.services.replicas.registration))
    pending = produced(harness, 10, acks=acks, timeout_ms=60_000)
    assert not pending.done
    show(harness, PartitionState(2, 7, (2, 1), (), 1))
    check_leader(pending.response)


def check_leader(response: Any) -> None:
    part = response.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 7)
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "broker-2", 9002)
    assert endpoint.rack == "b"


@pytest.mark.parametrize(("leader", "version"), [(2, 9), (3, 13), (4, 13), (-1, 13)])
def test_a_produce_names_no_leader_without_an_address(harness, leader, version):
    show(harness, PartitionState(leader, 7, (2, 1), (), 1))
    response = produced(harness, version).response
    part = response.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part.current_leader is None
    assert response.node_endpoints == []


def test_a_produce_that_times_out_names_no_leader(harness):
    show(harness, PartitionState(1, 6, (1, 2), (), harness.broker.services.replicas.registration))
    pending = produced(harness, 13, acks=-1, timeout_ms=10)
    harness.advance(10)
    part = pending.response.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert part.current_leader is None
    assert pending.response.node_endpoints == []
