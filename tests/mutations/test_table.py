"""The table of defences fits the source, the tests and docs/reports/defences.md; `make mutate` removes each of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutations.__main__ import PAGE, mutated, page
from tests.mutations.mutation import Mutation
from tests.mutations.table import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
AREAS = {
    "log",
    "recovery",
    "compaction",
    "coordinators",
    "transactions",
    "truncation",
    "producer sequence",
    "replication",
    "fetch isolation",
    "clients' commit",
    "workers' commit",
    "delay",
    "ttl",
    "quotas",
    "ACL",
    "SASL",
    "TLS",
    "Kinesis leases",
    "bridge",
    "Spark sink",
    "archive",
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.area}: {each.defence}")
def test_a_defence_can_be_removed(mutation: Mutation) -> None:
    changed = mutated(mutation)
    ast.parse(changed)
    assert changed != (ROOT / "src" / "headrace" / mutation.path).read_text()
    for name in mutation.tests:
        assert (ROOT / name).exists(), name


def test_every_area_has_defences() -> None:
    assert {each.area for each in MUTATIONS} == AREAS


def test_the_page_has_the_table() -> None:
    assert PAGE.read_text().endswith(page())
