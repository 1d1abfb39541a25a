"""The fake of DynamoDB and dynalite answer the same probes. For each difference the table gives the right answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from headrace.testing.kinesis import FakeAws
from tests.integration.kinesis.fakes.dynamodb_probes import PROBES, DynamoPeer, key
from tests.integration.kinesis.fakes.peers import Answers, answers

DIFFERENCES: Final[dict[str, tuple[Any, Any, str]]] = {
    "the_item_of_a_failed_condition": (
        ("ConditionalCheckFailedException", key()),
        ("ConditionalCheckFailedException", None),
        "the API returns it since 2023",
    ),
}
"""Answers of the fake and of dynalite by probe, and the reason to assume that AWS answers like the fake."""


@pytest.fixture(scope="module")
def ours() -> Answers:
    """Return the answers of the fake by probe."""
    with FakeAws() as aws:
        return asyncio.run(answers("dynamodb", aws.endpoint_url, DynamoPeer, PROBES))


@pytest.fixture(scope="module")
def theirs(dynamodb_url: str) -> Answers:
    """Return the answers of dynalite by probe."""
    return asyncio.run(answers("dynamodb", dynamodb_url, DynamoPeer, PROBES))


@pytest.mark.parametrize("name", [probe.__name__ for probe in PROBES])
def test_both_servers_answer_a_probe_alike(name: str, ours: Answers, theirs: Answers) -> None:
    known = DIFFERENCES.get(name, (ours[name], ours[name], ""))
    assert (ours[name], theirs[name]) == known[:2]


def test_every_difference_is_probed() -> None:
    assert set(DIFFERENCES) <= {probe.__name__ for probe in PROBES}
