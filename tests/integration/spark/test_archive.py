"""Topics are archived and read back on real Spark, with failing tasks and killed commands."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace import Admin
from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.spark.archive.compaction import compact
from headrace.spark.archive.planning import BatchLimits
from headrace.spark.archive.running import ArchiveSettings, archiver, run
from headrace.spark.archive.table import find_table
from headrace.types import TopicPartition
from tests.docs.console import run_shell, steps, users_environment
from tests.integration.spark.conftest import Reader, Topics, produce_values, run_available, sunk

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "archive.md"


def settings(read: Reader, topic: str, table: Path, **given: Any) -> ArchiveSettings:
    options = {"kafka.bootstrap.servers": read.bootstrap, "subscribe": topic}
    return ArchiveSettings(options, str(table), once=True, **given)


def archive(read: Reader, topic: str, table: Path, **given: Any) -> list[int]:
    """Archive the present records. Return the number of records of each batch."""
    chosen = settings(read, topic, table, **given)
    results = run(archiver(chosen, read.spark), chosen, threading.Event())
    return [result.records for result in results]


def offsets(frame: Any) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.collect())


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_topic_becomes_a_table_that_spark_reads_and_that_is_history(
    kind: str, read: Reader, client: BlockingClient, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    for begin in (0, 5):
        produce_values(client, topic, 0, range(begin, begin + 5))
        produce_values(client, topic, 1, range(begin, begin + 3))
        assert sum(archive(read, topic, tmp_path / "table", kind=kind)) == 8
    headers = [(b"key", None, (("trace", b"1"),), 1_700_000_000_000)]
    client.produce(TopicPartition(topic, 1), build_batch(headers))
    assert archive(read, topic, tmp_path / "table", kind=kind) == [1]
    everything = [(0, offset) for offset in range(10)] + [(1, offset) for offset in range(7)]

    table = find_table(tmp_path / "table")
    paths = [str(table.root / file.path) for file in table.snapshot().files]
    plain = read.spark.read.parquet(*paths)
    live = read.batch(topic, includeHeaders="true")
    assert plain.columns == live.columns
    assert sorted(map(str, plain.collect())) == sorted(map(str, live.collect()))
    group = client.committed_offsets(table.snapshot().name)
    assert {each.partition: at.offset for each, at in group.items() if each.topic == topic} == {
        0: 10,
        1: 7,
    }

    assert sum(done.removed for done in compact(table, 1 << 20)) == len(paths)
    assert len(table.snapshot().files) == 2
    produce_values(client, topic, 0, range(10, 12))
    with Admin(read.bootstrap) as admin:
        admin.truncate(topic, {0: 10, 1: 7})
    history = {"archive": str(table.root), "archiveFormat": kind}
    assert offsets(read.batch(topic, **history)) == sorted([*everything, (0, 10), (0, 11)])
    if kind == "iceberg":
        return  # to a stream they are the same
    stream = read.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=9, **history)
    run_available(stream, tmp_path / "checkpoint", tmp_path / "sink")
    assert [row[1:3] for row in sunk(read.spark, tmp_path / "sink")] == sorted(
        [*everything, (0, 10), (0, 11)]
    )


def test_tasks_that_spark_repeats_put_every_record_into_the_table_once(
    read: Reader, client: BlockingClient, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=3)
    for partition in range(3):
        produce_values(client, topic, partition, range(20))
    chosen = settings(read, topic, tmp_path / "table", limits=BatchLimits(max_offsets=30))
    work = archiver(chosen, read.spark)
    in_the_way = tmp_path / "table" / "data" / f"topic-{topic}"
    in_the_way.parent.mkdir()
    in_the_way.write_text("no directory can be made here: every attempt fails")
    with pytest.raises(Exception, match="batch 1 failed"):
        work.run_batch()
    in_the_way.unlink()
    results = list(run(work, dataclasses.replace(chosen, once=True), threading.Event()))
    assert [result.batch for result in results] == [1, 2]
    delta = DeltaTable(str(tmp_path / "table"))
    rows = pq.ParquetDataset(delta.file_uris()).read(columns=["partition", "offset"]).to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (partition, offset) for partition in range(3) for offset in range(20)
    ]


def test_the_command_archives_exactly_once_although_it_is_killed(
    read: Reader, client: BlockingClient, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    for partition in range(2):
        produce_values(client, topic, partition, range(15))
    table = tmp_path / "table"
    command = [sys.executable, "-m", "headrace.cli", "archive", "run", topic, "-b", read.bootstrap]
    command += [
        "--table",
        str(table),
        "--batch-records",
        "10",
        "--interval",
        "100ms",
        "--master",
        "local[1]",
    ]
    command += ["--format", "json", "--spark-log", str(tmp_path / "spark.log")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        os.killpg(process.pid, signal.SIGKILL)
    assert [line["batch"] for line in lines] == [1, 2]
    archive(read, topic, table)
    delta = DeltaTable(str(table))
    rows = pq.ParquetDataset(delta.file_uris()).read(columns=["partition", "offset"]).to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (partition, offset) for partition in range(2) for offset in range(15)
    ]


def masked(text: str, directory: Path) -> list[str]:
    """Return the lines of a text without the parts that differ from run to run."""
    text = text.replace(f"{directory}/", "")
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"-[0-9a-f]{16}\.parquet", "-ATTEMPT.parquet", text)
    text = re.sub(r"(archive-[\w-]+)-[0-9a-f]{6}\b", r"\1-LETTERS", text)
    text = re.sub(r"[\d.]+ (B|KiB)\b", "SIZE", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_the_commands_print_the_output_that_the_page_shows(
    read: Reader,
    client: BlockingClient,
    topics: Topics,
    tmp_path: Path,
) -> None:
    topic = topics.create(partitions=2)
    environment = {**users_environment(), "HEADRACE_BOOTSTRAP": read.bootstrap}
    names: dict[str, Any] = {"spark": read.spark, "bootstrap": read.bootstrap}
    names["directory"] = str(tmp_path)
    produce_values(client, topic, 0, range(20))
    produce_values(client, topic, 1, range(10))
    for step in steps(PAGE.read_text().replace("flights", topic)):
        if step.kind == "sh":
            continue  # tables in a store are in test_archive_stores.py
        if step.kind == "python":
            exec(compile(step.text, str(PAGE), "exec"), names)
            continue
        if "compact" in step.text:
            produce_values(client, topic, 0, range(2))
            produce_values(client, topic, 1, range(2))
            archive(read, topic, tmp_path / "lake" / topic)
        done = run_shell(step.text, tmp_path, environment)
        assert done.returncode == 0, done.stderr
        printed = masked(done.stdout + done.stderr, tmp_path)
        for line in masked("\n".join(step.shown), tmp_path):
            assert line in printed
    assert names["records"].count() == 30
    assert names["history"].count() == 34
