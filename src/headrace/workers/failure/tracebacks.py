"""Tracebacks of failed handlers for the log and for dead letters, without the frames of Headrace around them."""

from __future__ import annotations

import traceback
from collections import OrderedDict, deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final

MAX_FRAMES: Final = 64
"""The number of frames of a traceback that are kept: the innermost ones."""
MAX_TEXT: Final = 8_000
"""The most characters of a traceback in a dead letter. The end of the traceback is kept."""
MAX_CAUSES: Final = 8
"""The most exceptions in a chain of causes that a traceback shows."""
KINDS: Final = 1_000
"""The number of failures, by type and place, that are remembered."""
STACKS: Final = 200
"""The number of formatted stacks that are remembered."""

_OURS: Final = str(Path(__file__).parents[2] / "_")[:-1]
"""The directory of Headrace's own code, with a separator at its end."""
_CAUSED: Final = (
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
)


class Failures:
    """The failures of one worker so far. It formats each stack once, because many records fail at the same place."""

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
        """Return the traceback of an exception and its causes, as Python prints it. Of a long one, return the end."""
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
    """Return an exception's traceback without Headrace's frames at its beginning. None if no frame is left."""
    trace = error.__traceback__
    while trace is not None and is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def place_in(error: BaseException) -> str:
    """Return the innermost line of the program in a traceback: " at billing.py:12". Empty text if there is none."""
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
