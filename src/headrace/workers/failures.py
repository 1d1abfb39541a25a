"""Where a handler failed: tracebacks for the log and for dead letters, without the frames of Headrace around them."""

from __future__ import annotations

import traceback
from collections import OrderedDict, deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final

MAX_FRAMES: Final = 64
"""The innermost frames that are kept."""
MAX_TEXT: Final = 8_000
"""Characters of a traceback in a dead letter; the end is kept, which says most."""
MAX_CAUSES: Final = 8
KINDS: Final = 1_000
"""Kinds of failures that are remembered, the latest."""
STACKS: Final = 200
"""Formatted stacks that are remembered, the latest."""

_OURS: Final = str(Path(__file__).parents[1] / "_")[:-1]
"""The directory of Headrace's own code, with a separator at its end."""
_CAUSED: Final = (
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
)


class Failures:
    """The failures that were seen. Stacks are formatted once: many records fail at one place."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Any, None] = OrderedDict()
        self._stacks: OrderedDict[Any, str] = OrderedDict()

    def is_new(self, error: BaseException) -> bool:
        """Whether no exception of this type was raised at this place before."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        kind = type(error), place
        is_new = kind not in self._kinds
        _remember(self._kinds, kind, None, KINDS)
        return is_new

    def text(self, error: BaseException) -> str:
        """Return an exception's traceback, with those of its causes, as Python prints it; its end if it is long."""
        parts: list[str] = []
        seen: set[int] = set()
        one: BaseException | None = error
        while one is not None and id(one) not in seen and len(seen) < MAX_CAUSES:
            seen.add(id(one))
            parts.append(self._one(one))
            cause = one.__cause__
            parts.append(_CAUSED[0] if cause is not None else _CAUSED[1])
            one = cause if cause is not None or one.__suppress_context__ else one.__context__
        return "".join(reversed(parts[:-1]))[-MAX_TEXT:]

    def _one(self, error: BaseException) -> str:
        if isinstance(error, BaseExceptionGroup):
            return "".join(
                traceback.format_exception(type(error), error, trimmed(error), chain=False)
            )
        said = "".join(traceback.format_exception_only(error))[:MAX_TEXT]
        stack = self._stack(trimmed(error))
        return f"Traceback (most recent call last):\n{stack}{said}" if stack else said

    def _stack(self, trace: TracebackType | None) -> str:
        frames = deque(traceback.walk_tb(trace), MAX_FRAMES)
        key = tuple((frame.f_code, line) for frame, line in frames)
        text = self._stacks.get(key)
        if text is None:
            text = "".join(traceback.StackSummary.extract(iter(frames)).format())
        _remember(self._stacks, key, text, STACKS)
        return text


def is_ours(filename: str) -> bool:
    """Whether code is Headrace's own."""
    return filename.startswith(_OURS)


def trimmed(error: BaseException) -> TracebackType | None:
    """Return an exception's traceback from the first frame on that is the program's; all of it where there is none."""
    trace = error.__traceback__
    while trace is not None and is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def place_in(error: BaseException) -> str:
    """Return the innermost line of the program's own that an exception came by, " at billing.py:12"; else nothing."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not (name.startswith((_OURS, "<")) or "site-packages" in name):
            found = f" at {name}:{line}"
    return found


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any, size: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > size:
        kept.popitem(last=False)
