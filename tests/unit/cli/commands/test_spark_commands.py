"""`headrace spark` and `headrace doctor spark`, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.cli.commands import doctor as cli_doctor
from headrace.findings import Finding
from headrace.spark import doctor
from headrace.spark.versions import spark_version


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_the_command_prints_the_options_for_spark() -> None:
    shown = run("spark", "-b", "h:1", "--topic", "flights")
    assert shown.exit_code == 0
    for part in (
        f"--packages org.apache.spark:spark-sql-kafka-0-10_2.13:{spark_version()}",
        'spark.readStream.format("headrace").option("kafka.bootstrap.servers", "h:1").option("subscribe", "flights")',
    ):
        assert part in shown.output

    facts = json.loads(run("spark", "--format", "json").output)
    assert facts["pyspark"] == spark_version()
    assert facts["headrace"]["packages"] == []
    assert (
        facts["connector"]["settings"]["spark.jars.packages"] == facts["connector"]["packages"][0]
    )
    assert facts["connector"]["read_options"]["kafka.isolation.level"] == "read_committed"


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    def installation() -> Iterator[Finding]:
        yield Finding("Java", "ok", "Java 21")

    monkeypatch.setattr(doctor, "installation", installation)


def test_a_sound_installation(sound: None) -> None:
    shown = run("doctor", "spark")
    assert shown.exit_code == 0
    assert shown.output.splitlines()[1].split() == ["Java", "ok", "Java", "21"]
    assert "broker  absent" in shown.output


def test_a_fault_is_reported_with_its_remedy(sound: None) -> None:
    shown = run("doctor", "spark", "-b", "127.0.0.1:1")
    assert shown.exit_code == 1
    assert "broker  fault" in shown.stdout
    assert "To repair it: Is a broker running there?" in shown.stderr

    found = json.loads(run("doctor", "spark", "-b", "127.0.0.1:1", "--format", "json").stdout)
    assert [each["state"] for each in found] == ["ok", "fault"]
    assert found[1]["remedy"]


def test_a_topic_is_read_by_a_session_of_a_cluster_only(sound: None) -> None:
    assert run("doctor", "spark", "--topic", "t", "-b", "h:1").exit_code == 2
    assert run("doctor", "spark", "--topic", "t", "--session").exit_code == 2


def test_a_session_gets_the_properties_of_the_client(
    sound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def session(*arguments: object) -> str:
        given.extend(arguments)
        return "Spark read"

    monkeypatch.setattr(doctor, "session", session)
    monkeypatch.setattr(cli_doctor, "_broker", lambda where, properties: f"{where}")
    shown = run("doctor", "spark", "--session", "--topic", "t", "-b", "h:1", "-X", "client.id=me")
    assert shown.exit_code == 0
    assert given == [{"bootstrap.servers": "h:1", "client.id": "me"}, "t"]
    assert "session  ok     Spark read" in shown.output
