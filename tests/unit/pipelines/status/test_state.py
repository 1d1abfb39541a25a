"""The status of a pipeline in other processes, also after the pipeline's process was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.pipelines.status.state import StateDirectory, Status, default_directory


def status(name: str = "delays", state: str = "running") -> Status:
    return Status(name, state, 4711, 1, 2, {"trigger": "1 second"})  # type: ignore[arg-type]  # a state's name


def test_a_status_without_lock_is_lost(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "new" / "state")
    claim = directory.claim("delays")
    claim.write(status())

    assert list(StateDirectory(directory.path).statuses()) == [status()]
    claim.release()
    assert [each.state for each in directory.statuses()] == ["lost"]


def test_a_killed_process_is_reported_as_lost(tmp_path: Path) -> None:
    program = f"""
import os, sys, signal
from pathlib import Path
from headrace.pipelines.status.state import StateDirectory, Status
claim = StateDirectory(Path({str(tmp_path)!r})).claim("delays")
claim.write(Status("delays", "running", os.getpid(), 1, 2))
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.stdout == "ready\n"
    found = StateDirectory(tmp_path).status("delays")
    assert found is not None
    assert (found.state, found.ended) == ("lost", True)
    StateDirectory(tmp_path).claim("delays").release()


def test_two_processes_cannot_lock_one_name(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    claim = directory.claim("delays")
    claim.write(status())

    with pytest.raises(ConfigError, match=r"delays is running, pid 4711: .*stop delays"):
        StateDirectory(tmp_path).claim("delays")
    claim.release()
    directory.claim("delays").release()


def test_a_stop_request_reaches_the_process_and_is_removed_at_its_end(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    claim = directory.claim("delays")
    before = claim.stop_wanted
    StateDirectory(tmp_path).ask_to_stop("delays")
    assert (before, claim.stop_wanted) == (False, True)
    claim.release()

    again = directory.claim("delays")
    before = again.stop_wanted
    directory.ask_to_stop("delays")
    claim.release()  # a second time
    assert (before, again.stop_wanted) == (False, True)
    again.release()


def test_an_ended_status_stays(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    claim = directory.claim("delays")
    claim.write(status(state="finished"))
    claim.release()

    assert directory.status("delays") == status(state="finished")
    assert directory.status("unknown") is None


def test_a_file_of_another_program_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"of": "another version"}')

    assert list(StateDirectory(tmp_path).statuses()) == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"file cannot be written .* --state"):
        StateDirectory(tmp_path / "file").claim("delays")


def test_the_default_is_the_users_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")

    assert default_directory() == Path("/somewhere/headrace/pipelines")
