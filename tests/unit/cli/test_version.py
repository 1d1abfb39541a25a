"""`headrace --version` prints the version and the accelerator."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from headrace import __version__
from headrace.cli import main
from headrace.records import accel


@pytest.mark.parametrize("state", ["not installed", "headrace-accel 9"])
def test_the_version_and_the_accelerator(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "state", state)
    found = CliRunner().invoke(main, ["--version"])
    assert (found.exit_code, found.output) == (
        0,
        f"headrace, version {__version__}\naccelerator: {state}\n",
    )
