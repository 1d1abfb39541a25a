"""`headrace serve --zookeeper`: processes of one cluster, with real clients, a real ensemble, kills and stops."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from tests.fixtures.cluster_process import wait_until
from tests.fixtures.processes import ServerProcess
from tests.fixtures.zookeeper import ZooKeeper

pytestmark = pytest.mark.slow

WAIT_S = 30.0
Brokers = Sequence[ServerProcess]


def broker(directory: Path, number: int, connect: str, *arguments: str) -> ServerProcess:
    return ServerProcess(
        directory / f"data-{number}",
        log_path=directory / f"broker-{number}.log",
        arguments=[
            *("--zookeeper", connect, "--broker-id", str(number), "--rack", f"rack-{number}"),
            # Without a guard these tests kill the broker by the id of the process that they have started, and the
            # session has to end by itself. test_guard.py has brokers with a guard.
            *("--config", "zookeeper.session.timeout.ms=1500", "--no-guard", *arguments),
        ],
    )


@pytest.fixture
def brokers(single: ZooKeeper, tmp_path: Path) -> Iterator[Brokers]:
    connect = f"{single.address}/{tmp_path.name}"
    made = [broker(tmp_path, number, connect) for number in (1, 2, 3)]
    with ExitStack() as stack:
        for each in made:
            stack.callback(each.kill)
            each.start()
        yield made


def bootstrap(brokers: Brokers) -> str:
    return ",".join(each.bootstrap for each in brokers)


def admin(brokers: Brokers) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap(brokers)})


def create(brokers: Brokers, topic: str, partitions: int = 1) -> None:
    config = {"min.insync.replicas": "2"}
    new = NewTopic(topic, partitions, 3, config=config)
    client = admin(brokers)  # its calls end with it
    for created in client.create_topics([new]).values():
        created.result(WAIT_S)
    wait_until(lambda: in_sync(brokers, topic) == [1, 2, 3], lambda: logs(brokers))


def leader(brokers: Brokers, topic: str, partition: int = 0) -> int:
    found = admin(brokers).list_topics(topic, WAIT_S).topics[topic]
    return int(found.partitions[partition].leader)


def in_sync(brokers: Brokers, topic: str) -> list[int]:
    found = admin(brokers).list_topics(topic, WAIT_S).topics[topic]
    return sorted(set.intersection(*(set(each.isrs) for each in found.partitions.values())))


def logs(brokers: Brokers) -> str:
    return "\n".join(each.log for each in brokers)


def produce(brokers: Brokers, values: list[str], midway: object = None) -> None:
    """Produce to partition 0 of `orders`, and call `midway` when a part of the records is acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap(brokers), "enable.idempotence": True, "linger.ms": 5}
    )
    errors: list[KafkaError] = []
    acknowledged: list[str] = []

    def delivered(error: KafkaError | None, message: object) -> None:
        acknowledged.append("")
        if error is not None:
            errors.append(error)

    for number, value in enumerate(values):
        producer.produce("orders", value, partition=0, on_delivery=delivered)
        producer.poll(0)
        if callable(midway) and number == len(values) // 2:
            while not acknowledged:
                producer.poll(0.01)
            midway()
    assert producer.flush(WAIT_S) == 0, logs(brokers)
    assert errors == []


def consume(brokers: Brokers, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap(brokers), "group.id": "readers"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"only {len(values)} records; log:\n{logs(brokers)}"
        assert message.error() is None, message.error()
        values.append((message.value() or b"").decode())
    consumer.close()
    return values


VALUES = [str(number) for number in range(1_000)]


def test_a_producer_notices_nothing_of_a_killed_leader(brokers: Brokers) -> None:
    create(brokers, "orders")
    first = leader(brokers, "orders")
    produce(brokers, VALUES, brokers[first - 1].kill)
    assert leader(brokers, "orders") != first
    assert consume(brokers, len(VALUES)) == VALUES
    brokers[first - 1].start()
    wait_until(lambda: in_sync(brokers, "orders") == [1, 2, 3], lambda: logs(brokers))


def test_leadership_moves_before_a_broker_stops(brokers: Brokers) -> None:
    create(brokers, "orders", 6)
    stopped = leader(brokers, "orders")

    def stop() -> None:
        assert brokers[stopped - 1].stop(40) == 0

    produce(brokers, VALUES, stop)
    assert "leaders_not_moved" not in brokers[stopped - 1].log
    left = [each for each in brokers if each.running]
    assert stopped not in {leader(left, "orders", partition) for partition in range(6)}
    assert consume(left, len(VALUES)) == VALUES


def test_the_ready_line_names_cluster_and_broker(brokers: Brokers) -> None:
    named = [re.search(rb" cluster=(\S+) broker=(\d+)\n", each.ready_line) for each in brokers]
    assert [match[2] for match in named if match] == [b"1", b"2", b"3"]
    assert len({match[1] for match in named if match}) == 1


def test_the_cluster_is_there_after_a_restart_of_all_brokers(brokers: Brokers) -> None:
    create(brokers, "orders")
    produce(brokers, VALUES)
    for each in brokers:
        each.kill()
    for each in brokers:
        each.start()
    assert consume(brokers, len(VALUES)) == VALUES


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "serve", "--listen", "127.0.0.1:0", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_another_broker_with_an_id_that_is_taken_is_refused(
    single: ZooKeeper, tmp_path: Path
) -> None:
    connect = f"{single.address}/{tmp_path.name}"
    first = broker(tmp_path, 1, connect)
    with first:
        other = refused(
            *("--data", str(tmp_path / "other"), "--zookeeper", connect, "--broker-id", "1")
        )
        assert other.returncode == 2
        assert "another broker.id" in other.stderr
        assert first.running


def test_wrong_usage_is_refused(tmp_path: Path) -> None:
    data = "--data", str(tmp_path / "data")
    nameless = refused(*data, "--zookeeper", "127.0.0.1:1")
    assert nameless.returncode == 2
    assert "zookeeper.connect=127.0.0.1:1 needs broker.id (--broker-id)" in nameless.stderr
    both = refused(*data, "--zookeeper", "127.0.0.1:1", "--brokers", "2")
    assert both.returncode == 2
    assert "--brokers has a metadata store of its own" in both.stderr
    timeout = "--config", "zookeeper.connection.timeout.ms=500"
    silent = refused(*data, "--zookeeper", "127.0.0.1:1", "--broker-id", "1", *timeout)
    assert silent.returncode == 1
    assert "127.0.0.1:1" in silent.stderr


def test_a_properties_file_of_kafka_names_cluster_rack_and_credentials(
    single: ZooKeeper, tmp_path: Path
) -> None:
    connect = f"{single.address}/{tmp_path.name}"
    settings = tmp_path / "server.properties"
    settings.write_text(
        f"zookeeper.connect={connect}\nnode.id=3\nbroker.rack=a\nzookeeper.set.acl=true\n"
        "headrace.zookeeper.digest.user=broker\nheadrace.zookeeper.digest.password=s3cret\n"
    )
    server = ServerProcess(
        tmp_path / "data",
        log_path=tmp_path / "log",
        arguments=["--config-file", str(settings), "--broker-id", "7"],
    )
    with server:
        assert server.ready_line.endswith(b" broker=7\n")
        assert list(admin([server]).list_topics(timeout=WAIT_S).brokers) == [7]
        stranger = KazooClient(hosts=single.address)
        stranger.start(WAIT_S)
        with pytest.raises(NoAuthError):
            stranger.create(f"/{tmp_path.name}/mine")
        stranger.stop()
        stranger.close()
    assert "s3cret" not in server.log
