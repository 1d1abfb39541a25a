"""Defences that can be switched off in runs with several brokers."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any

DEFENCES: dict[str, list[Any]] = {}


def without(defence: str) -> AbstractContextManager[object]:
    """Return a context manager that switches one defence off."""
    stack = ExitStack()
    for each in DEFENCES[defence]:
        stack.enter_context(each)
    return stack
