"""Assignors by name: the built-in ones, and those of the program."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.clients.assignors.base import Assignment, Assignor, MemberSubscription
from headrace.clients.assignors.spread import RangeAssignor, RoundRobinAssignor
from headrace.clients.assignors.sticky import (
    CooperativeStickyAssignor,
    EqualAssignor,
    StickyAssignor,
)
from headrace.errors import UnknownAssignorError

__all__ = [
    "Assignment",
    "Assignor",
    "AssignorChoice",
    "CooperativeStickyAssignor",
    "EqualAssignor",
    "MemberSubscription",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "choose_assignors",
    "register_assignor",
]

AssignorChoice = str | Assignor | type[Assignor]
"""A name, an object, or a class that is called without arguments."""

_FACTORIES: Final[dict[str, Callable[[], Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
    "equal": EqualAssignor,
}
_JAVA_CLASSES: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def register_assignor(name: str, factory: Callable[[], Assignor]) -> None:
    """Register an assignor under a name, which consumers can use in place of a built-in name.

    Args:
        name: The name, which should be the `name` of the assignor.
        factory: A function or class without parameters that returns a new assignor.
    """
    _FACTORIES[name] = factory


def choose_assignors(given: AssignorChoice | Sequence[AssignorChoice]) -> list[Assignor]:
    """Return the chosen assignors, preferred first.

    Args:
        given: One assignor or a list of them. A name may be that of Kafka's Java class. A text may contain several
            names, separated by commas.

    Raises:
        UnknownAssignorError: A name is unknown, or an object is not an assignor.
    """
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    choices = given if isinstance(given, Sequence) else [given]
    if not choices:
        raise UnknownAssignorError(f"no assignor is given; known are {_known()}")
    return [_one(choice) for choice in choices]


def _one(choice: AssignorChoice) -> Assignor:
    if isinstance(choice, str):
        last = choice.rpartition(".")[2]
        factory = _FACTORIES.get(_JAVA_CLASSES.get(last, choice))
        if factory is None:
            near = difflib.get_close_matches(choice, _FACTORIES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownAssignorError(f"unknown assignor {choice!r}; known are {_known()}{hint}")
        return factory()
    made: Any = choice() if isinstance(choice, type) else choice
    if not isinstance(made, Assignor) or made.protocol not in {"eager", "cooperative"}:
        raise UnknownAssignorError(
            f"{choice!r} is not an assignor: it needs a name, a protocol ('eager' or 'cooperative') and "
            "assign(members, partition_counts)"
        )
    return made


def _known() -> str:
    return ", ".join(sorted(_FACTORIES))
