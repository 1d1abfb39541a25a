"""Damaged log directories: opening one ends with a valid log, or with an error that has the reason."""

from __future__ import annotations

import pytest

from tests.fuzz.recovery import recover_from_damage


@pytest.mark.parametrize("seed", range(150))
def test_mutated_segments_recover_or_say_why(seed: int) -> None:
    recover_from_damage(seed)
