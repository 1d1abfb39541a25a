"""Two brokers, one scenario: run it on both and compare the transcripts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest

import pytest

from tests.conformance.differential.normal import differences
from tests.conformance.differential.on_purpose import Where, explanations
from tests.conformance.differential.peer import Peer, Step, Versions

Scenario = Callable[[Peer], None]


class Scenarios(list[Scenario]):
    """The scenarios of one file. The object is a decorator that adds a scenario."""

    def __call__(self, scenario: Scenario) -> Scenario:
        """Add a scenario to the pair."""
        self.append(scenario)
        return scenario

    def mark(self) -> pytest.MarkDecorator:
        """Return the mark that runs a test with each scenario."""
        return pytest.mark.parametrize("scenario", self, ids=lambda found: found.__name__)


@dataclass(frozen=True)
class Broker:
    """A running broker, and how to stop it."""

    name: str
    address: tuple[str, int]


@dataclass(frozen=True)
class Pair:
    """Apache Kafka and Headrace, both running, with the same settings."""

    kafka: Broker
    headrace: Broker
    versions: Versions

    def compare(self, scenario: Scenario) -> None:
        """Run a scenario on both at the same time.

        Raises:
            AssertionError: They differ by accident, or a deliberate difference does not show.
        """
        name = scenario.__name__
        with ThreadPoolExecutor(2) as pool:
            left, right = pool.map(
                lambda broker: self._run(broker, scenario), [self.kafka, self.headrace]
            )
        both = sorted(left.shared.keys() & right.shared.keys())
        check(
            name,
            [*left.steps, *(Step(label, left.shared[label]) for label in both)],
            [*right.steps, *(Step(label, right.shared[label]) for label in both)],
        )

    def _run(self, broker: Broker, scenario: Scenario) -> Peer:
        peer = Peer(broker.name, broker.address, self.versions)
        try:
            scenario(peer)
        except Exception as error:
            last = peer.steps[-1].label if peer.steps else "the start"
            error.add_note(f"{peer.name}, after {last}")
            raise
        finally:
            peer.close()
        return peer


def check(scenario: str, kafka: list[Step], headrace: list[Step]) -> None:
    """Compare two transcripts of a scenario.

    Raises:
        AssertionError: They differ by accident, or a deliberate difference does not show.
    """
    declared = explanations(scenario)
    seen: set[Where] = set()
    unexplained = []
    for left, right in zip_longest(kafka, headrace):
        if left is None or right is None or left.label != right.label:
            unexplained.append(f"the scenarios part: kafka {left}, headrace {right}")
            break
        for path, a, b in differences(left.outcome, right.outcome):
            found = {place for place in declared if place.matches(scenario, left.label, path, a, b)}
            seen |= found
            if not found:
                unexplained.append(f"{left.label}: {path}: kafka {a}, headrace {b}")
    gone = [repr(place) for place in declared if place.must_show and place not in seen]
    assert not unexplained, f"{scenario}:\n" + "\n".join(unexplained)
    assert not gone, f"{scenario} does not differ any more in:\n" + "\n".join(gone)
