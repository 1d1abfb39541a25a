"""The model: the first state, and the steps that are possible in a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model import checks
from tests.model.rules import ALL, Bounds, Rules
from tests.model.state import (
    NOBODY,
    RUNNING,
    Leadership,
    Metadata,
    Replica,
    State,
    changed,
    is_possible,
)

Label = tuple[Any, ...]
"""The name of a step, and its numbers: most often brokers."""
Step = tuple[Label, State, str]
"""A possible step: its label, the state after it, and the violated invariant ("" for none)."""


class Model:
    """The protocol with some rules, within bounds."""

    def __init__(self, bounds: Bounds, rules: Rules = ALL) -> None:
        self.bounds = bounds
        self.rules = rules

    @property
    def first(self) -> State:
        """The state after all brokers have registered for the first time. No state of the partition is stored."""
        count = self.bounds.brokers
        syncs = self.bounds.syncs
        replica = Replica(RUNNING, 1, NOBODY, 0, (), 0, 0, 0, None, None, syncs, syncs)
        nothing = Leadership(NOBODY, 0, 0, 0, 0)
        assigned = tuple(range(self.bounds.assigned))
        metadata = Metadata(0, nothing, assigned, (1,) * count)
        if not self.rules.image_is_a_prefix:
            replica = replica._replace(seen=(0, nothing))
        nothing_sent = ((),) * count
        return State(
            metadata, (replica,) * count, (), nothing_sent, nothing_sent, (), 0, 0, syncs, 0
        )

    def steps(self, state: State) -> Iterator[Step]:
        """Return all steps that are possible in a state."""
        for broker, replica in enumerate(state.replicas):
            if replica.phase == RUNNING:
                yield from syncing.steps(self, state, broker, replica)
                yield from roles.steps(self, state, broker, replica)
                if replica.lead is not None:
                    yield from leading.steps(self, state, broker, replica, replica.lead)
                elif replica.leader != NOBODY:
                    yield from following.steps(self, state, broker, replica)
            yield from faults.steps(self, state, broker, replica)
        if self.bounds.late_requests:
            yield from leading.requests(self, state)
        yield from store.steps(self, state)
        yield from syncing.switch(self, state)

    def take(self, state: State, label: Label) -> Step | None:
        """Take the step with a label; None if it is not possible."""
        return next((step for step in self.steps(state) if step[0] == label), None)

    def with_replica(self, state: State, broker: int, replica: Replica) -> tuple[State, str]:
        """Return the state after a replica has changed, and the violated invariant."""
        committed, problem = state.committed, ""
        before = state.replicas[broker]
        if replica.high_watermark != before.high_watermark or replica.log != before.log:
            if replica.lead is not None and replica.high_watermark > len(committed):
                visible = replica.log[: replica.high_watermark - replica.start]
                committed = committed[: replica.start] + visible
                if committed[: len(state.committed)] != state.committed:
                    return state, f"broker {broker} commits {committed}, not {state.committed}"
            problem = checks.wrong_below_high_watermark(committed, broker, replica)
        replicas = changed(state.replicas, broker, replica)
        return state._replace(replicas=replicas, committed=committed), problem

    def with_metadata(self, state: State, metadata: Metadata) -> State:
        """Return the state after a commit. Commits in flight that the store would refuse are removed."""
        return state._replace(
            metadata=metadata,
            commits=tuple(each for each in state.commits if is_possible(each, metadata)),
        )


from tests.model import faults, following, leading, roles, store, syncing  # noqa: E402  # they need `Model`
