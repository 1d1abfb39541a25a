"""Signals whose handlers raise, at random moments of busy blocking clients: clients continue, and lose no records."""

from __future__ import annotations

import os
import random

import pytest

from tests.conformance.life.conftest import run_program
from tests.fixtures.processes import ServerProcess

ROUNDS = int(os.environ.get("HEADRACE_INTERRUPT_ROUNDS", "100"))
SEED = int(os.environ.get("HEADRACE_INTERRUPT_SEED", random.randrange(1 << 30)))
"""HEADRACE_INTERRUPT_SEED=n repeats a run."""


@pytest.mark.parametrize("what", ["producer", "consumer", "admin", "transactions"])
@pytest.mark.parametrize("where", ["tcp", "memory"])
def test_an_interrupted_client_works_on(server: ServerProcess, where: str, what: str) -> None:
    ended = run_program(
        "interrupted",
        server.bootstrap,
        where,
        what,
        str(ROUNDS),
        str(SEED),
        timeout_s=60 + 2 * ROUNDS,
    )
    assert (ended.code, ended.errors) == (0, ""), (SEED, ended)
    assert ended.output == f"{ROUNDS} interruptions\n", (SEED, ended)
