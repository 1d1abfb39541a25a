"""The command around the demo: its directory, its broker, and its messages when something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.commands.demo import demo
from headrace.demo import run
from headrace.demo.child import BrokerChild, BrokerChildError
from headrace.errors import ConfigError
from headrace.spark import java


def test_the_demo_creates_its_directory_and_removes_files_of_earlier_runs(
    tmp_path: Path,
) -> None:
    output = tmp_path / "deep" / "demo"
    run.prepare_output(output)
    (output / "results").mkdir()
    (output / "results" / "old.parquet").touch()
    (output / "spark.log").touch()
    (output / "notes.txt").write_text("mine")

    run.prepare_output(output)

    assert sorted(path.name for path in output.iterdir()) == [run.MARKER, "notes.txt"]


def test_the_demo_refuses_a_directory_with_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()

    with pytest.raises(ConfigError, match="not from a demo"):
        run.prepare_output(tmp_path)
    assert (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no idea", None),
    ],
)
def test_the_demo_reads_the_version_of_java(text: str, version: int | None) -> None:
    assert java.parse_version(text) == version


def fake_java(directory: Path, version: str) -> Path:
    binary = directory / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    return directory


def test_missing_or_old_java_ends_the_demo_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "demo"
    for home, message in (
        (tmp_path / "nothing", "no bin/java in it"),
        (fake_java(tmp_path / "old", "11.0.2"), "is Java 11"),
    ):
        monkeypatch.setenv("JAVA_HOME", str(home))
        result = CliRunner().invoke(demo, ["--output", str(output)])
        assert result.exit_code == 2
        assert message in result.stderr
        assert "Spark needs Java 17 or newer" in result.stderr
        assert not output.exists()


def test_java_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Java is not installed"):
        java.check_java()

    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "21.0.1") / "bin"))
    assert java.check_java() == 21


def test_the_broker_runs_inside_the_block_only(tmp_path: Path) -> None:
    with BrokerChild(tmp_path / "data", tmp_path / "log") as broker:
        process = broker._process
        assert process is not None
        assert process.poll() is None
        host, _, port = broker.bootstrap.rpartition(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)
    assert process.returncode == 0


def test_the_broker_ends_when_the_block_fails(tmp_path: Path) -> None:
    broker = BrokerChild(tmp_path / "data", tmp_path / "log")
    with pytest.raises(KeyboardInterrupt), broker:
        raise KeyboardInterrupt
    assert broker._process is not None
    assert broker._process.returncode is not None


def test_a_broker_that_does_not_start_is_an_error_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("a file, not a directory")
    broker = BrokerChild(tmp_path / "data", tmp_path / "log")

    with pytest.raises(BrokerChildError, match=r"the broker did not start:\n.+"), broker:
        pass
    assert broker._process is not None
    assert broker._process.returncode is not None
