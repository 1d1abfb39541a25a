"""Searches: breadth first, until nothing new is found; and random walks from a seed."""

from __future__ import annotations

import random
import time
from array import array
from dataclasses import dataclass

from tests.model import checks
from tests.model.model import Label, Model
from tests.model.state import State

Trace = list[tuple[Label, State]]
"""The steps from the first state on, each with the state after it."""


@dataclass
class Result:
    """The result of a search.

    Attributes:
        problem: The violated invariant; "" if there is none.
        trace: The steps up to the violation.
        states: The number of states, or of steps of random walks.
        depth: The number of steps of the longest shortest path; of random walks, the number of the walk.
        seconds: The duration.
        complete: Whether no state is left.
    """

    problem: str
    trace: Trace
    states: int
    depth: int
    seconds: float
    complete: bool = False


def exhaust(model: Model, most: int = 10_000_000, first: State | None = None) -> Result:
    """Visit the states in the order of their distance from the first one.

    A visited state is remembered by its hash of 64 bits.

    Args:
        model: The model.
        most: The number of states after which the search ends.
        first: The state to begin with.
    """
    began = time.monotonic()
    first = first or model.first
    visited = {hash(first)}
    fingerprints, parents = array("q", [hash(first)]), array("I", [0])
    level, depth, number = [first], 0, 0
    steps, incomplete = model.steps, checks.incomplete_candidate
    while level:
        found = []
        for state in level:
            for label, after, problem in steps(state):
                if problem:
                    trace = _trace(model, first, fingerprints, parents, number)
                    trace.append((label, after))
                    return Result(problem, trace, len(visited), depth + 1, time.monotonic() - began)
                fingerprint = hash(after)
                if fingerprint in visited:
                    continue
                visited.add(fingerprint)
                fingerprints.append(fingerprint)
                parents.append(number)
                found.append(after)
                lost = incomplete(after)
                if lost:
                    trace = _trace(model, first, fingerprints, parents, len(parents) - 1)
                    return Result(lost, trace, len(visited), depth + 1, time.monotonic() - began)
            number += 1
            if len(visited) >= most:
                return Result("", [], len(visited), depth, time.monotonic() - began)
        level = found
        depth += 1
    return Result("", [], len(visited), depth - 1, time.monotonic() - began, complete=True)


def _trace(
    model: Model, first: State, fingerprints: array[int], parents: array[int], number: int
) -> Trace:
    """Return the steps to a state: the steps are taken again, and the fingerprints say which ones."""
    path = []
    while number:
        path.append(fingerprints[number])
        number = parents[number]
    state, trace = first, []
    for fingerprint in reversed(path):
        label, state = next(
            (label, after) for label, after, _ in model.steps(state) if hash(after) == fingerprint
        )
        trace.append((label, state))
    return trace


def walk(model: Model, seed: int, length: int = 60, first: State | None = None) -> Result:
    """Take random steps from the first state on, as the seed decides."""
    began = time.monotonic()
    chance = random.Random(seed)
    state, trace = first or model.first, []
    for taken in range(length):
        steps = [each for each in model.steps(state) if each[1] != state or each[2]]
        if not steps:
            break
        names = sorted({each[0][0] for each in steps})
        name = chance.choice(names)
        label, state, problem = chance.choice([each for each in steps if each[0][0] == name])
        trace.append((label, state))
        problem = problem or checks.incomplete_candidate(state)
        if problem:
            return Result(problem, trace, taken + 1, seed, time.monotonic() - began)
    return Result("", trace, len(trace), seed, time.monotonic() - began)
