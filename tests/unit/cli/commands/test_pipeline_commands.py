"""`headrace pipeline` without Spark: plans, what is shown of pipelines, and stops."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.cli.commands.pipeline import _child_arguments, run
from headrace.cli.commands.pipeline_output import QuietLines, Screen, progress_line, row
from headrace.pipelines.status.progress import BatchProgress
from headrace.pipelines.status.state import State, StateDirectory, Status

PROGRESS = {
    "batch_id": 4,
    "at_ms": 1,
    "input_rows": 30,
    "input_rate": 15.0,
    "processed_rate": 60.5,
    "duration_ms": 500,
    "lag_records": 9,
    "lag_seconds": 2.25,
    "state_rows": 8,
    "state_bytes": 2_000_000,
    "watermark": None,
}
RUNNING = Status("delays", "running", 4711, 0, 1000, {"trigger": "1 second"}, PROGRESS)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "flow.py"
    path.write_text(
        textwrap.dedent("""
        from headrace.pipelines import pipeline, topic

        @pipeline(source=topic("a", format="text", create=1), sink=topic("b", format="text", create=2))
        def copy(records): return records
        """)
    )
    return path


def test_a_plan_for_people_and_programs(flow: Path, headrace_bootstrap: str) -> None:
    arguments = ["plan", str(flow), "--no-spark", "-b", headrace_bootstrap]
    people, programs = command(*arguments), command(*arguments, "--format", "json")

    assert people.exit_code == 0, people.output
    assert people.stdout.splitlines() == [
        f"copy  ({flow}:4)",
        "  source records: topic a",
        "  sink:           topic b, append rows",
        "  trigger:        every 1 second",
        f"  checkpoint:     {flow.parent}/checkpoints/copy",
        "  creates:        topic a, topic b",
    ]
    (found,) = json.loads(programs.stdout)
    assert (found["creates"], found["columns"]) == (["a", "b"], None)
    assert not (flow.parent / "checkpoints").exists()


def test_all_problems_are_shown_and_the_exit_code_says_configuration(
    flow: Path, headrace_bootstrap: str
) -> None:
    flow.write_text(flow.read_text().replace("create=1", "create=0"))
    result = command("plan", str(flow), "--trigger", "now", "-b", headrace_bootstrap)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "Error: 2 problems"
    assert f"{flow}:4: copy: source records: create must be" in result.stderr


def test_missing_java_is_reported_before_any_pipeline_runs(
    flow: Path, headrace_bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    arguments = [str(flow), "-b", headrace_bootstrap, "--state", str(tmp_path / "state")]
    for name in ("plan", "run"):
        result = command(name, *arguments)
        assert result.exit_code == 2, result.output
        assert "Spark needs Java 17 or newer" in result.stderr


def test_pipelines_of_other_processes(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path)]
    claim = StateDirectory(tmp_path).claim("delays")
    claim.write(RUNNING)
    lines = command("list", *state).stdout.splitlines()
    listed = command("list", *state, "--format", "json")
    described = command("describe", "delays", *state)

    assert lines[1].split() == ["delays", "running", "4", "15", "60", "9", "2", "8", "2.0", "500"]
    assert json.loads(listed.stdout)[0]["progress"] == PROGRESS
    assert "lag records: 9" in " ".join(described.stdout.split())
    assert "1970-01-01T00:00:01Z" in described.stdout
    claim.release()
    assert (
        json.loads(command("describe", "delays", *state, "--format", "json").stdout)["state"]
        == "lost"
    )
    nothing = command("describe", "other", *state)
    assert nothing.exit_code == 1
    assert "no pipeline other is known" in nothing.stderr


def test_stop_asks_and_waits(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path)]
    claim = StateDirectory(tmp_path).claim("delays")
    claim.write(RUNNING)
    late = command("stop", "delays", "--timeout", "0", *state)
    assert late.exit_code == 1
    assert "delays did not end within 0 s" in late.stderr
    assert claim.stop_wanted

    def end() -> None:
        claim.write(replace(RUNNING, state="stopped"))
        claim.release()

    thread = threading.Timer(0.05, end)
    thread.start()
    done = command("stop", "--all", *state, "--format", "json")
    thread.join()
    assert json.loads(done.stdout) == [{"pipeline": "delays", "state": "stopped"}]
    assert command("stop", "delays", *state).exit_code == 1
    assert command("stop", *state).exit_code == 2
    assert command("stop", "delays", "--all", *state).exit_code == 2


def test_pipelines_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path)]
    directory = StateDirectory(tmp_path)
    for name in ("one", "two"):
        ended = directory.claim(name)
        ended.write(replace(RUNNING, name=name, state="finished"))
        ended.release()
    claim = directory.claim("delays")
    claim.write(RUNNING)

    running = command("forget", "delays", *state)
    assert running.exit_code == 1
    assert "no pipeline delays has ended" in running.stderr
    assert command("forget", "one", *state).stdout.split() == [
        "PIPELINE",
        "STATE",
        "one",
        "finished",
    ]
    assert [each.name for each in directory.statuses()] == ["delays", "two"]
    claim.release()
    forgotten = command("forget", "--all", *state, "--format", "json")
    assert [each["state"] for each in json.loads(forgotten.stdout)] == ["lost", "finished"]
    assert list(directory.statuses()) == []
    assert command("forget", *state).exit_code == 2


def test_old_pipelines_are_not_listed_and_are_forgotten_by_age(
    tmp_path: Path,
) -> None:
    state = ["--state", str(tmp_path)]
    directory = StateDirectory(tmp_path)
    day_ms, now_ms = 86_400_000, int(time.time() * 1000)
    held = []
    known: list[tuple[str, State, int]] = [
        ("ancient", "failed", 40),
        ("old", "finished", 8),
        ("recent", "stopped", 6),
        ("quiet", "running", 40),
    ]
    for name, ended, days in known:
        claim = directory.claim(name)
        claim.write(replace(RUNNING, name=name, state=ended, updated_ms=now_ms - days * day_ms))
        if ended == "running":
            held.append(claim)
        else:
            claim.release()

    listed = command("list", *state)
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["quiet", "recent"]
    assert "2 ended more than 7 days ago" in listed.stderr
    everything = command("list", "--all", *state, "--format", "json")
    assert len(json.loads(everything.stdout)) == 4
    assert everything.stderr == ""

    assert command("forget", "old", "--older-than", "30d", *state).exit_code == 2
    forgotten = command("forget", "--older-than", "30d", *state, "--format", "json")
    assert json.loads(forgotten.stdout) == [{"pipeline": "ancient", "state": "failed"}]
    assert [each.name for each in directory.statuses()] == ["old", "quiet", "recent"]
    held[0].release()
    left = command("forget", "--older-than", "30d", *state, "--format", "json")
    assert json.loads(left.stdout) == [{"pipeline": "quiet", "state": "lost"}]


def test_lines_for_logs() -> None:
    lines: list[str] = []
    now = [0.0]
    shown = QuietLines(10, clock=lambda: now[0], write=lines.append)
    shown.changed(RUNNING)
    shown.changed(RUNNING)
    shown.tick([RUNNING])
    now[0] = 10
    shown.tick([RUNNING])
    shown.changed(replace(RUNNING, state="restarting", restarts=1, error="the broker is away"))

    assert lines == [
        "delays: running",
        "delays: batch 4, 30 records in 500 ms, in 15/s, done 60.5/s, lag 9 records, 2.2 s, state 8 rows, 2.0 MB",
        "delays: restarting: the broker is away",
    ]
    unknown = {**PROGRESS, "lag_records": None, "lag_seconds": None}
    assert "lag -, state" in progress_line("delays", unknown)
    assert row(replace(RUNNING, progress=None))[:3] == ("delays", "running", None)


def test_a_table_that_is_drawn_again(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Screen()
    shown.changed(RUNNING)
    shown.tick([RUNNING])
    shown.tick([RUNNING])  # within the same second
    shown.changed(replace(RUNNING, state="stopped"))
    text = capsys.readouterr().err

    assert text.count("PIPELINE") == 1
    assert text.endswith("\x1b[2F\x1b[Jdelays: stopped\n"), "the table of two lines is wiped"


def test_the_output_shows_every_field_of_a_batch() -> None:
    assert set(PROGRESS) == set(BatchProgress.__dataclass_fields__)


def test_children_get_the_options_and_one_pipeline(tmp_path: Path) -> None:
    arguments: list[Any] = ["flow.py", "a", "b", "--isolated", "-b", "h:1", "--drain", "5"]
    arguments += ["--conf", "x=1", "--conf", "y=2", "--metrics", "h:2", "-X", "client.id=me"]
    context: click.Context = run.make_context("run", arguments)
    found = _child_arguments(context)

    again = run.make_context("run", [*found[2:], "flow.py", "a"])
    kept = {**context.params, "isolated": False, "metrics": None, "names": ("a",)}
    assert again.params == {**kept, "output_format": "json", "with_parent": True}
