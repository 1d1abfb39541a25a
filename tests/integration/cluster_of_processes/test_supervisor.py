"""`headrace serve --brokers N`: a supervisor and its broker processes, with real clients, kills and restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fixtures.cluster_process import ClusterProcess, running_cluster, wait_until

pytestmark = pytest.mark.slow

WAIT_S = 20.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ClusterProcess]:
    with running_cluster(tmp_path, 2) as cluster:
        yield cluster


def create(
    cluster: ClusterProcess, topic: str, partitions: int, replicas: int = 1, **configs: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    new = NewTopic(topic, partitions, replicas, config=settings)
    for created in admin.create_topics([new]).values():
        created.result(WAIT_S)


def leaders(cluster: ClusterProcess, topic: str) -> dict[int, int]:
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, WAIT_S)
    return {number: each.leader for number, each in metadata.topics[topic].partitions.items()}


def in_sync(cluster: ClusterProcess, topic: str, partition: int = 0) -> list[int]:
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, WAIT_S)
    return sorted(metadata.topics[topic].partitions[partition].isrs)


def produce(cluster: ClusterProcess, topic: str, partitions: int, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1})
    errors: list[KafkaError] = []
    for partition in range(partitions):
        for value in values:
            producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: errors.append(error) if error is not None else None,
            )
    assert producer.flush(WAIT_S) == 0
    assert errors == []


def consume(cluster: ClusterProcess, topic: str, partition: int, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "readers"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"only {len(values)} records; log:\n{cluster.log}"
        assert message.error() is None, message.error()
        values.append((message.value() or b"").decode())
    consumer.close()
    return values


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_two_brokers_share_the_partitions_of_a_topic_and_end_in_order(pair: ClusterProcess) -> None:
    assert len(set(pair.addresses)) == 2
    create(pair, "orders", 4)
    assert sorted(leaders(pair, "orders").values()) == [1, 1, 2, 2]
    produce(pair, "orders", 4, ["a", "b"])
    for partition in range(4):
        assert consume(pair, "orders", partition, 2) == ["a", "b"]
    assert pair.stop() == 0
    assert pair.further_output == b""
    assert pair.log.count("clean=True") == 3
    assert not any(psutil.pid_exists(pid) for broker in (1, 2) for pid in pair.pids(broker))


def test_a_consumer_group_reads_over_two_brokers(pair: ClusterProcess) -> None:
    create(pair, "orders", 2)
    produce(pair, "orders", 2, ["a", "b", "c"])
    consumer = Consumer(
        {"bootstrap.servers": pair.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    values = [consumer.poll(WAIT_S) for _ in range(6)]
    assert sorted(str((each.value() or b"").decode()) for each in values if each) == [*"aabbcc"]
    consumer.commit(asynchronous=False)
    consumer.close()


def test_the_records_are_there_after_a_restart_of_the_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2) as cluster:
        create(cluster, "orders", 2)
        produce(cluster, "orders", 2, ["a"])
        cluster_id = cluster.cluster_id
        assert cluster.stop() == 0
        cluster.start()
        assert cluster.cluster_id == cluster_id
        assert [consume(cluster, "orders", partition, 1) for partition in (0, 1)] == [["a"]] * 2


def test_a_killed_broker_is_started_again_on_its_port_with_its_records(
    pair: ClusterProcess,
) -> None:
    create(pair, "orders", 2)
    produce(pair, "orders", 2, ["before"])
    pair.kill_broker(2)
    pair.wait_until_restarted(2)
    assert "broker_process_ended broker=2 exit=SIGKILL restart_in_s=0.25" in pair.log
    port = pair.addresses[1].rpartition(":")[2]
    assert pair.log.count(f"listen=PLAINTEXT://127.0.0.1:{port} ") == 2
    produce(pair, "orders", 2, ["after"])
    for partition in (0, 1):
        assert consume(pair, "orders", partition, 2) == ["before", "after"]


def test_clients_notice_nothing_of_a_killed_leader_if_there_are_three_replicas(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        create(cluster, "orders", 1, 3, min_insync_replicas="2")
        wait_until(lambda: in_sync(cluster, "orders") == [1, 2, 3], lambda: cluster.log)
        values = [str(number) for number in range(2_000)]
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        errors: list[KafkaError] = []
        acknowledged = threading.Event()

        def delivered(error: KafkaError | None, _: object) -> None:
            acknowledged.set()
            if error is not None:
                errors.append(error)

        for number, value in enumerate(values):
            producer.produce("orders", value, partition=0, on_delivery=delivered)
            producer.poll(0.0005)
            if number == len(values) // 2:
                while not acknowledged.is_set():
                    producer.poll(0.01)
                cluster.kill_broker(leaders(cluster, "orders")[0])
        assert producer.flush(WAIT_S) == 0
        assert errors == []
        assert consume(cluster, "orders", 0, len(values)) == values
        wait_until(lambda: in_sync(cluster, "orders") == [1, 2, 3], lambda: cluster.log)


def test_a_broker_that_hangs_is_replaced_and_joins_again(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        create(cluster, "orders", 1, 3, min_insync_replicas="2")
        wait_until(lambda: in_sync(cluster, "orders") == [1, 2, 3], lambda: cluster.log)
        first = leaders(cluster, "orders")[0]
        hanging = psutil.Process(cluster.pids(first)[0])
        hanging.suspend()
        others = [each for number, each in enumerate(cluster.addresses, 1) if number != first]
        cluster.addresses, addresses = others, cluster.addresses
        produce(cluster, "orders", 1, ["while it hangs"])
        assert leaders(cluster, "orders")[0] != first
        hanging.resume()
        wait_until(lambda: in_sync(cluster, "orders") == [1, 2, 3], lambda: cluster.log)
        cluster.addresses = addresses
        assert f"broker_session_ended broker={first} " in cluster.log
        assert cluster.pids(first) == [hanging.pid]
        assert consume(cluster, "orders", 0, 1) == ["while it hangs"]


def test_traffic_goes_on_while_the_supervisor_hangs(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2) as cluster:
        create(cluster, "orders", 2)
        hanging = psutil.Process(cluster.pid)
        hanging.suspend()
        produce(cluster, "orders", 2, ["a"])
        wait_until(lambda: cluster.log.count("broker_lease_ended") == 2, lambda: cluster.log)
        produce(cluster, "orders", 2, ["b", "c"])
        hanging.resume()
        create(cluster, "later", 2)
        assert consume(cluster, "orders", 1, 3) == ["a", "b", "c"]
        assert "broker_session_ended" not in cluster.log


def test_the_brokers_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2) as cluster:
        create(cluster, "orders", 2)
        produce(cluster, "orders", 2, ["a"])
        os.kill(cluster.pid, signal.SIGKILL)
        cluster.wait_until_brokers_ended()
        assert cluster.log.count("metadata_store_lost") == 2
        assert cluster.log.count("clean=True") == 2
        cluster.kill()
        cluster.start()
        assert [consume(cluster, "orders", partition, 1) for partition in (0, 1)] == [["a"]] * 2


def test_ctrl_c_in_a_terminal_ends_the_brokers_in_order(pair: ClusterProcess) -> None:
    os.kill(pair.pid, signal.SIGINT)
    assert pair.wait() == 0
    assert "server_killed" not in pair.log
    assert pair.log.count("clean=True") == 3


def test_a_second_signal_ends_the_brokers_at_once(pair: ClusterProcess) -> None:
    broker = psutil.Process(pair.pids(1)[0])
    broker.suspend()  # it cannot end in order
    pair.signal(signal.SIGTERM)
    wait_until(lambda: "server_stopping signal=SIGTERM" in pair.log, lambda: pair.log)
    pair.signal(signal.SIGTERM)
    assert pair.wait() == 1


def test_dev_keeps_the_data_of_the_brokers_in_a_temporary_directory(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2, memory=True) as cluster:
        create(cluster, "orders", 2)
        produce(cluster, "orders", 2, ["a"])
        directory = Path(cluster.data_name)
        assert (directory / "broker-2").is_dir()
        assert cluster.stop() == 0
        assert not directory.exists()


def test_data_of_a_cluster_and_of_a_single_broker_are_not_mixed_up(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        assert cluster.stop() == 0
    data = str(tmp_path / "data")
    listen = "--listen", "127.0.0.1:0"
    single = run_command("serve", "--data", data, *listen)
    assert single.returncode == 1
    assert (
        f"{data} has the data of a cluster of 3 brokers: start it with --brokers 3" in single.stderr
    )
    fewer = run_command("serve", "--brokers", "2", "--data", data, *listen)
    assert fewer.returncode == 2
    assert "has data of broker 3: start it with --brokers 3 or more" in fewer.stderr
    own = run_command("serve", "--brokers", "2", "--data", f"{data}/broker-1", *listen)
    assert own.returncode == 1
    assert "has the data of a single broker" in own.stderr


def test_a_broker_that_cannot_start_ends_the_supervisor(
    pair: ClusterProcess, tmp_path: Path
) -> None:
    _, _, port = pair.addresses[0].rpartition(":")
    refused = run_command(
        *("serve", "--brokers", "2", "--data", str(tmp_path / "other")),
        *("--listen", f"127.0.0.1:{int(port) - 1}"),
    )
    assert refused.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: " in refused.stderr


def test_an_id_or_all_addresses_are_refused(tmp_path: Path) -> None:
    command = "serve", "--brokers", "2", "--data", str(tmp_path / "data")
    listen = "--listen", "127.0.0.1:0"
    named = run_command(*command, *listen, "--config", "broker.id=7")
    assert named.returncode == 2
    assert (
        "broker.id is for one broker: with --brokers the brokers have the ids 1 to 2"
        in named.stderr
    )
    everywhere = run_command(*command, "--listen", "0.0.0.0:0", "--insecure")
    assert everywhere.returncode == 2
    assert "advertised.listeners has no PLAINTEXT" in everywhere.stderr
    high = run_command(*command, "--listen", "127.0.0.1:65535")
    assert high.returncode == 2
    assert "there are not so many" in high.stderr
