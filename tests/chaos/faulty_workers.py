"""The checker detects faulty workers. `make chaos` runs this file by its name; it takes a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.pipeline import Pipeline

SEED = 2  # of an input with aborted transactions, and many kills of workers


@pytest.mark.timeout(200)
@pytest.mark.parametrize("fault", ["commits apart", "reads all"])
def test_the_checker_detects_faulty_workers(tmp_path: Path, fault: str) -> None:
    with pytest.raises(AssertionError, match="the output is not the input"):
        Pipeline(tmp_path / "run", SEED, "headrace", "classic", fault).run(20)
