"""`headrace archive` without a broker and without Spark: tables, and what is refused before anything starts."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace import spark
from headrace.cli import main
from headrace.cli.commands.archive import _stopped_by_signals
from headrace.spark import archive
from tests.unit.spark.archive.archive_harness import ArchiveHarness


@pytest.fixture
def harness(tmp_path: Path) -> ArchiveHarness:
    harness = ArchiveHarness(tmp_path)
    for _ in range(3):
        harness.cluster.grow("flights", 0, 3)
        harness.cluster.grow("flights", 1, 2)
        harness.archiver().run_batch()
    return harness


def headrace(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["archive", *map(str, arguments)])


def test_files_lists_exactly_the_files_of_the_table(harness: ArchiveHarness) -> None:
    listed = headrace("files", harness.root).stdout.split()
    assert len(listed) == 6
    assert all(Path(path).is_file() for path in listed)
    (stray,) = harness.write(harness.archiver().table.snapshot().files[0].source, 9, 10)
    assert headrace("files", harness.root).stdout.split() == listed
    assert stray.file.path not in "".join(listed)

    found = json.loads(headrace("files", harness.root, "--partition", 1, "--format", "json").stdout)
    assert [(each["topic"], each["partition"], each["start"], each["end"]) for each in found] == [
        ("flights", 1, 0, 2),
        ("flights", 1, 2, 4),
        ("flights", 1, 4, 6),
    ]
    assert headrace("files", harness.root, "--topic", "others").stdout == ""


def test_describe_prints_the_archived_offsets_of_each_partition(harness: ArchiveHarness) -> None:
    text = headrace("describe", harness.root).stdout
    assert "archive-table" in text
    assert "delta" in text
    told = json.loads(headrace("describe", harness.root, "--format", "json").stdout)
    assert told["batches"] == 3
    assert [
        (each["partition"], each["first"], each["next"], each["records"], each["files"])
        for each in told["partitions"]
    ] == [(0, 0, 9, 9, 3), (1, 0, 6, 6, 3)]


def test_compact_and_clean(harness: ArchiveHarness) -> None:
    done = json.loads(headrace("compact", harness.root, "--format", "json").stdout)
    assert (done["removed"], done["added"]) == (6, 2)
    assert "nothing to compact" in headrace("compact", harness.root).stderr
    assert "0 files were deleted" in headrace("clean", harness.root).stderr
    told = json.loads(
        headrace(
            "clean", harness.root, "--older-than", "0s", "--dry-run", "--format", "json"
        ).stdout
    )
    assert (len(told["deleted"]), told["dry_run"]) == (6, True)
    cleaned = headrace("clean", harness.root, "--older-than", "0s")
    assert len(cleaned.stdout.split()) == 6
    assert harness.archived() == harness.expected()


def test_wrong_options_are_reported_before_the_archive_starts(
    tmp_path: Path, harness: ArchiveHarness
) -> None:
    nothing = headrace("files", tmp_path / "nothing")
    assert (nothing.exit_code, nothing.stderr) == (
        2,
        f"Error: there is no archive in {tmp_path / 'nothing'}\n",
    )
    neither = headrace("run", "--table", tmp_path / "new")
    assert neither.exit_code == 2
    assert "give either topics or --pattern" in neither.stderr
    size = headrace("compact", harness.root, "--file-size", "big")
    assert size.exit_code == 2
    assert "'big' is not a size: use" in size.stderr
    age = headrace("clean", harness.root, "--older-than", "long")
    assert "'long' is not a duration" in age.stderr
    away = headrace("run", "flights", "--table", tmp_path / "new", "-b", "127.0.0.1:1")
    assert away.exit_code == 1
    assert "cannot connect" in away.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [["compact"], ["files"], ["run", "flights", "--table"]])
def test_a_missing_extra_is_reported_with_its_install_command(
    words: list[str], harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "archive", archive)  # which the command imports anew
    for name in [each for each in sys.modules if each.startswith("headrace.spark.archive")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pyarrow", "pyarrow.parquet", "deltalake", "pyspark.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    done = headrace(*words, harness.root)
    assert done.exit_code == 2
    assert "pip install 'headrace[archive]'" in done.stderr


def test_a_signal_ends_a_run_in_order_and_a_second_interrupt_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with _stopped_by_signals() as stopped:
        assert not stopped.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(5)
        os.kill(os.getpid(), signal.SIGTERM)  # more of the same changes nothing
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
