"""Batches are archived exactly once, although the process is killed between any two steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.addresses import open_location
from headrace.spark.archive.batches import Archiver
from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, WrittenFile
from headrace.spark.archive.table import create_table, open_table
from headrace.spark.archive.table_format import BatchCommit, ConflictError
from headrace.types import TopicPartition
from tests.unit.spark.archive.archive_harness import SCHEMA, ArchiveHarness

pytestmark = pytest.mark.slow  # not in `make check`

KINDS = ["delta", "iceberg"]


class KilledError(BaseException):
    """Simulates the end of the process. No code of Headrace catches it."""


def drain(archiver: Archiver) -> None:
    while archiver.run_batch() is not None:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_process_continues_the_archive_at_the_end_of_the_table(
    kind: str, tmp_path: Path
) -> None:
    harness = ArchiveHarness(tmp_path, kind, max_offsets=10)
    harness.cluster.grow("flights", 0, 13)
    harness.cluster.grow("flights", 1, 4)
    drain(harness.archiver())
    assert harness.archived() == harness.expected()

    harness.cluster.grow("flights", 1, 5)
    harness.cluster.grow("flights", 2, 1)  # a partition more
    result = harness.archiver().run_batch()
    assert result is not None
    assert (result.batch, result.records, result.behind) == (3, 6, 0)
    assert harness.archived() == harness.expected()
    assert harness.told == {
        TopicPartition("flights", 0): 13,
        TopicPartition("flights", 1): 9,
        TopicPartition("flights", 2): 1,
    }
    assert harness.archiver().run_batch() is None


def before_commit(archiver: Archiver) -> None:
    _replace_append(archiver, lambda _append, _commit: _killed())


def after_commit(archiver: Archiver) -> None:
    def kill(append: Callable[[BatchCommit], None], commit: BatchCommit) -> None:
        append(commit)
        _killed()

    _replace_append(archiver, kill)


def in_the_second_file(archiver: Archiver) -> None:
    execute = archiver.execute

    def kill(*arguments: Any) -> list[WrittenFile]:
        list(execute(*arguments))
        raise KilledError

    archiver.execute = kill


def before_the_group_hears(archiver: Archiver) -> None:
    tell = archiver.commit_offsets

    def kill(offsets: Any) -> None:
        if offsets:  # the first call of all has nothing to report
            _killed()
        tell(offsets)

    archiver.commit_offsets = kill


def _replace_append(archiver: Archiver, step: Callable[..., None]) -> None:
    append = archiver.table.append
    archiver.table.append = lambda commit: step(append, commit)  # type: ignore[method-assign]  # a step of it


def _killed() -> Any:
    raise KilledError


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (before_commit, "delta"),
        (after_commit, "delta"),
        (after_commit, "iceberg"),
        (in_the_second_file, "delta"),
        (before_the_group_hears, "delta"),
    ],
)
def test_a_process_killed_between_two_steps_neither_loses_nor_repeats_records(
    kind: str, step: Callable[[Archiver], None], tmp_path: Path
) -> None:
    harness = ArchiveHarness(tmp_path, kind, max_offsets=10)
    harness.cluster.grow("flights", 0, 14)
    harness.cluster.grow("flights", 1, 6)
    doomed = harness.archiver()
    step(doomed)
    with pytest.raises(KilledError):
        doomed.run_batch()
    drain(harness.archiver())
    assert harness.archived() == harness.expected()
    assert harness.told == {TopicPartition("flights", 0): 14, TopicPartition("flights", 1): 6}


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_a_task_killed_while_it_writes_leaves_no_file_that_counts(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.grow("flights", 0, 9)
    archiver = harness.archiver()
    with monkeypatch.context() as patched:
        if function == "fsync":
            patched.setattr(os, "fsync", lambda _descriptor: _killed())
        else:
            patched.setattr(Path, "rename", lambda *_paths: _killed())
        with pytest.raises(KilledError):
            archiver.run_batch()
    assert harness.archived() == []
    drain(harness.archiver())
    assert harness.archived() == harness.expected()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_committed_again_changes_nothing_and_that_of_another_is_refused(
    kind: str, tmp_path: Path
) -> None:
    harness = ArchiveHarness(tmp_path, kind)
    harness.cluster.grow("flights", 0, 5)
    commits: list[BatchCommit] = []
    first = harness.archiver()
    append = first.table.append

    def noted(commit: BatchCommit) -> None:
        commits.append(commit)
        append(commit)

    first.table.append = noted  # type: ignore[method-assign]  # seen when it is called
    zombie = harness.archiver()
    zombie_execute = zombie.execute

    def overtaken(*arguments: Any) -> Any:
        written = list(zombie_execute(*arguments))
        first.run_batch()
        return written

    zombie.execute = overtaken
    with pytest.raises(ConflictError, match="another archiver"):
        zombie.run_batch()
    append(commits[0])
    assert harness.archived() == harness.expected()


def test_the_state_survives_a_log_that_is_cleaned(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    harness = ArchiveHarness(tmp_path, max_offsets=3)
    harness.cluster.grow("flights", 0, 7)
    drain(harness.archiver())
    DeltaTable(str(harness.root)).create_checkpoint()
    for entry in sorted((harness.root / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    harness.cluster.grow("flights", 0, 2)
    result = harness.archiver().run_batch()
    assert result is not None
    assert result.batch == 4
    assert harness.archived() == harness.expected()


def test_ranges_without_records_advance_the_archive(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path, max_offsets=3)
    harness.holes = {1, 3, 4, 5, 8}
    harness.cluster.grow("flights", 0, 9)
    drain(harness.archiver())
    assert harness.archived() == harness.expected()
    files = open_table("delta", harness.root).snapshot().files
    assert [(file.start, file.end, file.records) for file in files] == [
        (0, 3, 2),
        (3, 6, 0),
        (6, 9, 2),
    ]


def test_a_recreated_topic_is_refused_or_archived_separately(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.grow("flights", 0, 5)
    drain(harness.archiver())
    harness.cluster.remove("flights")
    harness.cluster.grow("flights", 0, 3)
    harness.cluster.ids["flights"] = "another-id"
    with pytest.raises(ConfigError, match=r"flights was deleted and created again.*--recreated"):
        harness.archiver().run_batch()

    drain(harness.archiver(recreated="archive"))
    drain(harness.archiver())  # it is known now
    files = open_table("delta", harness.root).snapshot().files
    assert sorted((file.source.topic_id, file.start, file.end) for file in files) == [
        ("another-id", 0, 3),
        ("id-flights", 0, 5),
    ]


def test_a_batch_of_a_topic_recreated_during_the_read_is_not_committed(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.grow("flights", 0, 5)
    archiver = harness.archiver()
    execute = archiver.execute

    def recreate(*arguments: Any) -> Any:
        harness.cluster.ids["flights"] = "another-id"
        return execute(*arguments)

    archiver.execute = recreate
    with pytest.raises(HeadraceError, match="created again while"):
        archiver.run_batch()
    assert harness.archived() == []


def test_records_deleted_before_archiving_fail_the_batch_or_are_skipped(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    flights = TopicPartition("flights", 0)
    harness.cluster.grow("flights", 0, 5)
    drain(harness.archiver())
    harness.cluster.logs[flights] = (8, 12)
    with pytest.raises(HeadraceError, match=r"offsets 5 to 7 of flights-0 .*--skip-lost"):
        harness.archiver().run_batch()
    drain(harness.archiver(skip_lost=True))
    assert [offset for _, _, offset in harness.archived()] == [0, 1, 2, 3, 4, 8, 9, 10, 11]

    harness.cluster.logs[flights] = (0, 2)
    with pytest.raises(HeadraceError, match="archived up to offset 12"):
        harness.archiver().run_batch()


def test_an_archive_begins_at_the_first_remaining_record(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.logs[TopicPartition("flights", 0)] = (3, 5)
    harness.cluster.ids["flights"] = "id"
    drain(harness.archiver())
    assert [offset for _, _, offset in harness.archived()] == [3, 4]


@pytest.mark.parametrize("wrong", ["a file missing", "a file twice", "an unplanned file"])
def test_a_batch_that_differs_from_its_plan_is_not_committed(wrong: str, tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.grow("flights", 0, 5)
    harness.cluster.grow("flights", 1, 5)
    archiver = harness.archiver()
    execute = archiver.execute

    def damaged(*arguments: Any) -> list[WrittenFile]:
        files = list(execute(*arguments))
        if wrong == "a file missing":
            return files[1:]
        if wrong == "a file twice":
            return [*files, files[0]]
        strange = ArchivedFile(ArchivedPartition("flights", "", 7), 0, 1, "data/x", 1, 1)
        return [*files, WrittenFile(strange)]

    archiver.execute = damaged
    with pytest.raises(HeadraceError, match=r"exactly once|more than was planned"):
        archiver.run_batch()
    assert harness.archived() == []


def test_a_table_of_other_columns_or_another_name_is_refused(tmp_path: Path) -> None:
    create_table("delta", tmp_path / "one", "mine", SCHEMA)
    with pytest.raises(ConfigError, match="is the archive 'mine'"):
        create_table("delta", tmp_path / "one", "yours", SCHEMA)
    with pytest.raises(ConfigError, match="other columns"):
        create_table("delta", tmp_path / "one", None, SCHEMA.remove(0))
    with pytest.raises(ConfigError, match="is a table of format delta"):
        create_table("iceberg", tmp_path / "one", None, SCHEMA)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        create_table("delta", tmp_path / "full", None, SCHEMA)
    with pytest.raises(ConfigError, match="cannot be in ftp://"):
        create_table("delta", "ftp://host/table", None, SCHEMA)
    with pytest.raises(ConfigError, match="there is no archive"):
        open_table("delta", tmp_path / "nowhere")


def test_a_table_whose_creation_was_killed_is_created_again(tmp_path: Path) -> None:
    from headrace.spark.archive.iceberg import CATALOG, _catalog

    (tmp_path / "iceberg").mkdir()
    root = tmp_path / "iceberg"
    _catalog(f"sqlite:///{root / CATALOG}", open_location(root)).create_namespace("headrace")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    for kind in KINDS:
        assert create_table(kind, tmp_path / kind, None, SCHEMA).snapshot().batch == 0


def test_two_tables_of_one_last_name_have_two_groups(tmp_path: Path) -> None:
    names = [
        create_table("delta", tmp_path / each / "flights", None, SCHEMA).snapshot().name
        for each in ("a", "b")
    ]
    assert names[0] != names[1]
    assert all(name.startswith("archive-flights-") for name in names)
    again = create_table("delta", tmp_path / "a" / "flights", None, SCHEMA)
    assert again.snapshot().name == names[0]
    given = create_table("delta", tmp_path / "c" / "flights", "history", SCHEMA)
    assert given.snapshot().name == "history"


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_archivers_create_one_table(kind: str, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    for number in range(3):
        ready = threading.Barrier(3)

        def make(number: int = number, ready: threading.Barrier = ready) -> str:
            ready.wait(30)
            return create_table(kind, tmp_path / str(number), None, SCHEMA).snapshot().name

        with ThreadPoolExecutor(3) as pool:
            names = [each.result() for each in [pool.submit(make) for _ in range(3)]]
        assert len(set(names)) == 1
        if kind == "delta":  # made a second time, it would forget what it has of the first name
            assert DeltaTable(str(tmp_path / str(number))).version() == 0
