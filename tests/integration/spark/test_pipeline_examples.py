"""Each example of a pipeline processes a few records; the tests check its sink."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import headrace.pipelines
from headrace.clients.blocking import BlockingClient
from headrace.config.resources import ConfigResourceType
from headrace.pipelines import frames
from headrace.pipelines.checks.declarations import check
from headrace.pipelines.checks.topics import check_topics, create_topics
from headrace.pipelines.loading import load_file
from headrace.pipelines.plan import DefaultCluster
from headrace.pipelines.running.runner import Runner, Signals
from headrace.pipelines.status.state import StateDirectory, Status
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Reader

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "pipelines"


class SharedSessions:
    """The session of all tests, which the pipelines do not close."""

    alive = True

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def get(self) -> Any:
        return self._spark

    def close(self) -> None:
        pass


class StatusRecorder:
    """A reporter that keeps all statuses."""

    def __init__(self) -> None:
        self.changes: list[Status] = []

    def changed(self, status: Status) -> None:
        self.changes.append(status)

    def tick(self, statuses: Sequence[Status]) -> None:
        pass


class Examples:
    """Runs examples on the server under test."""

    def __init__(self, read: Reader, directory: Path) -> None:
        self.read = read
        self.connection = DefaultCluster(read.bootstrap)
        self.directory = directory

    def send(self, topic: str, *values: dict[str, Any]) -> None:
        with headrace.Producer(self.read.bootstrap, serde="json") as producer:
            for value in values:
                producer.send(topic, value)

    def prepare(self, name: str) -> list[Any]:
        declared = load_file(EXAMPLES / f"{name}.py")
        plans = check(
            declared, self.connection, str(self.directory / "checkpoints"), "available_now"
        )
        plans = check_topics(plans, self.connection)
        create_topics(plans, self.connection)
        return plans

    def run(self, plans: list[Any]) -> list[Status]:
        told = StatusRecorder()
        runner = Runner(
            SharedSessions(self.read.spark),  # type: ignore[arg-type]  # what is used of Sessions
            StateDirectory(self.directory / "state"),
            told,
            Signals(),
        )
        assert runner.run(plans), told.changes[-1].error
        return told.changes

    def records(self, topic: str) -> list[tuple[str | None, Any]]:
        """Return keys and JSON of the committed records."""
        frame = self.read.batch(topic, kafka__isolation__level="read_committed")
        rows = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
        return sorted(
            ((key, None if value is None else json.loads(value)) for key, value in rows), key=str
        )


@pytest.fixture
def examples(read: Reader, server: Target, tmp_path: Path) -> Examples:
    return Examples(read, tmp_path)


def at(minute: int) -> str:
    return f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"


def test_windows_are_written_once_when_their_time_is_over(examples: Examples) -> None:
    plans = examples.prepare("windows")
    examples.send(
        "flights",
        {"carrier": "UA", "delay": 10, "at": at(1)},
        {"carrier": "UA", "delay": 20, "at": at(14)},
        {"carrier": "EV", "delay": 5, "at": at(3)},
        {"carrier": "EV", "delay": 0, "at": at(50)},
    )
    examples.run(plans)

    assert examples.records("delays") == [
        (
            "EV",
            {"carrier": "EV", "flights": 1, "delay": 5.0, "until": "2026-01-01T00:15:00.000000Z"},
        ),
        (
            "UA",
            {"carrier": "UA", "flights": 2, "delay": 15.0, "until": "2026-01-01T00:15:00.000000Z"},
        ),
    ]


def test_orders_meet_their_payments(examples: Examples) -> None:
    plans = examples.prepare("join")
    examples.send("orders", *({"id": n, "euros": n * 1.5, "at": at(n)} for n in (1, 2, 3)))
    examples.send(
        "payments", {"order_id": 1, "paid_at": at(30)}, {"order_id": 2, "paid_at": at(90)}
    )
    examples.run(plans)

    assert examples.records("paid-orders") == [
        ("1", {"id": 1, "euros": 1.5, "paid_at": "2026-01-01T00:30:00.000000Z"})
    ]


def test_an_event_that_was_sent_twice_comes_once_over_batches_and_runs(examples: Examples) -> None:
    plans = examples.prepare("deduplicate")
    event = {"id": "a", "user": "ann", "at": at(1)}
    examples.send("raw-events", event, event, {"id": "b", "user": "ben", "at": at(2)})
    examples.run(plans)
    examples.send("raw-events", event, {"id": "c", "user": "ann", "at": at(3)})
    examples.run(plans)

    assert [value["id"] for _, value in examples.records("events")] == ["a", "c", "b"]


def test_flights_get_the_names_of_a_table(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TABLES", str(tmp_path))
    spark = examples.read.spark
    spark.createDataFrame([("UA", "United")], "carrier STRING, name STRING").write.parquet(
        str(tmp_path / "airlines")
    )
    plans = examples.prepare("enrich")
    examples.send("flights", {"carrier": "XX", "delay": 1, "at": at(1)})
    examples.run(plans)

    rows = spark.read.parquet(str(tmp_path / "flights")).where("carrier IN ('XX', 'UA')").collect()
    assert {(row["carrier"], row["name"], str(row["day"])) for row in rows} >= {
        ("XX", None, "2026-01-01")
    }
    assert all(row["name"] == "United" for row in rows if row["carrier"] == "UA")


def test_a_delta_table_is_read_according_to_its_log(examples: Examples, tmp_path: Path) -> None:
    path, spark = str(tmp_path / "delta"), examples.read.spark
    (plan,) = examples.prepare("sessions")
    table = pa.table({"carrier": ["UA", "EV"], "count": [1, 2]})
    deltalake.write_deltalake(path, table.slice(0, 0))
    source = headrace.pipelines.table(path, format="delta")
    assert frames.read(spark, source, plan).collect() == []

    deltalake.write_deltalake(path, table, mode="append")
    deltalake.write_deltalake(path, table, mode="overwrite")
    frame = frames.read(spark, source, plan)
    assert sorted(tuple(row) for row in frame.collect()) == [("EV", 2), ("UA", 1)]


def test_clicks_become_visits(examples: Examples) -> None:
    plans = examples.prepare("sessions")
    clicks = [("ann", 1), ("ann", 4), ("ann", 12), ("ben", 2), ("ben", 60)]
    examples.send(
        "clicks", *({"user": user, "page": "/", "at": at(minute)} for user, minute in clicks)
    )
    examples.run(plans)

    assert [(key, value["clicks"]) for key, value in examples.records("visits")] == [
        ("ann", 1),
        ("ann", 2),
        ("ben", 1),
    ]


def test_changes_become_a_compacted_topic_with_tombstones(
    examples: Examples, client: BlockingClient
) -> None:
    plans = examples.prepare("customers")
    examples.send(
        "customer-changes",
        {"op": "insert", "id": 1, "name": "Ann", "city": "Ulm", "version": 1},
        {"op": "update", "id": 1, "name": "Ann", "city": "Bonn", "version": 2},
        {"op": "insert", "id": 2, "name": "Ben", "city": "Kiel", "version": 1},
        {"op": "delete", "id": 2, "name": None, "city": None, "version": 2},
    )
    changes = examples.run(plans)

    assert examples.records("customers") == [
        ("1", {"id": 1, "name": "Ann", "city": "Bonn"}),
        ("2", None),
    ]
    configs = client.describe_configs(ConfigResourceType.TOPIC, ["customers"])["customers"]
    assert {entry.name: entry.value for entry in configs}["cleanup.policy"] == "compact"
    assert [each.state for each in changes][-1] == "finished"
    last = changes[-1].progress
    assert last is not None
    assert (last["input_rows"], last["lag_records"]) == (4, 0)
