"""No request costs more than its bound: every API, filled in every way, at a broker with much data.

This is the short form of `python -m tests.cost --thorough`, which `make fuzz` runs at a broker with the documented
limits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.cost.bounds import Bound
from tests.cost.broker import Cost, WatchedBroker, framed
from tests.cost.contents import TINY, Contents
from tests.cost.driving import bound_of, drive, violations
from tests.cost.requests import Values
from tests.cost.shapes import request_schemas

pytestmark = pytest.mark.slow  # not in `make check`

SLACK = 2.0
"""The factor on the bounds: machines of continuous integration are busy, and slower than the machine of the bounds."""
NAMES = sorted(request_schemas())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WatchedBroker, Values]]:
    broker = WatchedBroker(tmp_path_factory.mktemp("cost"), {})
    broker.start()
    try:
        yield broker, Contents(broker, TINY).make()
    finally:
        broker.stop()


@pytest.mark.parametrize("name", NAMES)
def test_no_request_costs_more_than_its_bound(broker, name):
    watched, values = broker
    bound = bound_of(name)
    found = [
        f"{case.name}: {', '.join(over)}"
        for case, cost in drive(watched, values, [name], thorough=False)
        if (over := violations(cost, bound, slack=SLACK))
    ]
    assert not found, "\n".join(found)
    assert not watched.bugs()


def test_the_measured_cost_follows_the_work(broker):
    watched, _ = broker
    few, many = (
        framed(MetadataRequest(topics=[MetadataRequestTopic(name=f"u{i}") for i in range(n)]), 9)
        for n in (1, 9_000)
    )
    with watched.connection() as connection:
        small = watched.measure([few], connection)
        large = watched.measure([many], connection)
    assert large.total_ms > 5 * small.total_ms
    assert large.loop_ms <= large.total_ms
    assert large.answer_bytes > 1000 * small.answer_bytes / 2
    assert {small.outcome, large.outcome} == {"answered"}


def test_a_cost_above_its_bound_is_reported():
    cost = Cost(60.0, 0.0, 1, 60.0, 70.0, 2000, "answered")
    assert violations(cost, Bound(loop_ms=50, memory_mb=64, answer_bytes=1000)) == [
        "a step of 60 ms",
        "70 MiB of memory",
        "an answer of 2000 bytes",
    ]
    assert violations(cost, Bound(loop_ms=50, memory_mb=80, answer_bytes=3000), slack=2.0) == []
