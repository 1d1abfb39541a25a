"""Consumers of share groups (KIP-932) end with an error: the broker does not support share groups."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, ShareConsumer

import headrace
from tools.fetch_java import JavaUnavailableError, java_command, kafka_class_path

TIMEOUT_S = 60


@pytest.fixture
def address() -> Iterator[str]:
    with headrace.Broker() as broker:
        broker.create_topic("t", 1)
        broker.publish("t", b"x")
        yield broker.listen()


def test_librdkafkas_consumer_raises_a_fatal_error(address: str) -> None:
    consumer = ShareConsumer({"bootstrap.servers": address, "group.id": "s"})
    consumer.subscribe(["t"])
    give_up_s = time.monotonic() + TIMEOUT_S

    def poll() -> None:
        while time.monotonic() < give_up_s:
            consumer.poll(1.0)

    with pytest.raises(KafkaException, match="API version not supported") as caught:
        poll()
    assert caught.value.args[0].fatal()
    consumer.close()


@pytest.mark.java
def test_javas_consumer_ends_with_a_word_on_share_groups(address: str) -> None:
    try:
        classes = kafka_class_path()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    command = [java_command(), "-Xmx192m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command += ["-cp", classes, "org.apache.kafka.tools.consumer.ConsoleShareConsumer"]
    command += ["--bootstrap-server", address, "--topic", "t", "--group", "s"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        # Kafka's tool stays; a program's poll raises what is logged here.
        ends = threading.Timer(TIMEOUT_S, process.kill)
        ends.start()
        try:
            assert process.stdout is not None
            said = next((line for line in process.stdout if "share group protocol" in line), "")
        finally:
            ends.cancel()
            process.kill()
    assert "The cluster does not support the share group protocol" in said
