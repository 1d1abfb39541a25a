"""Three brokers in one process, with clients over TCP: what they know of each other, and faults."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import ClosedError, ConfigError, ErrorCode
from headrace.protocol.codec import Message
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.server.log import TextFormatter
from headrace.testing.cluster.cluster import Cluster
from headrace.types import TopicPartition


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


def known(cluster: Cluster, broker: int) -> list[int]:
    """Return the live brokers that a broker knows."""
    node = cluster._nodes[broker]
    return sorted(node.run(lambda service: list(service.broker.services.membership.live)))


def ask(
    cluster: Cluster,
    source: int,
    target: int,
    request: Message | None = None,
    wait_ms: int = 5_000,
) -> Any:
    """Send a request from one broker to another, and return the response or the error."""
    answers: list[Any] = []

    def send(service: Any) -> None:
        deadline_ms = service.hub.now_ms + wait_ms
        peers = service.broker.services.transactions.remote._peers
        peers.send(target, request or MetadataRequest(topics=[]), deadline_ms).on_done(
            answers.append
        )

    cluster._nodes[source].run(send)
    cluster.wait_until(lambda: answers)
    return answers[0]


def test_three_brokers_know_each_other_in_less_than_a_second() -> None:
    began_s = time.monotonic()
    with Cluster(3) as cluster:
        assert time.monotonic() - began_s < 1.0
        assert [known(cluster, each) for each in (1, 2, 3)] == [[1, 2, 3]] * 3


def test_a_client_writes_and_reads(cluster: Cluster) -> None:
    with headrace.Admin(cluster.address(2)) as admin:
        admin.create_topic("t", 1)
    assert cluster.leader("t") in cluster.running
    for each in (1, 2, 3):
        with headrace.Producer(cluster.address(each)) as producer:
            assert producer.send("t", b"a").result().offset == each - 1
    cluster.wait_in_sync("t")


def test_brokers_ask_each_other_over_tcp_until_the_link_is_cut(cluster: Cluster) -> None:
    assert ask(cluster, 1, 2).brokers
    cluster.cut(1, 2)
    assert ask(cluster, 1, 2, wait_ms=100).code == ErrorCode.REQUEST_TIMED_OUT
    assert ask(cluster, 2, 1, wait_ms=100).code == ErrorCode.REQUEST_TIMED_OUT
    assert ask(cluster, 1, 3).brokers
    cluster.heal()
    assert ask(cluster, 1, 2).brokers


def test_a_killed_broker_is_gone_until_it_is_started_again(cluster: Cluster) -> None:
    with headrace.Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", 1)
    killed = cluster.leader("t")
    others = [each for each in (1, 2, 3) if each != killed]
    address = cluster.address(killed)
    with headrace.Producer(address) as producer:
        producer.send("t", b"a").result()
    cluster.kill(killed)
    assert cluster.running == others
    cluster.wait_until(lambda: known(cluster, others[0]) == others)
    assert ask(cluster, others[0], killed, wait_ms=200).code == ErrorCode.BROKER_NOT_AVAILABLE
    cluster.restart(killed)
    assert cluster.address(killed) == address
    cluster.wait_until(lambda: known(cluster, others[0]) == [1, 2, 3])
    with headrace.Producer(address) as producer:
        assert producer.send("t", b"b").result().offset == 1, "the files survive the process"


def test_a_killed_broker_is_fenced_with_its_address_and_its_rack() -> None:
    with Cluster(3, racks=["a", "b", "c"]) as cluster:
        host, _, port = cluster.address(3).rpartition(":")
        cluster.kill(3)
        cluster.wait_until(lambda: known(cluster, 1) == [1, 2])
        described = ask(cluster, 1, 2, DescribeClusterRequest(include_fenced_brokers=True))
    assert [(each.broker_id, each.is_fenced) for each in described.brokers] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    fenced = described.brokers[2]
    assert (fenced.host, fenced.port, fenced.rack) == (host, int(port), "c")


def test_the_session_of_a_paused_broker_expires() -> None:
    with Cluster(2, session_timeout_ms=100) as cluster:
        cluster.pause(2)
        cluster.wait_until(lambda: known(cluster, 1) == [1])
        cluster.resume(2)
        assert known(cluster, 2) == [1, 2], "it learns of the end of its session by its next commit"


def test_the_session_of_a_broker_without_the_metadata_store_expires() -> None:
    with Cluster(2, session_timeout_ms=100) as cluster:
        cluster.cut_store(2)
        cluster.wait_until(lambda: known(cluster, 1) == [1])
        assert known(cluster, 2) == [1, 2]


def test_a_cluster_works_in_a_coroutine() -> None:
    async def test() -> None:
        async with Cluster(2) as cluster, headrace.aio.Admin(cluster.bootstrap) as admin:
            assert await admin.topics() == []

    asyncio.run(test())


def test_a_topic_of_the_cluster_is_served_when_create_topic_returns(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=3, configs={"retention.ms": 1000}, serde="json")
    for each in (1, 2, 3):
        with headrace.Producer(cluster.address(each), retries=0) as producer:
            for partition in range(3):
                producer.send("t", {"by": each}, partition=partition).result()
    assert [record.value["by"] for record in cluster.messages("t", 0)] == [1, 2, 3]
    assert len(cluster.messages("t")) == 9


def test_published_records_are_read_with_the_serde_of_the_topic(cluster: Cluster) -> None:
    cluster.create_topic("t", serde="json")
    assert cluster.publish("t", {"a": 1}, key=b"k").offset == 0
    (record,) = cluster.messages("t")
    assert (record.key, record.value) == (b"k", {"a": 1})


def test_a_wait_for_a_group_ends_when_it_has_committed_the_ends(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    cluster.publish("t", b"a", partition=1)
    with headrace.Consumer(
        cluster.bootstrap, group="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(1.0):
            pass
        with pytest.raises(TimeoutError, match="group 'g' has the lag"):
            cluster.wait_caught_up("g", "t", timeout_s=0)
        consumer.commit()
        cluster.wait_caught_up("g", "t")
    assert cluster.committed("g")[TopicPartition("t", 1)] == 1


def test_records_of_a_partition_without_a_leader_are_not_waited_for_without_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t", 1, replication_factor=1)
    cluster.publish("t", b"a")
    poll = headrace.Consumer.poll
    paused: list[int] = []

    def pause_and_poll(consumer: headrace.Consumer, *arguments: Any, **named: Any) -> Any:
        if not paused:
            paused.append(cluster.leader("t", 0))
            cluster.pause(paused[0])
        return poll(consumer, *arguments, **named)

    monkeypatch.setattr(headrace.Consumer, "poll", pause_and_poll)
    with pytest.raises(TimeoutError, match="not read: t-0 up to offset 1"):
        cluster.messages("t", timeout_s=0.5)


def test_a_wait_names_the_replica_that_is_not_in_sync(cluster: Cluster) -> None:
    cluster.create_topic("t")
    leader = cluster.leader("t")
    cluster.kill(leader)
    with pytest.raises(TimeoutError, match=f"t-0: .*{leader}"):
        cluster.wait_in_sync(timeout_s=0)
    cluster.restart(leader)
    cluster.wait_in_sync()


def test_wrong_use_has_clear_errors(cluster: Cluster) -> None:
    for wrong in (cluster.kill, cluster.restart, cluster.pause, cluster.cut_store, cluster.address):
        with pytest.raises(ConfigError, match=r"there is no broker 4: the cluster has 1 to 3"):
            wrong(4)
    with pytest.raises(ConfigError, match="connects two brokers"):
        cluster.cut(1, 1)
    with pytest.raises(ConfigError, match="there is no listener 'SSL', but PLAINTEXT"):
        cluster.address(1, "SSL")
    cluster.pause(1)
    with pytest.raises(ClosedError, match=r"broker 1 is paused: resume\(1\)"):
        cluster.cut_store(1)
    with pytest.raises(ClosedError, match="is paused"):
        cluster.pause(1)
    cluster.kill(1)
    for refused in (cluster.kill, cluster.pause, cluster.cut_store):
        with pytest.raises(ClosedError, match=r"broker 1 does not run: restart\(1\) starts it"):
            refused(1)
    cluster.stop(1)
    cluster.resume(1)
    cluster.heal()
    assert cluster.running == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"brokers": 0}, "one broker or more"),
        ({"brokers": 2, "racks": ["a"]}, "racks has 1 names for 2 brokers"),
        ({"configs": {"listeners": "PLAINTEXT://127.0.0.1:9092"}}, "Use port 0"),
        ({"configs": {"listeners": "PLAINTEXT://0.0.0.0:0"}}, "refusing to listen"),
        ({"configs": {"no.such": 1}}, "no.such"),
        ({"brokers": "3"}, "brokers"),
    ],
)
def test_a_wrong_configuration_is_refused_before_a_start(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cluster(**arguments)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
def test_the_end_of_a_cluster_ends_its_threads_and_sockets() -> None:
    threads, descriptors = set(threading.enumerate()), open_files()
    clusters = [Cluster(3), Cluster(3)]
    for cluster in clusters:
        with cluster:
            cluster.create_topic("t")
            cluster.publish("t", b"a")
            cluster.kill(1)
            cluster.pause(2)
            cluster.cut_store(3)
    clusters[0].close()
    gc.collect()
    assert set(threading.enumerate()) == threads
    assert open_files() <= descriptors


def test_a_failed_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set(threading.enumerate())
    cluster = Cluster(2)
    monkeypatch.setattr(cluster._nodes[2], "_connect", None)
    with pytest.raises(TypeError):
        cluster.start()
    assert cluster.running == []
    assert set(threading.enumerate()) == threads


def test_the_port_of_a_killed_broker_is_kept_for_it(cluster: Cluster) -> None:
    cluster.kill(1)
    port = int(cluster.address(1).rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", port))


def test_the_session_of_a_broker_that_ends_without_the_metadata_store_expires() -> None:
    with Cluster(2, session_timeout_ms=100) as cluster:
        cluster.cut_store(2)
        cluster.kill(2)
        assert known(cluster, 1) == [1, 2]
        cluster.wait_until(lambda: known(cluster, 1) == [1])


def test_a_broker_has_every_configured_listener() -> None:
    configs = {
        "listeners": "ONE://127.0.0.1:0,TWO://localhost:0",
        "listener.security.protocol.map": "ONE:PLAINTEXT,TWO:PLAINTEXT",
    }
    with Cluster(2, configs=configs) as cluster:
        assert cluster.address(1, "TWO").startswith("localhost:")
        assert len({cluster.address(each, name) for each in (1, 2) for name in ("ONE", "TWO")}) == 4
        with headrace.Admin(cluster.address(1, "TWO")) as admin:
            nodes = admin.describe_cluster().brokers
            assert sorted(f"{each.host}:{each.port}" for each in nodes) == sorted(
                cluster.address(each, "TWO") for each in (1, 2)
            )


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_leaves_the_cluster_to_its_parent(cluster: Cluster) -> None:
    cluster.create_topic("t")
    child = os.fork()
    if not child:
        code = 1
        try:
            cluster.kill(1)
        except ClosedError:
            cluster.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    cluster.publish("t", b"a")


def test_a_cluster_leaves_the_loggers_of_the_program_alone() -> None:
    names = ("headrace", "headrace.audit")
    before = [logging.getLogger(name).level for name in names]
    with Cluster(1):
        assert [logging.getLogger(name).level for name in names] == before


def test_each_log_line_has_the_id_of_its_broker(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"), Cluster(2):
        pass
    lines = [record for record in caplog.records if record.getMessage() == "broker_registered"]
    assert sorted(record.name for record in lines) == ["headrace.broker.1", "headrace.broker.2"]
    texts = sorted(TextFormatter().format(record).split(" ", 2)[2] for record in lines)
    assert texts[1].startswith("broker_registered broker=2 broker_epoch="), texts


def test_a_broker_that_is_added_gets_new_partitions() -> None:
    with Cluster(2, racks=["a", "b"]) as cluster:
        cluster.create_topic("before")
        assert cluster.add_broker("c") == 3
        assert [known(cluster, each) for each in (1, 2, 3)] == [[1, 2, 3]] * 3
        cluster.create_topic("after", replication_factor=3)
        cluster.publish("after", b"a")
        cluster.wait_in_sync()
        assert sorted(cluster.isr("after")) == [1, 2, 3]
        assert sorted(cluster.replicas("before")) == [1, 2]
        assert cluster.bootstrap.count(",") == 2
        cluster.kill(3)
        cluster.restart(3)
        cluster.wait_in_sync()


def test_a_broker_that_is_added_before_the_start_starts_with_the_others() -> None:
    cluster = Cluster(1)
    assert cluster.add_broker() == 2
    with cluster:
        assert cluster.running == [1, 2]
