"""Errors as Spark's users see them.

Spark prints the traceback of a Python worker into the message of its exception. The text of a `HeadraceError` says
what the user must correct: an option, a topic, an address. The frames before that text do not help the user, so they
are cut off in the methods that Spark calls. Any other exception is a fault of Headrace, or of a library, and keeps
its frames.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from headrace.errors import HeadraceError

C = TypeVar("C", bound=type[Any])

_CALLED_BY_SPARK: Final = (
    "schema",
    "reader",
    "streamReader",
    "writer",
    "streamWriter",
    "partitions",
    "read",
    "initialOffset",
    "getDefaultReadLimit",
    "prepareForTriggerAvailableNow",
    "latestOffset",
    "reportLatestOffset",
    "write",
    "commit",
    "abort",
)


def short_tracebacks(faced: C) -> C:
    """Make the methods that Spark calls raise a `HeadraceError` without the frames below them."""
    for name in _CALLED_BY_SPARK:
        method = vars(faced).get(name)
        if method is not None:
            setattr(faced, name, _short(method, is_iterator=name == "read"))
    return faced


def _short(method: Callable[..., Any], *, is_iterator: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = method(*arguments, **named)
        except HeadraceError as error:
            raise error.with_traceback(None) from None
        return _rows(result) if is_iterator else result

    return call


def _rows(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except HeadraceError as error:
        raise error.with_traceback(None) from None
