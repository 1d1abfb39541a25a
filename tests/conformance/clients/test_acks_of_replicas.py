"""Producers with acks=2 write to a cluster of three brokers: clients, and the command `headrace produce`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

import headrace
from headrace import aio
from headrace.errors import ApiError, ErrorCode
from headrace.testing.cluster.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        running.create_topic("three", replication_factor=3)
        running.create_topic("one", replication_factor=1)
        running.wait_in_sync()
        yield running


def test_a_producer_waits_for_two_replicas(cluster: Cluster) -> None:
    with headrace.Producer(cluster.bootstrap, acks=2) as producer:
        assert producer.send("three", b"a").result().offset >= 0


def test_an_asyncio_producer_waits_for_two_replicas(cluster: Cluster) -> None:
    async def send() -> int:
        async with aio.Producer(cluster.bootstrap, acks="2") as producer:
            future = await producer.send("three", b"a")
            return (await future).offset

    assert asyncio.run(send()) >= 0


def test_more_acks_than_replicas_fail_the_record(cluster: Cluster) -> None:
    with headrace.Producer(cluster.bootstrap, acks=2) as producer:
        with pytest.raises(ApiError) as refused:
            producer.send("one", b"a").result()
        assert refused.value.code == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize(("acks", "status"), [("2", 0), ("4", 1), ("two", 2)])
def test_the_command_takes_a_number_of_replicas(cluster: Cluster, acks: str, status: int) -> None:
    command = [sys.executable, "-m", "headrace.cli", "produce", "three", "--acks", acks]
    command += ["-b", cluster.bootstrap]
    done = subprocess.run(command, input=b"value\n", capture_output=True, check=False)
    assert done.returncode == status, done.stderr
