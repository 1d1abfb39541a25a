"""`serve` and `dev` with settings of Kafka: a `server.properties`, the image's variables, users in JAAS."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace import Admin
from headrace.errors import AuthenticationError
from tests.fixtures.processes import ServerProcess

COMBINED = """\
process.roles=broker,controller
node.id=5
controller.quorum.voters=5@localhost:9093
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INNER:SASL_PLAINTEXT
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:9093
background.threads=10
sasl.kerberos.min.time.before.relogin=60000
num.partitions=2
log.retention.hours=168
"""
LOGIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="b" '
    'user_broker="b" user_alice="alice-secret";'
)


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def properties(directory: Path, text: str) -> str:
    path = directory / "server.properties"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_variables_of_the_image_and_a_file_of_a_combined_broker(
    tmp_path: Path, command: str
) -> None:
    port = unused_port()
    server = ServerProcess(
        None if command == "dev" else tmp_path / "data",
        port=port,
        log_path=tmp_path / "log",
        arguments=["--config-file", properties(tmp_path, COMBINED.format(port=port))],
        environment={
            "KAFKA_NUM_PARTITIONS": "7",
            "KAFKA_LOG_RETENTION_MS": "1h",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "5@localhost:9093",
            "KAFKA_OPTS": "-Djava.security.manager",
            "KAFKA_NUM_PARTITONS": "9",
        },
    )
    with server:
        client = AdminClient({"bootstrap.servers": server.bootstrap})
        asked = client.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "5")])
        configs = next(iter(asked.values())).result(timeout=20)
        assert configs["num.partitions"].value == "7"
        assert configs["log.retention.ms"].value == "3600000"
        assert configs["broker.id"].value == "5"
        assert "config_ignored" in server.log
        assert "background.threads" in server.log
        assert "KAFKA_NUM_PARTITONS" in server.log
        assert "did you mean KAFKA_NUM_PARTITIONS?" in server.log
        assert "KAFKA_OPTS" not in server.log


def test_users_of_plain_in_jaas_log_in(tmp_path: Path) -> None:
    text = (
        "listeners=INNER://127.0.0.1:0\nlistener.security.protocol.map=INNER:SASL_PLAINTEXT\n"
        "sasl.enabled.mechanisms=PLAIN\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
        f"listener.name.inner.plain.sasl.jaas.config={LOGIN}\n"
    )
    server = ServerProcess(
        tmp_path / "data",
        host="INNER://127.0.0.1",
        log_path=tmp_path / "log",
        arguments=["--config-file", properties(tmp_path, text)],
    )
    with server:
        address = f"127.0.0.1:{server.port}"
        common: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        with Admin(address, sasl_username="alice", sasl_password="alice-secret", **common) as admin:
            assert admin.topics() == []
        java: dict[str, Any] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": LOGIN,
        }
        with Admin(address, **java) as admin:
            assert admin.topics() == []
        for user, password in (("alice", "b"), ("bob", "b"), ("alice", "alice-secret ")):
            with (
                pytest.raises(AuthenticationError),
                Admin(address, sasl_username=user, sasl_password=password, **common) as admin,
            ):
                admin.topics()
        librdkafka = AdminClient(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": "alice-secret",
            }
        )
        assert librdkafka.list_topics(timeout=10).topics == {}
        assert "alice-secret" not in server.log
