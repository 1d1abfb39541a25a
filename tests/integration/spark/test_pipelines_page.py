"""The pipelines of docs/guides/pipelines.md have no problems, and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace
from headrace.cli import main
from headrace.cli.commands.pipeline import run
from headrace.pipelines.checks.declarations import check
from headrace.pipelines.checks.topics import check_topics, create_topics
from headrace.pipelines.loading import load_file
from headrace.pipelines.plan import DefaultCluster
from headrace.pipelines.running.runner import Runner, Signals
from headrace.pipelines.status.metrics import as_text
from headrace.pipelines.status.state import StateDirectory
from tests.integration.spark.conftest import Reader
from tests.integration.spark.test_pipeline_examples import SharedSessions, StatusRecorder

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "pipelines.md"


def test_the_pipelines_of_the_page_run(
    read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {
        name: f"page-{name}" for name in ("flights", "delays", "averages", "changes", "customers")
    }
    text = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    for name, own in names.items():
        text = text.replace(f'topic("{name}"', f'topic("{own}"')
    (tmp_path / "page.py").write_text(text.replace('"tables/', f'"{tmp_path}/tables/'))
    airlines = read.spark.createDataFrame([("UA", "United")], "carrier STRING, name STRING")
    airlines.write.parquet(str(tmp_path / "tables" / "airlines"))
    connection = DefaultCluster(read.bootstrap)
    plans = check(load_file(tmp_path / "page.py"), connection, None, "available_now")
    plans = check_topics(plans, connection)
    create_topics(plans, connection)
    with headrace.Producer(read.bootstrap, serde="json") as producer:
        for delay, at in ((10, "00:01"), (30, "00:02"), (0, "02:00")):
            flight = {"carrier": "UA", "delay": delay, "at": f"2026-01-01T{at}:00Z"}
            producer.send(names["flights"], flight)
        for version, op in enumerate(["insert", "delete"]):
            producer.send(names["changes"], {"op": op, "id": 7, "name": "Ann", "version": version})
    state = StateDirectory(tmp_path / "state")
    sessions: Any = SharedSessions(read.spark)
    assert Runner(sessions, state, StatusRecorder(), Signals()).run(plans)

    def values(topic: str) -> list[tuple[str, str | None]]:
        frame = read.batch(names[topic], kafka__isolation__level="read_committed")
        rows = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
        return [(key, value) for key, value in rows]

    assert values("delays") == [
        ("UA", '{"carrier":"UA","delay":20.0,"end":"2026-01-01T00:15:00.000000Z"}')
    ]
    assert values("averages") == [("UA", '{"carrier":"UA","delay":13.333333333333334}')]
    assert values("customers") == [("7", None)]
    named = read.spark.read.parquet(str(tmp_path / "tables" / "named"))
    assert [row["name"] for row in named.collect()] == ["United"] * 3


def test_every_option_of_run_is_on_the_page() -> None:
    shared = {"bootstrap", "config_file", "properties", "file"}
    for parameter in run.params:
        if parameter.name not in shared and not getattr(parameter, "hidden", False):
            name = parameter.opts[0] if parameter.param_type_name == "option" else "NAME..."
            assert f"`{name}" in PAGE.read_text(), name


def test_every_metric_is_on_the_page() -> None:
    for line in as_text([]).splitlines():
        assert f"`{line.split()[2]}`" in PAGE.read_text(), line


def test_every_command_of_the_page_exists() -> None:
    for name in set(re.findall(r"headrace pipeline ([a-z]+)", PAGE.read_text())):
        assert CliRunner().invoke(main, ["pipeline", name, "--help"]).exit_code == 0, name
