"""Searches that each find a violation without one rule. The first steps are given, the search finds the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.model.model import Label, Model
from tests.model.rules import Bounds, Rules
from tests.model.search import Result, Trace, exhaust
from tests.model.state import State

TWO: Final = Bounds(end=2, epochs=3, broker_epochs=3, versions=4)
THREE: Final = Bounds(brokers=3, assigned=3, end=2, epochs=4, broker_epochs=2, versions=8)
MOST: Final = 60_000
"""The number of states within which a search finds the violation."""


@dataclass(frozen=True)
class Case:
    """A search for a violation.

    Attributes:
        bounds: The bounds of the search.
        steps: The first steps, separated by semicolons. The number of a first commit or message may be left out.
    """

    bounds: Bounds
    steps: str = ""


ALONE: Final = "elect 0 0 1; commit; see state 0; append 0"
"""Broker 0 is the only in-sync replica, and has a committed record that broker 1 does not have."""
COPIED: Final = "see state 0; append 0; see state 1; fetch 1; response 1; fetch 1"
"""Brokers 0 and 1 have a committed record. The high watermark of broker 1 is behind."""

CASES: Final = {
    "shrink_counts_when_stored": Case(TWO),
    "expansion_counts_while_pending": Case(TWO),
    "one_proposal_at_a_time": Case(
        TWO, "elect 0 0 1; commit; see state 0; see state 1; fetch 1; expand 0 1; append 0; commit"
    ),
    "unknown_is_settled": Case(TWO, "elect 0 0 1; commit; see state 0; see state 1; fetch 1"),
    "proposal_checks_version": Case(TWO),
    "proposal_checks_own_registration": Case(
        TWO, "elect 0 0 1; commit; see state 0; see state 1; fetch 1; expand 0 1"
    ),
    "expansion_checks_registration": Case(
        replace(TWO, power_cuts=1), f"{ALONE}; see state 1; fetch 1; response 1; fetch 1"
    ),
    "expansion_reaches_high_watermark": Case(TWO, "elect 0 0 1; commit; see state 0"),
    "expansion_reaches_epoch_start": Case(
        THREE,
        f"see state 0; shrink 0 2; commit; settle 0; {COPIED.removeprefix('see state 0; ')};"
        " elect 0 1 3; commit; see state 1",
    ),
    "expansion_reaches_log_start": Case(
        replace(TWO, deletes=True), "see state 0; append 0; elect 0 1 2; commit; see state 0"
    ),
    "progress_ends_with_epoch": Case(
        THREE, f"{COPIED}; elect 0 2 7; commit; see state 2; see state 1; fetch 1"
    ),
    "high_watermark_freezes": Case(replace(TWO, min_isr=2)),
    "freeze_counts_committed_isr": Case(replace(THREE, min_isr=2), f"{ALONE}; see state 1"),
    "fetch_checks_epoch": Case(
        THREE,
        "see state 0; shrink 0 2; commit; settle 0; elect 0 1 3; commit; see state 1; see state 2;"
        " fetch 2; expand 1 2; commit; settle 1; elect 0 0 7; commit; see state 1",
    ),
    "fetch_checks_registration": Case(
        replace(THREE, late_requests=True, in_flight=2, power_cuts=1),
        "see state 0; shrink 0 2; commit; settle 0; append 0; see state 1; fetch 1; handle fetch 1;"
        " response 1; fetch 1; handle fetch 1; append 0; see state 2; fetch 2; handle fetch 2;"
        " response 2; fetch 2; power cut 2 1; leave 2; see state 2; fetch 2; handle fetch 2 1;"
        " expand 0 2; commit; settle 0; fetch 1; handle fetch 1; response 1 1; fetch 1; handle fetch 1",
    ),
    "fetch_checks_divergence": Case(TWO),
    "truncates_by_epoch": Case(TWO),
    "truncates_before_high_watermark": Case(TWO, "see state 0; append 0; elect 0 1 2; commit"),
    "response_belongs_to_epoch": Case(
        replace(THREE, in_flight=2),
        f"{COPIED}; elect 0 2 7; commit; see state 2; see state 1; fetch 1; elect 0 0 3; commit",
    ),
    "response_belongs_to_request": Case(
        replace(TWO, repeats=True, in_flight=2),
        "see state 0; append 0; elect 0 1 3; commit; see state 1; see state 0; append 1; fetch 0",
    ),
    "reports_what_is_synced": Case(replace(TWO, syncs=True, power_cuts=1)),
    "leader_counts_what_is_synced": Case(replace(TWO, syncs=True, power_cuts=1)),
    "unclean_start_leaves": Case(replace(TWO, power_cuts=1)),
    "unclean_start_asks_mark": Case(replace(TWO, switches=1, power_cuts=1)),
    "registers_before_leaving": Case(
        replace(TWO, power_cuts=1), f"{ALONE}; see state 1; fetch 1; response 1; fetch 1"
    ),
    "elects_from_isr": Case(TWO),
    "election_checks_version": Case(TWO),
    "election_checks_registration": Case(TWO),
    "election_epoch_is_above_present": Case(
        TWO, "see state 0; shrink 0 1; see state 1; fetch 1; commit; settle 0; expand 0 1; commit"
    ),
    "isr_change_stores_present_epoch": Case(TWO),
    "reassignment_stores_state": Case(
        Bounds(brokers=3, epochs=3, versions=4, reassigns=True), COPIED
    ),
    "reassignment_checks_version": Case(
        Bounds(brokers=3, epochs=3, versions=4, reassigns=True), "see state 0; append 0"
    ),
    "image_is_a_prefix": Case(TWO),
    "start_follows_leader": Case(replace(TWO, deletes=True), "see state 0; append 0; elect 0 1 2"),
}

NOT_SHOWN: Final = {
    "leaving_begins_epoch": Case(replace(TWO, power_cuts=1, broker_epochs=2)),
}
"""Rules whose absence no search has found. Within the bounds, all states without the rule were visited."""


def find(rule: str, *, off: bool = True, most: int = MOST) -> Result:
    """Search from the first steps of a rule's case; with the rule switched off, or with all rules."""
    case = (CASES | NOT_SHOWN)[rule]
    model = Model(case.bounds, Rules(**{rule: False}) if off else Rules())
    taken, problem = follow(model, case.steps)
    if problem:
        return Result(problem, taken, len(taken), len(taken), 0.0)
    result = exhaust(model, most, taken[-1][1] if taken else None)
    result.trace = taken + result.trace
    return result


def follow(model: Model, steps: str) -> tuple[Trace, str]:
    """Take named steps; return them, and the violated invariant of the last one."""
    state, trace = model.first, []
    for text in filter(None, (each.strip() for each in steps.split(";"))):
        label, state, problem = _named(model, state, text)
        trace.append((label, state))
        if problem:
            return trace, problem
    return trace, ""


def _named(model: Model, state: State, text: str) -> tuple[Label, State, str]:
    possible = list(model.steps(state))
    for step in possible:
        written = " ".join(map(str, step[0]))
        if written in (text, f"{text} 0"):
            return step
    raise ValueError(f"{text!r} is not possible, but {[step[0] for step in possible]}")
