"""A user's work with Spark: a program that writes Parquet files, two pipelines, and an archive read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.pipelines.running import session as pipelines_session
from headrace.spark import session
from tests.acceptance.programs.user import lake
from tests.acceptance.user_programs import PROGRAMS, Shell
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics, produce_values

ORDERS = [json.dumps({"id": number, "total": number * 10.0}) for number in range(18)]


def test_files_pipelines_and_an_archive(
    spark: Any, server: Target, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, HEADRACE_PIPELINES=str(tmp_path / "state"))
    at = ["-b", server.bootstrap]
    doctor = shell.json("doctor", "spark")
    assert doctor
    topics.create(1, name="lake-orders")
    shell.run("produce", "lake-orders", *at, lines="\n".join([*ORDERS, "no JSON"]) + "\n")

    lake.fill(spark, server.bootstrap, str(tmp_path))
    rows = lake.read(spark, str(tmp_path))
    assert [(row.id, row.total) for row in rows] == [
        *((number, number * 10.0) for number in range(18)),
        (None, None),
    ]
    assert [bool(row._error) for row in rows] == [False] * 18 + [True]
    produce_values(topics.client, "lake-orders", 0, [18])
    [behind] = shell.json("group", "describe", "lake", *at)
    assert behind["total_lag"] == 1, behind

    # The session that all tests share has a different working directory.
    text = (PROGRAMS / "two_pipelines.py").read_text().replace("tables/", f"{tmp_path}/tables/")
    pipelines = str(tmp_path / "two_pipelines.py")
    (tmp_path / "two_pipelines.py").write_text(text)
    # The commands run in this session. Other tests start them as processes.
    for module, opened in ((session, "local_session"), (pipelines_session, "open_session")):
        monkeypatch.setattr(module, opened, lambda *_arguments, **_named: spark)
        monkeypatch.setattr(module, "stop_session", lambda _session: None)
    monkeypatch.setattr(pipelines_session, "_forget_session", lambda: None)
    planned = shell.run("pipeline", "plan", pipelines, "--no-spark", *at)
    assert "large" in planned
    shell.run("pipeline", "run", pipelines, *at)
    assert {each["name"] for each in shell.json("pipeline", "list")} == {"large", "totals"}

    large = pq.read_table(tmp_path / "tables/large").sort_by("id")
    assert large["id"].to_pylist() == list(range(6, 18))
    lake_table = str(tmp_path / "lake")
    shell.run("archive", "run", "lake-orders", "--table", lake_table, "--once", *at)
    table = DeltaTable(lake_table).to_pyarrow_table().sort_by("offset")
    values = [value.decode() for value in table["value"].to_pylist()]
    assert values[:19] == [*ORDERS, "no JSON"]
    assert len(values) == 20
