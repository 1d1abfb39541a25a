"""A run: batch after batch until there is nothing left, a signal comes, or trying again does not help."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, HeadraceError, TransportError
from headrace.spark.archive import running
from headrace.spark.archive.manifest import write_task
from headrace.spark.archive.running import ArchiveSettings, run
from headrace.spark.archive.table import ConflictError
from headrace.spark.archive.writing import FileTarget
from headrace.types import TopicPartition
from tests.unit.spark.archive.worlds import SCHEMA, World


class Stopped(threading.Event):
    """Time passes without waiting; ends the run after so many waits."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waits = waits
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0)
        if len(self.waited) >= self.waits:
            self.set()
        return self.is_set()


def settings(world: World, **given: Any) -> ArchiveSettings:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "flights"}
    return ArchiveSettings(options, str(world.root), limits=world.limits, **given)


def test_once_ends_at_what_was_there_when_it_began(tmp_path: Path) -> None:
    world = World(tmp_path, max_offsets=4)
    world.cluster.grow("flights", 0, 10)
    work = world.archiver()
    records = []
    for result in run(work, settings(world, once=True), Stopped(100)):
        records.append(result.records)
        world.cluster.grow("flights", 0, 5)  # never to be caught up with
    assert records == [4, 4, 2]


def test_a_run_waits_only_while_little_waits_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    world = World(tmp_path, max_offsets=4)
    world.cluster.grow("flights", 0, 10)
    stopped = Stopped(2)
    results = list(run(world.archiver(), settings(world), stopped, clock=lambda: 5.0))
    assert [result.behind for result in results] == [6, 2, 0]
    assert stopped.waited == [60.0, 60.0]


def test_what_may_pass_is_tried_again_and_what_does_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.cluster.grow("flights", 0, 3)
    work = world.archiver()
    execute = work.execute
    failures: list[HeadraceError] = [TransportError("away"), HeadraceError("a task failed")]

    def failing(*arguments: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return execute(*arguments)

    work.execute = failing
    stopped = Stopped(100)
    assert [result.records for result in run(work, settings(world, once=True), stopped)] == [3]
    assert stopped.waited == [0.5, 1.0]

    world.cluster.grow("flights", 0, 3)
    failures += [HeadraceError("for ever")] * (running.RETRIES + 2)
    with pytest.raises(HeadraceError, match="for ever"):
        list(run(work, settings(world, once=True), Stopped(100)))
    for final in (ConfigError("no"), ConflictError("no")):
        failures[:] = [final]
        with pytest.raises(type(final)):
            list(run(work, settings(world, once=True), Stopped(100)))


def test_a_task_reads_what_the_brokers_have_and_writes_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.cluster.grow("flights", 0, 10)
    source = settings(world).source()
    assert dict(source.client.properties)["isolation.level"] == "read_committed"
    partition = world.archiver().table  # makes the directory
    target = FileTarget(partition.root, SCHEMA)
    from headrace.spark.archive.files import Source  # noqa: PLC0415 - of this test

    flights = Source("flights", "id", 0)
    files = list(write_task(world.cluster, source, target, [(flights, 2, 5), (flights, 5, 10)]))
    assert [(each.file.start, each.file.end, each.file.records) for each in files] == [
        (2, 5, 3),
        (5, 10, 5),
    ]
    assert flights.topic_partition == TopicPartition("flights", 0)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(ConfigError, match="subscribe"):
        ArchiveSettings({"kafka.bootstrap.servers": "x:1"}, str(world.root)).source()
    unknown = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "kafka.no.such": "1"}
    with pytest.raises(ConfigError, match="kafka"):
        ArchiveSettings(unknown, str(world.root)).source()
