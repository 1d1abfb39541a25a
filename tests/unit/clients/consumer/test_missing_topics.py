"""A consumer that waits for a topic logs this within seconds, suggests a similar name, and logs the creation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.consumer_simulation import ConsumerSimulation, Program
from tests.unit.clients.consumer.test_groups import SERVER_SIDE, member

PROTOCOLS = ["range", SERVER_SIDE]


def wait(program: Program, seconds: int) -> None:
    for _ in range(seconds):
        program.poll(1_000)


def make_simulation(*topics: str) -> ConsumerSimulation:
    simulation = ConsumerSimulation()
    for topic in topics:
        simulation.broker.create_topic(topic)
    return simulation


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_mistyped_topic_is_reported_within_seconds_and_once(protocol: str) -> None:
    reader = member(make_simulation("orders", "customers"), protocol, topics=["oders"])
    wait(reader, 5)
    [line] = reader.warnings
    assert line == "there is no topic 'oders'; the consumer waits for it. Did you mean 'orders'?"
    assert reader.core.trouble == line
    wait(reader, 300)
    assert reader.warnings == [line]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_topic_that_comes_is_reported_and_read(protocol: str) -> None:
    simulation = make_simulation("other")
    reader = member(simulation, protocol, topics=["late"])
    wait(reader, 5)
    simulation.broker.create_topic("late")
    simulation.fill("late", 1, 3)
    found: list[Any] = []
    for _ in range(10):
        found += reader.poll(1_000)
    assert len(found) == 3
    assert reader.warnings[-1] == "topic 'late' exists now, and the consumer reads it"
    assert reader.core.trouble is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_topic_that_comes_at_once_is_not_reported(protocol: str) -> None:
    simulation = make_simulation()
    reader = member(simulation, protocol, topics=["t"])
    reader.poll(1_000)
    simulation.broker.create_topic("t")
    wait(reader, 10)
    assert reader.warnings == []


def test_a_pattern_that_matches_nothing_is_reported() -> None:
    simulation = make_simulation("orders")
    reader = simulation.consumer(group="g", assignor="range", auto_offset_reset="earliest")
    reader.subscribe(pattern="odrers-.*")
    wait(reader, 10)
    assert reader.warnings == [
        "there is no topic that matches 'odrers-.*'; the consumer waits for it"
    ]


def test_existing_topics_are_read_while_another_is_missing() -> None:
    simulation = make_simulation("orders")
    simulation.fill("orders", 1, 2)
    reader = member(simulation, "range", topics=["orders", "payments"])
    found: list[Any] = []
    for _ in range(8):
        found += reader.poll(1_000)
    assert len(found) == 2
    assert reader.warnings == ["there is no topic 'payments'; the consumer waits for it"]


def test_a_consumer_that_has_not_joined_reports_its_missing_membership() -> None:
    reader = member(make_simulation("t"), "range")
    assert reader.core.trouble is not None
    assert "not a member of its group" in reader.core.trouble
    wait(reader, 3)
    assert reader.core.trouble is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_missing_topic_that_is_not_subscribed_to_any_more_is_not_reported_as_read(
    protocol: str,
) -> None:
    reader = member(make_simulation("orders"), protocol, topics=["oders"])
    wait(reader, 5)
    reader.subscribe(["orders"])
    wait(reader, 5)
    assert len(reader.warnings) == 1
    assert reader.core.trouble is None


def test_a_second_topic_that_is_missing_has_its_own_patience() -> None:
    simulation = make_simulation("a")
    simulation.broker.create_topic("b")
    reader = member(simulation, "range", topics=["a", "b"])
    reader.poll(1_000)
    missing = reader.core._missing
    topics = reader.core._engine.state.metadata.topics

    def look_without(name: str | None) -> None:
        kept = topics.pop(name) if name is not None else None
        missing.look()
        if kept is not None:
            topics[kept.name] = kept

    look_without("a")
    began_ms = reader.core._engine.now_ms
    look_without(None)
    assert missing._since_ms is None
    timer = missing._timer
    assert timer is not None
    assert not timer.pending, f"a look that began at {began_ms} is over"
