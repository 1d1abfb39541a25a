"""The replacement for KafkaContainer of testcontainers."""

from __future__ import annotations

import socket

import pytest

from headrace.testing import HeadraceContainer, KafkaContainer


def test_the_container_has_the_interface_of_testcontainers() -> None:
    with KafkaContainer("confluentinc/cp-kafka:7.6.0") as kafka:
        host, port = kafka.get_bootstrap_server().split(":")
        assert (host, int(port)) == (kafka.get_container_host_ip(), kafka.get_exposed_port(9093))
        socket.create_connection((host, int(port)), 5).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), 5)


def test_the_container_can_be_started_and_stopped_without_a_context() -> None:
    kafka = HeadraceContainer().with_kraft().with_name("kafka").start(timeout=30)
    assert kafka.broker is not None
    kafka.stop()
    kafka.stop()
    with pytest.raises(AssertionError, match="call start"):
        kafka.get_bootstrap_server()


def test_the_container_applies_broker_settings_of_the_environment() -> None:
    kafka = (
        KafkaContainer()
        .with_env("KAFKA_NUM_PARTITIONS", "3")
        .with_env("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1")
        .with_env("KAFKA_HEAP_OPTS", "-Xmx512m")
        .with_env("NUM_PARTITIONS", "7")
    )
    with kafka:
        assert kafka.broker is not None
        assert kafka.broker._core.config.num_partitions == 3


def test_an_unknown_method_of_the_container_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="get_logs"):
        _ = HeadraceContainer().get_logs
