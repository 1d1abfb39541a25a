"""The steps of a trace as text: each step, and the parts of the state that the step has changed."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.search import Trace
from tests.model.state import MEMBERS, NOBODY, Leadership, Replica, State, present


def lines(trace: Trace) -> Iterator[str]:
    """Return the lines of a trace."""
    before: State | None = None
    for number, (label, state) in enumerate(trace, 1):
        yield f"({number}) {' '.join(map(str, label))}"
        if before is None or state.metadata != before.metadata:
            stored = present(state.metadata)
            yield f"      metadata, version {state.metadata.version}: {_leadership(stored)}"
        for broker, replica in enumerate(state.replicas):
            if before is not None and replica != before.replicas[broker]:
                yield f"      broker {broker}: {_replica(broker, replica)}"
        if before is None or state.commits != before.commits:
            for commit in state.commits:
                new = "other replicas" if commit.state is None else _leadership(commit.state)
                yield f"      in flight, replaces version {commit.version}: {new}"
        if before is not None and state.committed != before.committed:
            yield f"      committed: {state.committed}"
        before = state


def _leadership(state: Leadership) -> str:
    leader = "no leader" if state.leader == NOBODY else f"leader {state.leader}"
    elr = f", ELR {MEMBERS[state.elr]}" if state.elr else ""
    return f"{leader}, epoch {state.epoch}, ISR {MEMBERS[state.isr]}{elr}"


def _replica(broker: int, replica: Replica) -> str:
    if replica.lead is not None:
        pending = replica.lead.pending
        role = f"leads epoch {replica.epoch} with ISR {MEMBERS[replica.lead.isr]}"
        if pending is not None:
            role += f", proposes {MEMBERS[pending.isr]}"
        ends = [f"{end}" for other, end in enumerate(replica.lead.ends) if other != broker]
        role += f", progress of the others {', '.join(ends)}"
    elif replica.leader != NOBODY:
        role = f"follows {replica.leader} in epoch {replica.epoch}"
    else:
        role = "no role"
    return (
        f"{role}; records {replica.log} from {replica.start}, "
        f"high watermark {replica.high_watermark}"
    )
