"""Rows of settings in which every value of each factor, or every pair of values of two factors, comes at least once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

Case = dict[str, str]
Bound = tuple[str, str]


def cover(factors: Mapping[str, Sequence[str]], *, strength: int) -> list[Case]:
    """Return the rows in a fixed order.

    Args:
        factors: The values of each factor.
        strength: How many factors are crossed completely: 1 for every value, 2 for every pair of values.
    """
    chance = random.Random(strength)
    left = set(_all(factors, strength))
    rows = []
    while left:
        row: Case = dict(min(left))
        names = [name for name in factors if name not in row]
        chance.shuffle(names)
        for name in names:
            values = chance.sample(list(factors[name]), len(factors[name]))
            row[name] = max(values, key=lambda value: _gain(left, row, (name, value), strength))
        left -= set(_of(row, strength))
        rows.append({name: row[name] for name in factors})
    return rows


def _all(factors: Mapping[str, Sequence[str]], strength: int) -> list[tuple[Bound, ...]]:
    return [
        tuple(sorted(zip(names, values, strict=True)))
        for names in itertools.combinations(sorted(factors), strength)
        for values in itertools.product(*(factors[name] for name in names))
    ]


def _of(row: Case, strength: int) -> list[tuple[Bound, ...]]:
    return list(itertools.combinations(sorted(row.items()), strength))


def _gain(left: set[tuple[Bound, ...]], row: Case, new: Bound, strength: int) -> int:
    others = itertools.combinations(sorted(row.items()), strength - 1)
    return sum(tuple(sorted((*chosen, new))) in left for chosen in others)
