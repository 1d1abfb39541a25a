"""The text of exceptions that the user's program raised, in a bounded size, even when their own methods fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MAX_MESSAGE: Final = 1_000
"""Characters of an exception's text that are kept. The text may repeat the record, and a dead letter contains both."""


def repr_of(error: BaseException) -> str:
    """Return the beginning of an exception's `repr`, for example `ValueError('negative')`. Never raises."""
    return _text_of(error, repr)


def message_of(error: BaseException) -> str:
    """Return the beginning of an exception's message. Never raises."""
    return _text_of(error, str)


def _text_of(error: BaseException, text: Callable[[Any], str]) -> str:
    try:
        found = text(error)
        if len(found) > MAX_MESSAGE:
            return f"{found[:MAX_MESSAGE]}... ({len(found)} characters)"
    except Exception as raised:  # noqa: BLE001 - a program's `__str__` may raise anything
        return f"{type(error).__name__} (its text cannot be read: {type(raised).__name__})"
    return found
