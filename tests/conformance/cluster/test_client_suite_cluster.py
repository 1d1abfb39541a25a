"""A part of the client suite against three brokers; `make conformance TARGET=cluster` runs it all.

Every partition has three replicas, and a write needs two of them. The brokers restart one after the other and are
killed in turn while the groups run: the clients find the new leaders and coordinators, and no acknowledged record is
lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.conformance.clients.observer import Observer
from tests.conformance.clients.scenario import PARTITIONS, GroupLife, check_codec
from tests.conformance.security.every_client import CLIENTS
from tests.fixtures.client_security import NO_SECURITY
from tests.fixtures.targets import Target, make_target, running_target

pytestmark = pytest.mark.java  # one of the clients


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_target(make_target("cluster", tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def observer(target: Target) -> Observer:
    return Observer(target.bootstrap)


def test_every_partition_has_three_replicas_on_three_brokers(
    target: Target, observer: Observer
) -> None:
    observer.create_topic("replicated", PARTITIONS, {})
    metadata = AdminClient({"bootstrap.servers": target.bootstrap}).list_topics("replicated", 20)
    assert sorted(metadata.brokers) == [1, 2, 3]
    partitions = metadata.topics["replicated"].partitions.values()
    assert [sorted(each.replicas) for each in partitions] == [[1, 2, 3]] * PARTITIONS
    assert {each.leader for each in partitions} == {1, 2, 3}


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_writes_and_reads_back_compressed_records(
    target: Target, observer: Observer, tmp_path: Path, name: str
) -> None:
    client = CLIENTS[name](target.bootstrap, tmp_path, NO_SECURITY)
    try:
        check_codec(client, target, observer, "lz4", idempotent=True)
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["confluent-kafka", "headrace"])
def test_group_lives_through_members_and_brokers_coming_and_going(
    target: Target, observer: Observer, tmp_path: Path, name: str
) -> None:
    client = CLIENTS[name](target.bootstrap, tmp_path, NO_SECURITY)
    try:
        GroupLife(client, target, observer).run()
    finally:
        client.close()
